"""The demo, run as a user runs it: every line, the order that sort gives, and what it does when something is wrong."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import faulty

import pynickel

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "parallel_nccl.py"

ALL_REDUCE = """
typedef ncclResult_t (*call_t)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
typedef ncclResult_t (*rank_t)(const ncclComm_t, int *);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  int rank = 0;
  ((rank_t)real_ncclCommUserRank)(comm, &rank);
  %s
  ncclResult_t result = ((call_t)real_ncclAllReduce)(send, recv, count, type, op, comm, stream);
  %s
  return result;
}
"""


def demo(*arguments: str, deadline: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run the demo; a run that exceeds its time is killed and fails the test."""
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=deadline,
        stdin=subprocess.DEVNULL,
    )


def environment() -> dict[str, str]:
    """The CPU library, and the package of this checkout even where it is not installed."""
    return {**os.environ, "PYNICKEL_LIBRARY": "host", "PYTHONPATH": str(ROOT)}


def expected(nranks: int) -> list[str]:
    """Every line of a good run in order, worked out from what the tests do; what differs from run to run is a pattern."""
    width = 2 if nranks > 10 else 1
    sends = [10, *range(1, nranks)]
    total = sum(sends)
    lines = []

    def say(step: str, rank: int, pattern: str) -> None:
        lines.append((step, rank, re.escape(f"{step} [rank {rank:0{width}}] ") + pattern))

    def value(step: str, rank: int, name: str, *numbers: int) -> None:
        shown = " ".join(map(str, numbers))
        say(step, rank, re.escape(f"{name} buffer {shown} (expected {shown})"))

    say("0.0", 0, r"library: host \d+\.\d+\.\d+ from /\S*libnickel_host\.so \(.+\)")
    for rank in range(nranks):
        root = rank == 0
        say("0.1", rank, "runs on the host")
        say("0.2", rank, r"is the parent, parallel id 0, process \d+" if root else r"is process \d+")
        say("0.3", rank, r"made the unique id [0-9a-f]{64}\.\.\. \(128 bytes\)" if root else f"is a child, parallel id {rank}")
        say("0.4", rank, "has joined the communicator" if root else "has made its buffers of 5 float32")
        if not root:
            say("0.5", rank, r"received the unique id [0-9a-f]{64}\.\.\. \(128 bytes\)")
            say("0.6", rank, "has joined the communicator")
        say("9.1", rank, "end: every value is as expected" if root else "end: the parent said break")
    titles = "Reduce, out of place|Reduce, in place|AllReduce, out of place|AllReduce, in place|Broadcast"
    titles += "|Gather, out of place|Gather, in place|Scatter"
    for number, title in enumerate(titles.split("|"), 1):
        for rank in range(nranks):
            say(f"{number}.1", rank, f"before {title}")
            say(f"{number}.2", rank, f"after {title}: no error")
    for rank, own in enumerate(sends):
        root = rank == 0
        for test, send, receive in [
            (1, own, total if root else 0),
            (2, total if root else own, 0),
            (3, own, total),
            (4, total, 0),
            (5, own, 0 if root else 10),
        ]:
            value(f"{test}.3", rank, "send", send)
            value(f"{test}.4", rank, "receive", receive)
        for test in (6, 7):
            value(f"{test}.3", rank, "send", own)
        value("8.3", rank, "send", *(range(100, 100 + nranks) if root else [own]))
        value("8.4", rank, "receive", 100 + rank)
    value("6.4", 0, "receive", *sends)
    value("7.4", 0, "receive", *sends)
    return [pattern for _, _, pattern in sorted(lines)]


@pytest.mark.parametrize("nranks", [2, 3, 4, 12])
def test_every_line(nranks: int) -> None:
    """The demo prints exactly the lines that its tests should give, each whole, and exits with 0."""
    run = demo("--ranks", str(nranks))
    assert (run.returncode, run.stderr) == (0, "")
    lines = sorted(run.stdout.splitlines())
    patterns = expected(nranks)
    assert [(line, pattern) for line, pattern in zip(lines, patterns, strict=False) if not re.fullmatch(pattern, line)] == []
    assert len(lines) == len(patterns)
    assert len(set(re.findall("unique id ([0-9a-f]+)", run.stdout))) == 1
    assert len(set(re.findall(r"process (\d+)", run.stdout))) == nranks


