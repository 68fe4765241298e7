"""Very many random collectives on the CPU library, each checked: the short runs of benchmarks/soak.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import processes

SOAK = Path(__file__).resolve().parent.parent / "benchmarks" / "soak.py"


def soak(*options: str, deadline: float) -> str:
    """What the script says; it must end well and leave no process."""
    done = processes.run(SOAK, *options, deadline=deadline)
    assert (done.returncode, done.stderr, done.left) == (0, "", []), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("options", ["--ranks 4 --calls 8000 --seed 1", "--ranks 2 --calls 4000 --seed 2 --kind mixed"])
def test_soak(options: str) -> None:
    """Collectives of random kind, size, type, operation, root and memory, alone and in groups, give every rank what they must."""
    said = soak(*options.split(), deadline=50)
    assert "all right" in said and "full check" in said


def test_wrong_result_is_found(tmp_path: Path) -> None:
    """The soak is worth something: with a library whose all-reduce is wrong in one element it fails, and says which call it was."""
    (tmp_path / "wrong.py").write_text(
        f"""
import sys, runpy
from pynickel import Communicator
right = Communicator.all_reduce
def wrong(comm, send, recv=None, *args, **named):
    result = right(comm, send, recv, *args, **named)
    if comm.rank == 1 and not isinstance(recv, int) and recv is not None and recv.size > 2:
        recv.view("u1")[-1] ^= 1
    return result
Communicator.all_reduce = wrong
sys.argv = ["soak.py", "--calls", "2000", "--deadline", "20"]
sys.path.insert(0, {str(SOAK.parent)!r})
runpy.run_path({str(SOAK)!r}, run_name="__main__")
"""
    )
    done = processes.run(tmp_path / "wrong.py", deadline=40)
    assert done.returncode == 1 and "all_reduce" in done.stderr and "on rank 1 of 4: 1 of" in done.stderr and "seed 1" in done.stderr


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options",
    [
        "--ranks 4 --calls 100000 --seed 3",
        "--ranks 4 --calls 25000 --seed 4 --kind threads",
        "--ranks 8 --calls 25000 --seed 5 --kind mixed",
    ],
)
def test_long_soak(options: str) -> None:
    """The same for longer, with processes, threads and both."""
    assert "all right" in soak(*options.split(), deadline=280)
