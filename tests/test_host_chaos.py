"""Ranks that are killed, stopped or delayed at random moments: the short runs of benchmarks/chaos.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from helpers import processes

CHAOS = Path(__file__).resolve().parent.parent / "benchmarks" / "chaos.py"


def chaos(rounds: int, *seeds: int, deadline: float) -> None:
    """Rounds of every kind in turn, for each seed, all at the same time: most of a round is waiting."""
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(processes.Script(CHAOS, "--rounds", str(rounds), "--seed", str(seed))) for seed in seeds]
        for done in [run.finish(deadline) for run in runs]:
            assert (done.returncode, done.stderr, done.left) == (0, "", []), done.stdout + done.stderr
            assert "every rank ended as it must, nothing was left" in done.stdout


def test_chaos() -> None:
    """One round of each kind: every survivor gets the error that names the right rank within its deadline, a pause below the deadline harms
    nobody, no round hangs, and no process, thread or shared memory is left."""
    chaos(8, 8, deadline=50)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_more_chaos() -> None:
    """Eighty rounds of it, by four seeds."""
    chaos(20, 9, 10, 11, 12, deadline=190)
