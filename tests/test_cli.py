"""`pynickel` and `python -m pynickel`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import recorder

import pynickel
from pynickel.tools.cli import main

ROOT = Path(pynickel.__file__).parents[1]


def module(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m pynickel` as a user calls it."""
    command = [sys.executable, "-m", "pynickel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, env={**os.environ, **env})


def test_without_arguments() -> None:
    """It prints the library's path, kind, version, why it was chosen, and every function with since and present."""
    done = module(PYNICKEL_LIBRARY="host")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0].split() == ["library", pynickel.load("host").path]
    assert lines[1].split() == ["kind", "host"] and lines[2].split() == ["version", "2.32.3"]
    assert lines[3] == "chosen   PYNICKEL_LIBRARY=host"
    rows = [line.split() for line in lines[6:] if line]
    assert lines[5].split() == ["function", "since", "present"]
    expected = [[f.name, f.since, "yes" if f.present else "no"] for f in pynickel.load("host").functions]
    assert rows == expected and ["ncclAllReduce", "2.0", "yes"] in rows


def test_older_library(tmp_path: Path) -> None:
    """Functions that an older library lacks show as missing."""
    path = recorder.build(tmp_path, only=lambda f: tuple(map(int, f.since.split("."))) <= (2, 18, 3))
    done = module(PYNICKEL_LIBRARY=str(path))
    rows = [line.split() for line in done.stdout.split("\n")]
    assert ["ncclCommSplit", "2.18.1", "yes"] in rows and ["ncclMemAlloc", "2.19.1", "no"] in rows


def test_no_library(tmp_path: Path) -> None:
    """Without a usable library it says why, with exit status 1 and no traceback."""
    done = module(PYNICKEL_LIBRARY=str(tmp_path))
    assert done.returncode == 1 and "is a directory" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["host-lib", "--help"], ["--version"]])
def test_help(arguments: list[str]) -> None:
    """Help lists the commands and needs no library."""
    done = module(*arguments, PYNICKEL_LIBRARY="/nothing")
    assert done.returncode == 0 and (pynickel.__version__ if "--version" in arguments else "Usage: python -m pynickel") in done.stdout
    assert "host-lib" in done.stdout or arguments == ["--version"]


def test_host_lib(tmp_path: Path) -> None:
    """host-lib fills a folder with which other programs find the CPU library as NCCL; again it only renews it."""
    folder = tmp_path / "new" / "folder with space"
    for _ in range(2):
        result = CliRunner().invoke(main, ["host-lib", str(folder)])
        assert result.exit_code == 0 and f"LD_LIBRARY_PATH={folder}" in result.output
    assert sorted(os.listdir(folder)) == ["libnccl.so", "libnccl.so.2", "libnickel_host.so"]
    for name in os.listdir(folder):
        assert ctypes.CDLL(str(folder / name)).nickelHostVersion
    code = "import ctypes; n = ctypes.CDLL('libnccl.so.2'); v = ctypes.c_int(); n.ncclGetVersion(ctypes.byref(v)); print(v.value)"
    done = subprocess.run([sys.executable, "-c", code], env={"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, timeout=20)
    assert done.stdout.strip() == "23203", done.stderr


def test_host_lib_touches_nothing_foreign(tmp_path: Path) -> None:
    """A libnccl.so.2 of somebody else is not replaced, and a file in place of the folder is an error."""
    (tmp_path / "libnccl.so.2").write_text("precious")
    result = CliRunner().invoke(main, ["host-lib", str(tmp_path)])
    assert result.exit_code == 1 and "is not ours" in result.output
    assert (tmp_path / "libnccl.so.2").read_text() == "precious" and os.listdir(tmp_path) == ["libnccl.so.2"]
    assert CliRunner().invoke(main, ["host-lib", str(tmp_path / "libnccl.so.2")]).exit_code != 0


@pytest.mark.parametrize("arguments", [[], ["--help"], ["doctor", "--no-self-test"], ["ps", "--json"], ["bench", "--help"]])
def test_output_closed_early(arguments: list[str]) -> None:
    """A reader that leaves before the first line, as of `| head -n 0`, is no failure of any command."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "pynickel", *arguments]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writes)
    assert ended.returncode == 0 and ended.stderr == ""


def test_output_that_cannot_be_written() -> None:
    """A full disk is told in one line, with status 1."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pynickel"]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and ended.stderr == "Error: the output cannot be written: No space left on device\n"
