"""How the CPU library tells what went wrong: result texts, the last error of each thread, kinds, the ranks that it is about."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, TIMEOUT, raised
from helpers.order import Flag, waits


def test_result_texts() -> None:
    """Every result code has a text of its own, and a number that is none has one, too."""
    texts = [host_c.library().ncclGetErrorString(code).decode() for code in range(9)]
    assert len(set(texts)) == 9 and texts[0] == "no error" and all(texts)
    assert all("unknown" in host_c.library().ncclGetErrorString(code).decode() for code in (-1, 9, 99, 2**31 - 1))


def test_versions() -> None:
    """The library says which NCCL it follows, and its own version; NULL is refused."""
    nccl, own = ctypes.c_int(), ctypes.c_int()
    host_c.check(host_c.library().ncclGetVersion(ctypes.byref(nccl)))
    host_c.check(host_c.library().nickelHostVersion(ctypes.byref(own)))
    assert nccl.value >= 23203 and own.value >= 100
    assert host_c.library().ncclGetVersion(None) == host_c.library().nickelHostVersion(None) == INVALID_ARGUMENT


@forks.nursery()
def test_last_error_is_per_thread() -> None:
    """A thread sees its own last error: another thread's failure, at the same time or later, does not change it; success leaves it."""
    lib, seen, barrier = host_c.library(), {}, threading.Barrier(3)

    def fails(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = host_c.Comm(1, host_c.unique_id(), 0)
        assert lib.ncclGetLastError(None) == b"" and lib.nickelErrorKind(None) == 0
        for turn in range(50):
            root = 100 * (rank + 1) + turn
            error = raised(comm.bcast, np.ones(1), root)
            barrier.wait(5)
            assert str(root) in error.text and lib.ncclGetLastError(comm.handle).decode() == error.text
            comm.barrier()
            assert lib.ncclGetLastError(None).decode() == error.text
        seen[rank] = error.text

    forks.values(forks.threads(3, fails))
    assert len(set(seen.values())) == 3


@forks.nursery()
def test_ranks_of_an_error() -> None:
    """nickelErrorRanks tells how many there are, writes no more than it is allowed to, and pids of ranks that have come."""
    lib = host_c.library()

    over = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = host_c.Comm(nranks, ids[0], rank)
        comm.set_timeout(0.3)
        if rank:
            return over.wait()
        error = raised(comm.barrier)
        assert error.code == TIMEOUT and error.ranks == (1, 2, 3) and len(set(error.pids)) == 3 and all(error.pids), error
        ranks, pids = (ctypes.c_int * 4)(7, 7, 7, 7), (ctypes.c_int * 4)(7, 7, 7, 7)
        assert lib.nickelErrorRanks(comm.handle, ranks, pids, 2) == 3
        assert list(ranks) == [1, 2, 7, 7] and list(pids) == [*error.pids[:2], 7, 7]
        assert lib.nickelErrorRanks(comm.handle, None, None, 0) == 3
        over.set()

    forks.values(forks.fork(4, rank_main))


@forks.nursery()
def test_timeouts() -> None:
    """A timeout that is no number is refused; below 0 it is NICKEL_TIMEOUT again, 0 is none, and what cannot be read there is as if it were
    not there."""
    assert host_c.library().nickelCommSetTimeout(None, float("nan")) == INVALID_ARGUMENT

    def rank_main(rank: int, nranks: int, ids: list[bytes], timeout: float, environment: str, works: bool, over: Flag) -> None:
        comm = host_c.Comm(nranks, ids[0], rank)
        os.environ["NICKEL_TIMEOUT"] = environment  # not before, or init would have no longer
        if rank:
            waits(0, seconds=0.5) if works else over.wait()
            comm.barrier()
            return
        comm.set_timeout(timeout)
        try:
            comm.barrier()
        finally:
            over.set()

    settings = ((0.3, "20", False), (-1, "0.3", False), (0, "0.3", True), (-1, "nonsense", True), (-1, "0", True))
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(forks.Forked(2, rank_main, *setting, Flag())) for setting in settings]
        for pair, (_, _, works) in zip(pairs, settings, strict=True):
            first, second = pair.ends()
            if works:
                forks.values([first, second])
            else:
                first.failed(TIMEOUT, "timeout", "0.3 s", ranks=[1])
                assert second.error is not None and second.error.code == TIMEOUT, second
