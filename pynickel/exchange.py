"""A small number of every rank, told to every rank: what a communicator needs to know about its own ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING

from . import driver
from ._nccl import ffi, lib
from .enums import int32
from .layout import DEVICE, HOST

if TYPE_CHECKING:
    from .lifetime import Lifetime


def gathered(comm: Lifetime, number: int) -> list[int]:
    """What each rank has passed, on every rank; all ranks of the communicator call it."""
    size = ffi.sizeof("int32_t")
    mine, everyone = ffi.new("int32_t[1]", [number]), ffi.new("int32_t[]", comm._nranks)
    if comm._memory == HOST:
        send, recv = int(ffi.cast("uintptr_t", mine)), int(ffi.cast("uintptr_t", everyone))
        comm._finish(lib.comm_ncclAllGather, send, recv, 1, int32, 0)
        return list(everyone)
    from .memory import mem_alloc

    block = mem_alloc(size * (comm._nranks + 1), library=comm.library)
    copy(comm, block.address, mine, size)
    comm._finish(lib.comm_ncclAllGather, block.address, block.address + size, 1, int32, 0)
    comm.wait()
    copy(comm, everyone, block.address + size, size * comm._nranks)
    return list(everyone)


def copy(comm: Lifetime, to: object, source: object, nbytes: int) -> None:
    """Copy to or from memory of ncclMemAlloc."""
    if comm._memory == DEVICE:
        driver.copy(int(ffi.cast("uintptr_t", to)), int(ffi.cast("uintptr_t", source)), nbytes)
    else:
        ffi.memmove(ffi.cast("char *", to), ffi.cast("char *", source), nbytes)
