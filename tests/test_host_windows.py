"""Windows of the CPU library: where there are any, for whom, and what is refused."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from ctypes import byref

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, raised
from helpers.host_more import Comm, both_ways
from helpers.host_structs import library


def pages(count: int, dtype: type) -> np.ndarray:
    """An array at a multiple of 4,096 that does not come from ncclMemAlloc."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 4096, np.uint8)
    return raw[-raw.ctypes.data % 4096 :][: count * np.dtype(dtype).itemsize].view(dtype)


@forks.nursery()
def test_window_is_there_for_all_or_for_none() -> None:
    """If one rank's memory does not come from ncclMemAlloc registering succeeds with a NULL window on all of them; with memory of the
    library, or ranks that are threads of one process, there is a window, and its user pointer is the rank's own."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], where: str) -> None:
        comm = Comm(nranks, ids[0], rank)
        for plain in (set(), {1}, {0, 1, 2}):
            memory = pages(1024, np.float32) if rank in plain else host_c.empty(1024, np.float32)
            for part in (memory, memory[:10], memory[:1]):
                window = comm.window(part)
                assert (window is None) == (bool(plain) and where == "processes"), (plain, where)
                pointer = ctypes.c_void_p(1)
                comm.on("WinGetUserPtr", window, byref(pointer))
                assert pointer.value == (None if window is None else memory.ctypes.data)
                comm.on("CommWindowDeregister", window)
        comm.barrier()

    forks.values(forks.fork(3, rank_main, "processes"))
    forks.values(forks.threads(3, rank_main, "threads"))


@forks.nursery()
def test_window_arguments() -> None:
    """NULL and size 0, a buffer that does not begin at a multiple of 4,096, unknown flags, NULL places and handles that are no windows are
    ncclInvalidArgument without a trace; NULL windows are success."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, other = (Comm(nranks, one, rank) for one in ids)
        memory = host_c.empty(8192, np.uint8)
        wrong = ((None, 64, 0), (memory, 0, 0), (memory[1:], 64, 0), (memory[2048:], 64, 0), (memory, 64, 16), (memory, 64, -1))
        for buffer, size, flags in wrong:
            error = both_ways(lambda buffer=buffer, size=size, flags=flags: comm.window(buffer, size, flags))
            assert error.code == INVALID_ARGUMENT, error
        assert library().ncclCommWindowRegister(comm.handle, memory.ctypes.data, 64, None, 0) == INVALID_ARGUMENT
        assert library().ncclCommWindowRegister(None, memory.ctypes.data, 64, byref(ctypes.c_void_p()), 0) == INVALID_ARGUMENT
        windows = [comm.window(memory, 64, flags) for flags in (0, 1, 2, 3)]
        assert len(set(windows)) == 4 and None not in windows
        pointer = ctypes.c_void_p()
        for wrong in (1234, windows[0] + 8):
            assert both_ways(lambda wrong=wrong: comm.on("CommWindowDeregister", wrong)).code == INVALID_ARGUMENT
            assert both_ways(lambda wrong=wrong: comm.on("WinGetUserPtr", wrong, byref(pointer))).code == INVALID_ARGUMENT
        assert raised(other.on, "CommWindowDeregister", windows[0]).code == INVALID_ARGUMENT
        assert raised(comm.on, "WinGetUserPtr", windows[0], None).code == INVALID_ARGUMENT
        for function in ("CommWindowDeregister", "WinGetUserPtr"):
            assert comm.on(function, None, *([byref(pointer)] if function == "WinGetUserPtr" else [])) == 0 and pointer.value is None
        comm.on("CommWindowDeregister", windows[1])
        assert raised(comm.on, "CommWindowDeregister", windows[1]).code == INVALID_ARGUMENT
        comm.barrier()
        comm.destroy()
        assert library().ncclCommWindowDeregister(comm.handle, windows[0]) == INVALID_ARGUMENT

    forks.values(forks.fork(2, rank_main, ids=2))
