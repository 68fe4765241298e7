"""The CPU library's environment variables: a value that cannot be read is told on stderr once, with what is taken instead."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, pynickel
for value in sys.argv[1:] or [None]:
    if value is not None:
        os.environ["NICKEL_TIMEOUT"] = value
    for _ in range(2):
        comms = pynickel.Communicator.init_all(2, "host")
        boxes = [bytearray(b"12"), bytearray(b"34")]
        with pynickel.group():
            for comm, box in zip(comms, boxes):
                comm.all_reduce(box)
        assert boxes == [b"df"] * 2 and [comm.state for comm in comms] == ["ready"] * 2
        pynickel.abort_all(comms)
"""


def told(*timeouts: str, **variables: str) -> list[str]:
    """What a process with two ranks, these variables, and each NICKEL_TIMEOUT in turn, says on stderr, without host and process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "NICKEL_"))} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM, *timeouts], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.partition(" NCCL WARN ")[2] or line for line in done.stderr.splitlines()]


def test_timeouts() -> None:
    """NICKEL_TIMEOUT: what is no number of seconds is told when a communicator is made, each value once; what is one, and "", is not."""
    wrong = ["5s", "-3", "nan", "inf", "1e400", "0,5", "five", "1800 s"]
    assert told("", "0", "2.5", "1e3", *wrong, "90") == [
        f"NICKEL_TIMEOUT is '{value}', but must be a number of seconds, 0 for no limit; 1800 is taken" for value in wrong
    ]


def test_each_variable(tmp_path: Path) -> None:
    """Every other variable: name, value, what is expected, and what happens instead, in one line each; the work goes on."""
    nowhere = tmp_path / "no" / "folder"
    assert sorted(told(NICKEL_KERNELS="sse2", NCCL_DEBUG="LOUD", NCCL_COMM_BLOCKING="yes", NICKEL_TRACE=str(nowhere))) == [
        "NCCL_COMM_BLOCKING is 'yes', but must be 0 or 1; the configuration decides",
        "NCCL_DEBUG is 'LOUD', but must be VERSION, WARN, INFO, TRACE or ABORT; nothing is logged",
        "NICKEL_KERNELS is 'sse2', but must be plain, avx2 or avx512; the best loops of this processor are taken",
        f"NICKEL_TRACE: {nowhere} cannot be opened for writing, nothing is traced",
    ]
    assert told(NCCL_DEBUG="warn", NCCL_DEBUG_FILE=str(nowhere)) == [
        f"NCCL_DEBUG_FILE is '{nowhere}', but must be a file that can be opened for writing; the lines go to stderr"
    ]


@pytest.mark.parametrize(
    "wrong", ["kill", "kill:rank=-1,call=1", "kill:rank=0,call=0", "delay:rank=0,call=-1,ms=1", "delay:rank=0,call=1,ms=-1"]
)
def test_faults(wrong: str) -> None:
    """NICKEL_FAULT: an order that could never come true, or is none, is left out, and the form is told; others are carried out."""
    expected = "it must be kill:rank=R,call=K or delay:rank=R,call=K,ms=M or refuse:rank=R,call=K,result=C or corrupt:rank=R,call=K, "
    assert told(NICKEL_FAULT=f"delay:rank=0,call=1,ms=1;{wrong}") == [
        f"NICKEL_FAULT: '{wrong}' is left out: {expected}with ranks from 0 and calls from 1"
    ]


def test_usual_values(tmp_path: Path) -> None:
    """Values that are understood, and empty ones, which are as if not set, say nothing."""
    names = ("NICKEL_TIMEOUT", "NICKEL_KERNELS", "NICKEL_FAULT", "NICKEL_TRACE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_COMM_BLOCKING")
    empty = dict.fromkeys(names, "")
    assert told(**empty) == []
    trace, log = str(tmp_path / "trace"), str(tmp_path / "log.%p")
    usual = {"NICKEL_KERNELS": "avx2", "NICKEL_TRACE": trace, "NCCL_DEBUG": "info", "NCCL_DEBUG_FILE": log, "NCCL_COMM_BLOCKING": "1"}
    assert told(**usual) == []
    assert Path(trace).stat().st_size and len(list(tmp_path.glob("log.*"))) == 1
