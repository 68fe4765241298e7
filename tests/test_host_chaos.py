"""Ranks that are killed, stopped or delayed at random moments: the short runs of benchmarks/chaos.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import processes

CHAOS = Path(__file__).resolve().parent.parent / "benchmarks" / "chaos.py"


def chaos(rounds: int, seed: int, deadline: float) -> None:
    """Rounds of every kind in turn."""
    done = processes.run(CHAOS, "--rounds", str(rounds), "--seed", str(seed), deadline=deadline)
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
    """Eighty rounds of it."""
    chaos(80, 9, deadline=190)
