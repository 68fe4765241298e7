"""Waits of the CPU library that are interrupted: the interrupt check, in calls and in init, and signal handlers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_USAGE, REMOTE_ERROR, raised
from helpers.order import SOON, Flag


@forks.nursery()
def test_interrupt() -> None:
    """An interrupt check that says yes ends the wait within a second; the communicator has failed, its peers are told that the rank was
    interrupted, and handlers of other signals run during the wait. A check that says no, or none, changes nothing."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], answer: int, comes: Flag, told: Flag) -> list[int]:
        host_c.set_timeout(20)
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        asked = []

        @host_c.CHECK
        def check() -> int:
            asked.append(threading.get_ident())
            if len(asked) == 3 and not answer:
                comes.set()
            return answer if len(asked) == 3 else 0

        if rank == 0:
            host_c.library().nickelSetInterruptCheck(ctypes.cast(check, ctypes.c_void_p))
            begun = time.monotonic()
            if answer:
                error = raised(comm.all_reduce, one, one)
                assert (error.code, error.kind) == (INVALID_USAGE, "interrupted") and time.monotonic() - begun < SOON, error
                assert raised(comm.all_reduce, one, one).kind == "closed"
                comes.set()
            else:
                comm.all_reduce(one, one)
            host_c.library().nickelSetInterruptCheck(None)
            assert set(asked) == {threading.get_ident()} and len(asked) >= 3
        else:
            comes.wait()
            if answer:
                error = raised(comm.all_reduce, one, one)
                assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (0,)) and "interrupted" in error.text, error
            else:
                comm.all_reduce(one, one)
        told.set(rank)
        told.wait(2)
        return asked

    for answer in (1, 0):
        forks.values(forks.fork(2, rank_main, answer, Flag(), Flag()))


@forks.nursery()
def test_interrupt_in_init() -> None:
    """The interrupt check also ends an init that waits for ranks which do not come."""
    check = host_c.CHECK(lambda: 1)
    host_c.set_timeout(6)
    host_c.library().nickelSetInterruptCheck(ctypes.cast(check, ctypes.c_void_p))
    begun = time.monotonic()
    error = raised(host_c.Comm, 2, host_c.unique_id(), 0)
    assert error.kind == "interrupted" and time.monotonic() - begun < SOON, error
    host_c.library().nickelSetInterruptCheck(None)


@forks.nursery()
def test_signals_during_a_wait() -> None:
    """Signal handlers run while a rank waits, and the wait goes on."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> int:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(50_000, np.float32)
        counted = []
        signal.signal(signal.SIGALRM, lambda *_: counted.append(1))
        comm.barrier()
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.002)
        else:
            time.sleep(0.3)
        for _ in range(200):
            comm.all_reduce(one, one, "max")
            host_c.mem_free(host_c.mem_alloc(1 << 20))
        signal.setitimer(signal.ITIMER_REAL, 0)
        comm.destroy()
        return len(counted)

    counts = forks.values(forks.fork(2, rank_main))
    assert counts[0] > 0, (counts, os.getpid())
