"""Peers of the CPU library that die, exec, close, abort or do not come: every rank gets an error that names them, soon."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import functools
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.c import shared_library
from helpers.host_c import INVALID_ARGUMENT, REMOTE_ERROR, TIMEOUT, raised
from helpers.order import SOON, Flag, in_call, waits
from helpers.rounds import Rounds


def work(comm: host_c.Comm, size: int, arena: bool, grouped: bool) -> None:
    """All-reduces for ever."""
    buffer, arrived = (host_c.empty(size, np.float32) if arena else np.zeros(size, np.float32) for _ in range(2))
    while True:
        if grouped:
            with host_c.group():
                comm.all_reduce(buffer, buffer)
                comm.send(buffer, (comm.rank + 1) % comm.nranks)
                comm.recv(arrived, (comm.rank - 1) % comm.nranks)
        else:
            comm.all_reduce(buffer, buffer)


def works(rank: int, nranks: int, ids: list[bytes], size: int, arena: bool, grouped: bool) -> list[host_c.HostError]:
    """Work until it fails; that error, and those of the calls after it; then a new communicator of the survivors."""
    host_c.set_timeout(8)
    comm = host_c.Comm(nranks, ids[0], rank)
    comm.barrier()
    forks.say("works")
    first = raised(work, comm, size, arena, grouped)
    one = np.ones(1, np.float32)
    later = [raised(comm.all_reduce, one, one), raised(comm.send, one, (rank + 1) % nranks), raised(comm.finalize)]
    assert comm.query("CommGetAsyncError") == first.code
    comm.abort()
    survivors = host_c.Comm(nranks - 1, ids[1], rank)
    survivors.barrier()
    survivors.destroy()
    return [first, *later]


@pytest.mark.parametrize("grouped", [False, True])
@forks.nursery(deadline=30)
def test_peer_is_killed(grouped: bool) -> None:
    """kill -9 in the middle of small or large calls, of messages, inside a group: the survivors learn which rank and process it was within
    a second, their later calls say it again, and they can go on with a new communicator."""
    choose = random.Random(3)
    for size, arena in ((1, False), (2000, False), (100_000, False), (100_000, True)):
        for _ in range(2):
            with forks.Forked(3, works, size, arena, grouped, ids=2) as ranks:
                ranks.wait_for("works", 3)
                time.sleep(choose.random() * 0.02)
                killed = time.monotonic() - ranks.begun
                ranks.kill(2)
                ends = ranks.ends(8)
            for end in ends[:2]:
                first, *later = end.returned()
                assert (first.code, first.kind, first.ranks) == (REMOTE_ERROR, "remote", (2,)), first
                assert first.pids == (ranks.pids[2],) and str(ranks.pids[2]) in first.text and "nccl" in first.text, first
                assert all(error.code == REMOTE_ERROR and "rank 2" in error.text for error in later), later
                assert end.seconds - killed < SOON, end


LOOP = """
#include <stddef.h>
int again(int (*call)(const void *, void *, size_t, int, int, void *, void *), void *buffer, size_t count, void *comm)
{
  int result;
  while (!(result = call(buffer, buffer, count, 7, 0, comm, NULL))) continue;
  return result;
}
"""


def chaos(rounds: int, seed: int, folder: Path) -> None:
    """Kill a rank at a random moment of a tight loop in C; the deadline is far away, so only its death can be the reason."""
    loop = shared_library(folder / "loop.so", LOOP)

    def rank_main(rank: int, nranks: int, ids: list[bytes], size: int, arena: bool) -> None:
        host_c.set_timeout(30)
        again, lib = ctypes.CDLL(str(loop)).again, host_c.library()
        again.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        comm, buffer = host_c.Comm(nranks, ids[0], rank), (host_c.empty if arena else np.zeros)(size, np.float32)
        forks.say("works")
        host_c.check(again(ctypes.cast(lib.ncclAllReduce, ctypes.c_void_p), buffer.ctypes.data, size, comm.handle))

    def judge(killed: float, ends: list[forks.End]) -> None:
        end = ends[0].failed(REMOTE_ERROR, "remote", ranks=[1])
        assert end.seconds - killed < SOON, end

    choose = random.Random(seed)
    with Rounds() as ending:
        for turn in range(rounds):
            ranks = ending.begin(2, rank_main, (1, 1, 500, 2100, 20_000)[turn % 5], turn % 2 == 0)
            ranks.wait_for("works", 2)
            time.sleep(choose.random() * 0.002)
            killed = time.monotonic() - ranks.begun
            ranks.kill(1)
            ending.leave(ranks, 6, functools.partial(judge, killed))


@forks.nursery()
def test_chaos(tmp_path: Path) -> None:
    """A peer that is killed at any instant of a call, between its last store and its next one too, is noticed."""
    chaos(25, 5, tmp_path)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(130)
@forks.nursery(deadline=120)
def test_chaos_300(tmp_path: Path) -> None:
    """The same 300 times."""
    chaos(300, 6, tmp_path)


def leaves(rank: int, nranks: int, ids: list[bytes], how: str, blocked_in: str, told: Flag) -> float:
    """Rank 1 leaves while the others wait in a call for it; when it left, and when they were told."""
    host_c.set_timeout(20)
    comm, buffer = host_c.Comm(nranks, ids[0], rank), np.ones(30_000, np.float32)
    comm.barrier()
    if rank == 1:
        time.sleep(0.3)
        if how == "exec":
            os.execv("/bin/sleep", ["sleep", "3"])
        if how == "exits":
            os._exit(0)
        left = time.monotonic()
        getattr(comm, how)()
        told.wait(2)  # its end is not to be what they hear of
        return left
    waits = {"collective": (comm.all_reduce, buffer, buffer), "recv": (comm.recv, buffer, 1), "send": (comm.send, buffer, 1)}
    error = raised(*waits[blocked_in])
    assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (1,)), error
    word = {"destroy": "closed", "abort": "aborted"}.get(how, "ended")
    assert "rank 1" in error.text and word in error.text, error
    told.set(rank)
    return time.monotonic()


@pytest.mark.parametrize("how", ["exec", "exits", "destroy", "abort"])
@forks.nursery()
def test_peer_leaves(how: str) -> None:
    """A peer that execs another program, exits, closes or aborts its communicator is named to those who wait for it, in a collective or
    for a message, and the text says what it did; closing and aborting are told at once."""
    for blocked_in in ("collective", "recv", "send"):
        with forks.Forked(3, leaves, how, blocked_in, Flag()) as ranks:
            while ranks.open & ({0, 1, 2} if how in ("destroy", "abort") else {0, 2}):
                ranks.listen(5)
            first, left, second = ranks.result
            for end in (first, second):
                if how in ("destroy", "abort"):
                    assert end.returned() - left.returned() < SOON
                else:
                    assert end.returned() - ranks.begun < 0.3 + SOON


@forks.nursery()
def test_deadline() -> None:
    """A deadline is ncclTimeout: it names who is missing and what each was last seen in; peers that wait for the same are told at once, and
    those that come too late; all hear of the same ranks, and the communicator has failed."""
    os.environ["NICKEL_TIMEOUT"] = "20"

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, told: Flag) -> tuple[host_c.HostError, float]:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        comm.bcast(one)
        if rank >= 2:
            told.wait(2)
            error = raised(comm.barrier)
            told.set(rank)
            return error, 0.0
        if rank == 0:
            waits(1)  # or it would be missing, too
        if how == "set" and rank == 0:
            comm.set_timeout(0.5)
        elif rank == 0:
            os.environ["NICKEL_TIMEOUT"] = "0.5"  # not before, or init would have no longer, and the others could be told of that
        begun = time.monotonic()
        error = raised(comm.barrier)
        waited = time.monotonic() - begun
        assert raised(comm.barrier).code == TIMEOUT
        told.set(rank)
        told.wait(nranks)
        return error, waited

    for how in ("set", "environment"):
        ends = forks.fork(4, rank_main, how, Flag())
        errors = [end.returned()[0] for end in ends]
        assert all(error.code == TIMEOUT and error.kind == "timeout" for error in errors), errors
        assert all(error.ranks == (2, 3) for error in errors), errors
        assert all(f"rank {late} (pid " in error.text and "ncclAllReduce" in error.text for error in errors for late in (2, 3)), errors
        assert any("last in ncclBroadcast" in error.text and "waited 0.5 s" in error.text for error in errors[:2]), errors
        assert max(end.returned()[1] for end in ends[:2]) < 0.5 + SOON and ends[0].returned()[1] > 0.4


@forks.nursery(deadline=30)
def test_deadline_names_who_began_it() -> None:
    """A rank that waits for another one itself is not the missing one: at the deadline every rank is told who holds up the others, in
    whatever part of a message it was stopped, also those who wait for it only through others; the text says who waits for whom."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], empty: bool, behind: str, stopped: Flag) -> None:
        host_c.set_timeout(20)
        comm = host_c.Comm(nranks, ids[0], rank)
        data = host_c.empty(1 << 19, np.float32) if empty else np.ones(1 << 19, np.float32)
        comm.barrier()
        forks.say("begins")
        while rank == 1:
            comm.send(data, 2)
        while rank == 2:
            comm.recv(data, 1)
        stopped.wait()
        waits(1)
        comm.set_timeout(0.5)
        if behind == "call":
            comm.barrier()
        else:
            comm.recv(data, 1)

    for empty, behind in ((False, "call"), (True, "call"), (False, "message"), (True, "message")):
        with forks.Forked(3, rank_main, empty, behind, stopped := Flag()) as ranks:
            ranks.wait_for("begins", 3)
            ranks.stop(2)
            stopped.set()
            while ranks.open & {0, 1}:
                ranks.listen(5)
            first, second = ranks.result[:2]
            first.failed(TIMEOUT, "timeout", "rank 1 (", "waiting for rank 2 in ncclSend", "rank 2 (", ranks=[2])
            second.failed(TIMEOUT, "timeout", "rank 0 gave up waiting for rank 2", ranks=[2])


