"""Several threads and the CPU library: abort from another thread, a communicator that is busy, the interrupt check."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, raised


def in_thread(function: Callable[[], Any]) -> Callable[[], forks.End]:
    """Start a thread; the returned function waits for its end."""
    ends: list[forks.End] = []
    begun = time.monotonic()

    def body() -> None:
        value, error, trace = forks.outcome(function)
        ends.append(forks.End(0, value, error, trace, seconds=time.monotonic() - begun))

    worker = threading.Thread(target=body, daemon=True)
    worker.start()

    def join() -> forks.End:
        worker.join(8)
        return ends[0] if ends else forks.End(0, late=True)

    return join


@pytest.mark.parametrize("blocked_in", ["all_reduce", "recv", "group"])
@forks.nursery()
def test_abort(blocked_in: str) -> None:
    """ncclCommAbort from another thread ends the call that waits for a peer within a second, and returns; the peer hears that the rank has
    aborted, and the handle is gone."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(6)
        comm, buffer = host_c.Comm(nranks, ids[0], rank), np.ones(50_000, np.float32)
        comm.barrier()
        if rank == 1:
            time.sleep(0.5)
            error = raised(comm.all_reduce, buffer, buffer)
            assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (0,)) and "aborted" in error.text, error
            return

        def call() -> None:
            if blocked_in == "group":
                with host_c.group():
                    comm.all_reduce(buffer, buffer)
                    comm.recv(np.empty_like(buffer), 1)
            elif blocked_in == "recv":
                comm.recv(buffer, 1)
            else:
                comm.all_reduce(buffer, buffer)

        join = in_thread(call)
        time.sleep(0.2)
        begun = time.monotonic()
        comm.abort()
        assert time.monotonic() - begun < 1
        ended = join().failed(INVALID_USAGE, "aborted", "ncclCommAbort")
        assert ended.seconds < 1.2, ended
        assert raised(comm.all_reduce, buffer, buffer).code == INVALID_ARGUMENT
        time.sleep(0.5)

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_abort_of_several_in_one_group() -> None:
    """A thread waits in a group over two communicators; another thread aborts one after the other, and neither abort waits for the other
    communicator's peers."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(6)
        first, second = (host_c.Comm(nranks, id_, rank) for id_ in ids)
        if rank == 1:
            time.sleep(1.5)
            return
        buffers = [np.ones(5, np.float32) for _ in range(2)]

        def call() -> None:
            with host_c.group():
                first.all_reduce(buffers[0], buffers[0])
                second.all_reduce(buffers[1], buffers[1])

        join = in_thread(call)
        time.sleep(0.2)
        for comm in (first, second):
            begun = time.monotonic()
            comm.abort()
            assert time.monotonic() - begun < 1
        join().failed(INVALID_USAGE, "aborted")

    forks.values(forks.fork(2, rank_main, ids=2))


def hammer(rounds: int, seed: int) -> None:
    """Threads reduce arrays directly in each other's memory, and one of them is aborted at a random moment."""
    choose = random.Random(seed)

    def rank_main(rank: int, nranks: int, ids: list[bytes], comms: list[host_c.Comm | None], size: int) -> None:
        comms[rank] = comm = host_c.Comm(nranks, ids[0], rank)
        buffers = [np.ones(size, np.float32) for _ in range(3)]
        try:
            for _ in range(10_000):
                with host_c.group():
                    comm.all_reduce(buffers[0], buffers[1])
                    comm.send(buffers[0], (rank + 1) % nranks)
                    comm.recv(buffers[2], (rank - 1) % nranks)
        except host_c.HostError:
            for buffer in buffers:
                buffer[:] = 7
            time.sleep(0.003)
            assert all((buffer == 7).all() for buffer in buffers), "memory was written after the call had returned"
            raise

    for turn in range(rounds):
        comms: list[host_c.Comm | None] = [None] * 3
        victim, size = choose.randrange(3), choose.choice((10, 9000, 200_000, 1_000_000))

        def abort(comms: list[host_c.Comm | None] = comms, victim: int = victim, pause: float = choose.random() * 0.003) -> None:
            until = time.monotonic() + 5
            while not all(comms) and time.monotonic() < until:
                time.sleep(0.0001)
            time.sleep(pause)
            comms[victim].abort()  # type: ignore[union-attr]

        join = in_thread(abort)
        ends = forks.threads(3, rank_main, comms, size, ids=1, deadline=8)
        join().returned()
        for end in ends:
            kinds = ("aborted", "closed") if end.rank == victim else ("remote",)
            if end.error is None or end.error.kind not in kinds:
                raise AssertionError(f"round {turn}, aborted {victim}: {end}")
        for rank, comm in enumerate(comms):
            if rank != victim:
                comm.abort()  # type: ignore[union-attr]


