"""The helper that runs ranks: it brings back values in rank order, tells every rank's story, and leaves no process behind."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.ranks import RankError, outcomes, run


def whoami(comm: Any, extra: str) -> tuple[int, int, str, int]:
    return comm.rank, comm.nranks, extra, os.getpid()


@pytest.mark.parametrize(("kind", "processes"), [("processes", 3), ("threads", 1), ("mixed", 2)])
def test_values_in_rank_order(kind: str, processes: int) -> None:
    """Each rank has a communicator of its own and its value comes back at its place; the kind says how many processes there are."""
    values = run(3, whoami, "x", kind=kind)
    assert [value[:3] for value in values] == [(rank, 3, "x") for rank in range(3)]
    assert len({value[3] for value in values}) == processes
    assert os.getpid() not in {value[3] for value in values}


def without_comm(rank: int, nranks: int, unique_id: Any) -> tuple[int, int, int]:
    return rank, nranks, len(bytes(unique_id))


def test_without_communicator() -> None:
    """With make_comm=False a rank gets its number, their number and an id."""
    assert run(2, without_comm, make_comm=False) == [(0, 2, 128), (1, 2, 128)]


def one_fails(rank: int, nranks: int, unique_id: Any) -> str:
    if rank == 1:
        raise ValueError("rank one is unhappy")
    if rank == 2:
        print("rank two says goodbye", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return "fine"


def test_failure_tells_every_rank() -> None:
    """A failure is an AssertionError that shows each rank: the value, the traceback, the signal and the last words."""
    with pytest.raises(RankError) as caught:
        run(3, one_fails, make_comm=False)
    text = str(caught.value)
    for part in ("2 of 3 ranks failed", "rank 0 returned 'fine'", "ValueError: rank one is unhappy", "one_fails", "SIGKILL", "goodbye"):
        assert part in text
    assert [outcome.status for outcome in caught.value.outcomes] == ["returned", "raised", "ended"]
    assert isinstance(caught.value.outcomes[1].error, ValueError)


def hangs(rank: int, nranks: int, unique_id: Any, folder: str) -> None:
    grandchild = subprocess.Popen(["sleep", "60"])
    Path(folder, str(rank)).write_text(f"{os.getpid()} {grandchild.pid}")
    time.sleep(60)


def test_deadline_kills_all(tmp_path: Path) -> None:
    """At the deadline the ranks and what they started are gone, and the error shows where each of them was."""
    started = time.monotonic()
    ends = outcomes(2, hangs, str(tmp_path), make_comm=False, deadline=2)
    assert time.monotonic() - started < 4
    assert [end.status for end in ends] == ["killed", "killed"]
    assert all("in hangs" in end.output for end in ends)
    pids = [int(pid) for rank in "01" for pid in (tmp_path / rank).read_text().split()]
    assert len(pids) == 4
    time.sleep(0.1)  # the grandchildren are reaped by init
    assert [pid for pid in pids if alive(pid)] == []


def fails_at_exit(rank: int, nranks: int, unique_id: Any) -> None:
    import atexit

    atexit.register(os._exit, 3)


def test_failure_after_the_value_counts() -> None:
    """A process that ends badly after its ranks have returned is a failure."""
    (end,) = outcomes(1, fails_at_exit, make_comm=False)
    assert (end.status, end.returncode, end.ok) == ("returned", 3, False)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
