"""Registered buffers and windows: memory that a communicator knows in advance, and memory that other ranks can write to."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._nccl import ffi, lib
from .arguments import as_flag
from .buffer import single
from .config import require_constant
from .owned import Owned

if TYPE_CHECKING:
    from .lifetime import Lifetime


class Registration(Owned):
    """What `Communicator.register` returns: a buffer that the library moves faster until close(); it is kept alive so long."""

    __slots__ = ("_handle", "_keep", "address", "nbytes")

    def __init__(self, comm: Lifetime, buffer: Any, count: Any, dtype: Any) -> None:
        self.address, self.nbytes, self._keep = extent(comm, buffer, count, dtype)
        out = ffi.new("void **")  # NULL: some libraries succeed without writing a handle
        comm._finish(lib.comm_ncclCommRegister, self.address, self.nbytes, out)
        self._handle = out[0]
        super().__init__(comm)

    def _release(self, comm: Any) -> tuple[int, str]:
        return lib.ncclCommDeregister(self.comm.library.table, comm, self._handle), "ncclCommDeregister"

    def __repr__(self) -> str:
        return f"<Registration of {self.nbytes} bytes at {self.address:#x}, {'open' if self.is_open else 'closed'}>"


class Window(Owned):
    """What `Communicator.window` returns: memory of every rank that the others reach by put_signal; it is kept alive until close().

    False in a condition where the library made none: with the CPU library that is memory which is not from `empty` or
    `mem_alloc`, with NVIDIA's a machine without symmetric memory.
    """

    __slots__ = ("_keep", "address", "handle", "nbytes")

    def __init__(self, comm: Lifetime, buffer: Any, flags: int, count: Any, dtype: Any) -> None:
        self.address, self.nbytes, self._keep = extent(comm, buffer, count, dtype)
        out = ffi.new("ncclWindow_t *")
        comm._finish(lib.comm_ncclCommWindowRegister, self.address, self.nbytes, out, flags)
        self.handle: Any = out[0]
        super().__init__(comm)

    def _release(self, comm: Any) -> tuple[int, str]:
        return lib.ncclCommWindowDeregister(self.comm.library.table, comm, self.handle), "ncclCommWindowDeregister"

    @property
    def user_pointer(self) -> int:
        """The address that the library has noted for this rank; 0 where there is no window."""
        self._require_open("this window")
        out = ffi.new("void **")
        self.comm._finish(lib.comm_ncclWinGetUserPtr, self.handle, out)
        return int(ffi.cast("uintptr_t", out[0]))

    def __bool__(self) -> bool:
        return bool(self.handle)

    def __repr__(self) -> str:
        made = "" if self else ", not made by the library"
        return f"<Window of {self.nbytes} bytes at {self.address:#x}{made}, {'open' if self.is_open else 'closed'}>"


def extent(comm: Lifetime, buffer: Any, count: Any, dtype: Any) -> tuple[int, int, Any]:
    """Address, bytes and what keeps them, of memory that peers may write to."""
    address, number, element, keep = single(comm._memory, buffer, count, dtype, True, "buffer")
    return address, number * element.itemsize, (buffer, keep)


def window_flags(comm: Lifetime, chosen: dict[str, bool]) -> int:
    """The bits of the flags that the caller has chosen, if the library knows them."""
    bits = 0
    for argument, constant in {
        "symmetric": "NCCL_WIN_COLL_SYMMETRIC", "strict_ordering": "NCCL_WIN_STRICT_ORDERING",
        "gin_only": "NCCL_WIN_GIN_ONLY", "cft_counted": "NCCL_WIN_CFT_COUNTED",
    }.items():  # fmt: skip
        if as_flag(chosen[argument], argument):
            require_constant(comm.library, constant, f"window({argument}=)")
            bits |= getattr(lib, constant)
    return bits
