"""The CPU library built with sanitizers: C programs with threads as ranks, and Python programs with processes; a report is a failure."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.c import CDEF, ROOT, compiler, host_library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DRIVER = sorted((ROOT / "tests" / "driver").glob("*.c"))
# What a report looks like; the driver's own failures are in its exit status.
REPORTS = ("ThreadSanitizer", "AddressSanitizer", "LeakSanitizer", "runtime error")
OPTIONS = {"TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
# One file of tests for each part of the library, with ranks as processes and as threads.
PARTS = ("p2p", "family", "onesided", "operations", "mismatch")


def runtime(name: str) -> str:
    """Where the compiler has a sanitizer's library."""
    found = subprocess.run([*compiler(), f"-print-file-name={name}"], capture_output=True, text=True, timeout=20).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip(f"this compiler has no {name}: install gcc with its sanitizers")
    return found


def build(folder: Path, sanitize: str) -> Path:
    """The library by the build's switch, and the driver that is linked with it; the folder of both."""
    runtime("libtsan.so" if sanitize == "thread" else "libasan.so")
    host_library(folder, PYNICKEL_SANITIZE=sanitize, CFLAGS="-O1")
    link = ["-L", str(folder), "-lnickel_host", f"-Wl,-rpath,{folder}", "-o", str(folder / "driver")]
    flags = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CDEF}", f"-fsanitize={sanitize}"]
    made = subprocess.run([*compiler(), *flags, *map(str, DRIVER), *link], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with ThreadSanitizer."""
    return build(tmp_path_factory.mktemp("thread"), "thread")


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with AddressSanitizer, which looks for leaks, too, and UndefinedBehaviorSanitizer."""
    return build(tmp_path_factory.mktemp("memory"), "address,undefined")


def drive(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    """Run the driver; its exit status and all that it wrote. Without random addresses: some kernels place memory where gcc's
    ThreadSanitizer cannot have it."""
    done = subprocess.run(
        ["setarch", platform.machine(), "-R", str(folder / "driver"), *words],
        env={**os.environ, **OPTIONS, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def quiet(folder: Path, *words: str, **env: str) -> None:
    """Run all scenes; nothing may be reported."""
    code, text = drive(folder, *words, **env)
    assert code == 0 and text.endswith("played\n") and not any(report in text for report in REPORTS), text[-8000:]


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_races(threads: Path, ranks: str, tmp_path: Path) -> None:
    """ThreadSanitizer finds no race in init, every collective, messages, groups, split, shrink, grow, abort and revoke from other threads,
    windows, communicators in the background, deadlines, failing inits and the end; with trace, log and delays as well; on the paths of
    threads and on those of processes."""
    quiet(threads, ranks)
    tools = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "log"), "NICKEL_TRACE": str(tmp_path / "trace")}
    quiet(threads, ranks, "groups", "splits", "in_background", "misfits", NICKEL_FAULT="delay:rank=1,call=3,ms=5", **tools)


def test_race_is_reported(threads: Path) -> None:
    """A thread that writes into a buffer while the library reads it is a race, and the report says where in the library."""
    code, text = drive(threads, "plant", "race")
    assert code == 66 and "WARNING: ThreadSanitizer: data race" in text and "ncclAllReduce" in text, text[-3000:]


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_memory_of_a_c_program(memory: Path, ranks: str) -> None:
    """The same scenes touch no memory that is not theirs, leave none behind, and do nothing that C leaves undefined."""
    quiet(memory, ranks)


@pytest.mark.parametrize(("fault", "report"), [
    ("overflow", "AddressSanitizer: heap-buffer-overflow"), ("leak", "LeakSanitizer: detected memory leaks"),
    ("undefined", "runtime error: signed integer overflow"),
])  # fmt: skip
def test_fault_is_reported(memory: Path, fault: str, report: str) -> None:
    """A receive buffer that is too short, memory that is lost and an integer that overflows are reported, and end the program."""
    code, text = drive(memory, "plant", fault)
    assert code != 0 and report in text, (code, text[-3000:])


def in_python(memory: Path, log: Path, *command: str) -> tuple[str, list[str]]:
    """Run Python with the sanitizers' runtimes and our library; its output and all reports. Python itself loses memory at its end."""
    log.mkdir()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
            "NICKEL_TEST_LIBRARY": str(memory / "libnickel_host.so"),
            "PYNICKEL_LIBRARY": str(memory / "libnickel_host.so"),
            "ASAN_OPTIONS": f"detect_leaks=0:log_path={log / 'address'}",
            "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:log_path={log / 'undefined'}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    return f"{done.stdout}\nexit {done.returncode}", [path.read_text() for path in log.iterdir()]


def test_python_tests(memory: Path, tmp_path: Path) -> None:
    """Tests of every part of the library, with ranks as processes, and a soak through the Python layer pass without a report."""
    tests = [str(ROOT / "tests" / f"test_host_{part}.py") for part in PARTS]
    text, reports = in_python(memory, tmp_path / "tests", "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests)
    assert text.endswith("\nexit 0") and "passed" in text and not reports, "\n".join([text[-4000:], *reports])
    text, reports = in_python(memory, tmp_path / "soak", "benchmarks/soak.py", "--calls", "4000", "--seed", "3")
    assert text.endswith("\nexit 0") and not reports, "\n".join([text[-4000:], *reports])


def test_fault_in_python_is_reported(memory: Path, tmp_path: Path) -> None:
    """A count that is larger than a Python program's buffer is reported with the call that it was passed to."""
    fault = (
        "import ctypes, pynickel; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p;"
        "a, b = libc.malloc(64), libc.malloc(4096); comm, = pynickel.Communicator.init_all(1);"
        "comm.all_reduce(b, a, count=1024, dtype='float32')"
    )
    text, reports = in_python(memory, tmp_path / "log", "-c", fault)
    assert not text.endswith("exit 0") and len(reports) == 1, text
    assert "heap-buffer-overflow" in reports[0] and "ncclAllReduce" in reports[0], reports