@forks.nursery(deadline=30)
def test_abort_hammered() -> None:
    """200 aborts at random moments, while threads of one process work in each other's memory: each ends the call, nobody crashes though
    all free their arrays at once, and the peers name the rank."""
    hammer(200, 11)


@forks.nursery()
def test_aborts_at_once() -> None:
    """Two threads that abort one communicator at the same time end it once; later communicators have handles of their own."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], comm: host_c.Comm, how: tuple[str, str], barrier: threading.Barrier) -> None:
        barrier.wait(5)
        try:
            getattr(comm, how[rank])()
        except host_c.HostError as error:
            assert error.code in (INVALID_ARGUMENT, INVALID_USAGE), error

    for turn in range(120):
        how = (("abort", "abort"), ("destroy", "destroy"), ("abort", "destroy"))[turn % 3]
        comm = host_c.Comm(1, host_c.unique_id(), 0)
        forks.values(forks.threads(2, rank_main, comm, how, threading.Barrier(2)))
        pair = [host_c.Comm(1, host_c.unique_id(), 0) for _ in range(2)]
        assert pair[0].handle != pair[1].handle
        for comm in pair:
            comm.barrier()
            comm.destroy()


@forks.nursery()
def test_busy() -> None:
    """A second thread is refused at once in a communicator that another thread waits in: calls, finalize and destroy; the wait goes on and
    ends well."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        if rank == 1:
            time.sleep(0.5)
            comm.all_reduce(one, one)
            return
        join = in_thread(lambda: comm.all_reduce(one, one))
        time.sleep(0.2)
        other = np.ones(1, np.float32)
        for call, arguments in ((comm.all_reduce, (other, other)), (comm.send, (other, 1)), (comm.finalize, ()), (comm.destroy, ())):
            begun = time.monotonic()
            error = raised(call, *arguments)
            assert (error.code, error.kind) == (INVALID_USAGE, "busy") and time.monotonic() - begun < 0.1, error
        join().returned()
        assert one[0] == 2 and other[0] == 1
        comm.destroy()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_interrupt() -> None:
    """An interrupt check that says yes ends the wait within a second; the communicator has failed, its peers are told that the rank was
    interrupted, and handlers of other signals run during the wait. A check that says no, or none, changes nothing."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], answer: int) -> list[int]:
        host_c.set_timeout(6)
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        asked = []

        @host_c.CHECK
        def check() -> int:
            asked.append(threading.get_ident())
            return answer if len(asked) == 3 else 0

        if rank == 0:
            host_c.library().nickelSetInterruptCheck(ctypes.cast(check, ctypes.c_void_p))
            begun = time.monotonic()
            if answer:
                error = raised(comm.all_reduce, one, one)
                assert (error.code, error.kind) == (INVALID_USAGE, "interrupted") and time.monotonic() - begun < 1, error
                assert raised(comm.all_reduce, one, one).kind == "closed"
            else:
                comm.all_reduce(one, one)
            host_c.library().nickelSetInterruptCheck(None)
            assert set(asked) == {threading.get_ident()} and len(asked) >= 3
            time.sleep(0.6 if answer else 0)
        else:
            time.sleep(0.8)
            if answer:
                error = raised(comm.all_reduce, one, one)
                assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (0,)) and "interrupted" in error.text, error
            else:
                comm.all_reduce(one, one)
        return asked

    for answer in (1, 0):
        forks.values(forks.fork(2, rank_main, answer))


@forks.nursery()
def test_interrupt_in_init() -> None:
    """The interrupt check also ends an init that waits for ranks which do not come."""
    check = host_c.CHECK(lambda: 1)
    host_c.set_timeout(6)
    host_c.library().nickelSetInterruptCheck(ctypes.cast(check, ctypes.c_void_p))
    begun = time.monotonic()
    error = raised(host_c.Comm, 2, host_c.unique_id(), 0)
    assert error.kind == "interrupted" and time.monotonic() - begun < 1, error
    host_c.library().nickelSetInterruptCheck(None)


@forks.nursery()
def test_signals_during_a_wait() -> None:
    """Signal handlers run while a rank waits, and the wait goes on."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> int:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(50_000, np.float32)
        counted = []
        signal.signal(signal.SIGALRM, lambda *_: counted.append(1))
        comm.barrier()
        if rank == 1:
            time.sleep(0.3)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.002)
        for _ in range(200):
            comm.all_reduce(one, one, "max")
            host_c.mem_free(host_c.mem_alloc(1 << 20))
        signal.setitimer(signal.ITIMER_REAL, 0)
        comm.destroy()
        return len(counted)

    counts = forks.values(forks.fork(2, rank_main))
    assert counts[0] > 0, (counts, os.getpid())