@forks.nursery()
def test_stopped_peer() -> None:
    """A peer that is stopped is not dead: it is missing at the deadline, and one that goes on in time has done no harm."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], timeout: float) -> None:
        comm = host_c.Comm(nranks, ids[0], rank)
        comm.barrier()
        comm.set_timeout(timeout)
        if rank == 1:
            forks.say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            threading.Thread(target=lambda: (in_call(), forks.say("waits")), daemon=True).start()
        try:
            comm.barrier()
        finally:
            forks.say("over")

    for timeout, goes_on_when in ((5.0, "waits"), (0.4, "over")):
        with forks.Forked(2, rank_main, timeout) as ranks:
            ranks.wait_for("stops")
            os.waitpid(ranks.pids[1], os.WUNTRACED)  # or what makes it go on could come first
            ranks.wait_for(goes_on_when)
            ranks.kill(1, signal.SIGCONT)
            for end in ranks.ends():
                if goes_on_when == "waits":
                    end.returned()
                elif end.rank == 0:
                    end.failed(TIMEOUT, "timeout", ranks=[1])
                else:
                    assert end.error is not None, end


@forks.nursery()
def test_handles_that_are_gone() -> None:
    """NULL, destroyed and aborted communicators are ncclInvalidArgument in every call, without a crash; destroying NULL succeeds."""
    one = np.ones(1, np.float32)
    gone = []
    for how in ("destroy", "abort"):
        comm = host_c.Comm(1, host_c.unique_id(), 0)
        getattr(comm, how)()
        gone.append(comm)
    for comm in (host_c.Comm.of(None, 1, 0), *gone):
        for call, arguments in (
            (comm.all_reduce, (one, one)),
            (comm.bcast, (one,)),
            (comm.send, (one, 0)),
            (comm.query, ("CommCount",)),
            (comm.query, ("CommGetAsyncError",)),
            *([] if comm.handle is None else [(comm.finalize, ()), (comm.destroy, ()), (comm.abort, ()), (comm.set_timeout, (1.0,))]),
        ):
            assert raised(call, *arguments).code == INVALID_ARGUMENT
    for name in ("CommFinalize", "CommDestroy", "CommAbort"):
        assert getattr(host_c.library(), f"nccl{name}")(None) == host_c.SUCCESS
    others = [host_c.Comm(1, host_c.unique_id(), 0) for _ in range(3)]
    assert all(raised(comm.all_reduce, one, one).code == INVALID_ARGUMENT for comm in gone)
    for comm in others:
        comm.barrier()
