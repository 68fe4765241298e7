"""A program that loads another libnccl for all, and the CPU library after it: helpers of test_host_symbols."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import signal
import sys

import numpy as np

from helpers import forks, host_c


def trapped(rank: int, nranks: int, ids: list[bytes]) -> None:
    """What a library that looks its symbols up in the whole process would do."""
    ctypes.CDLL(None).ncclGetVersion(None)


def beside(rank: int, nranks: int, ids: list[bytes]) -> None:
    """Init by both ways, collectives, messages, groups, memory, errors, the end."""
    comm = host_c.Comm(nranks, ids[0], rank)
    small, large = np.ones(3, np.float32), host_c.empty(50_000, np.float64)
    large[:] = rank
    with host_c.group():
        comm.all_reduce(small, small)
        comm.bcast(large, 1)
        comm.send(small, 1 - rank, count=0)
        comm.recv(small, 1 - rank, count=0)
    assert (small == nranks).all() and (large == 1).all()
    assert "root" in host_c.raised(comm.bcast, small, 7).text
    comm.finalize()
    comm.destroy()
    both = host_c.init_all(2)
    with host_c.group():
        for comm in both:
            comm.all_reduce(small[comm.rank :], small[comm.rank :], count=1)
    for comm in both:
        comm.abort()


if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1], os.RTLD_GLOBAL | os.RTLD_NOW)
    if forks.fork(1, trapped, ids=0)[0].signal == signal.SIGABRT:
        print("the trap works", flush=True)
    forks.values(forks.fork(2, beside))
    print("right beside it")