@pytest.mark.parametrize("locale", [None, "C", "C.UTF-8"])
def test_sort_gives_the_reading_order(locale: str | None) -> None:
    """`| sort` puts the lines in the order of test, line and rank, and the whole ends within ten seconds with four ranks."""
    started = time.monotonic()
    env = {**environment(), **({"LC_ALL": locale} if locale else {})}
    with subprocess.Popen([sys.executable, str(DEMO)], stdout=subprocess.PIPE, env=env) as running:
        done = subprocess.run(["sort"], stdin=running.stdout, capture_output=True, text=True, timeout=30, env=env)
        assert running.wait(10) == 0
    assert time.monotonic() - started < 10
    keys = [re.match(r"(\d)\.(\d) \[rank (\d+)\]", line).groups() for line in done.stdout.splitlines()]
    assert keys == sorted(keys)
    assert len(keys) == len(set(keys)) == len(expected(4))


def test_sixteen_ranks() -> None:
    """Sixteen ranks end within 30 seconds, their numbers padded to two digits."""
    run = demo("--ranks", "16", deadline=30)
    assert run.returncode == 0, run.stderr
    assert "3.4 [rank 09] receive buffer 130 (expected 130)" in run.stdout.splitlines()


def test_wrong_value(tmp_path: Path) -> None:
    """One wrong element, on one rank only, is printed with its place, and the exit status is 1."""
    damage = "if (rank == 2 && send != recv && result == ncclSuccess) ((float *)recv)[3] += 1;"
    library = faulty.build(host_library(), tmp_path, ("ncclAllReduce",), ALL_REDUCE % ("", damage))
    run = demo("--library", str(library))
    assert run.returncode == 1, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    assert "3.4 [rank 2] receive buffer 16,16,16,17,16 (expected 16)" in lines
    assert [line for line in lines if "WRONG" in line] == ["3.6 [rank 2] WRONG receive buffer: element 3 is 17 (expected 16)"]
    assert "9.1 [rank 0] end: 1 wrong values" in lines


def test_forwarding_library_alone_is_harmless(tmp_path: Path) -> None:
    """The library of these tests, with nothing changed, gives a good run: what the others see is what they changed."""
    run = demo("--ranks", "2", "--library", str(faulty.build(host_library(), tmp_path)))
    assert run.returncode == 0, run.stdout + run.stderr


def test_killed_child_is_named(tmp_path: Path) -> None:
    """A child that is killed inside a collective ends the demo within seconds, exit status 1, and is named; nobody stays behind."""
    die = "if (rank == 2) kill(getpid(), SIGKILL);"
    library = faulty.build(host_library(), tmp_path, ("ncclAllReduce",), ALL_REDUCE % (die, ""))
    started = time.monotonic()
    run = demo("--library", str(library))
    assert time.monotonic() - started < 8
    assert run.returncode == 1
    assert re.search(r"(rank|child) 2\b", run.stderr), run.stderr
    pids = [int(pid) for pid in re.findall(r"process (\d+)", run.stdout)]
    assert len(pids) == 4
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize("library", ["no-such-library", "/nowhere/libnccl.so.2", "/dev/null"])
def test_unknown_library(library: str) -> None:
    """A library that cannot be loaded is one clear message with its name, exit status 1, no traceback."""
    run = demo("--library", library)
    assert run.returncode == 1
    assert library in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("ranks", ["1", "0", "-3", "101", "two"])
def test_bad_number_of_ranks(ranks: str) -> None:
    """A number of ranks that makes no parent with children is refused before anything starts."""
    run = demo(f"--ranks={ranks}")
    assert (run.returncode, run.stdout) == (2, "")
    assert "--ranks" in run.stderr


def host_library() -> Path:
    """The CPU library's file."""
    return Path(pynickel.load("host").path)
