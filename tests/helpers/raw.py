"""The C symbols on the communicators and arrays of a test through the Python layer."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np

from pynickel import Communicator, UniqueId, ffi, lib

__all__ = ["F32", "NULL", "another", "at", "call", "ffi", "handle", "last_error", "lib", "new_id", "works"]
F32 = 7  # ncclFloat32
NULL = ffi.NULL


def works(comm: Any) -> None:
    """The communicator is usable: a plain all-reduce is right."""
    assert comm.all_reduce(np.full(3, comm.rank + 1)).tolist() == [comm.nranks * (comm.nranks + 1) // 2] * 3


def handle(comm: Any) -> Any:
    """For the C symbols."""
    return ffi.cast("ncclComm_t", comm.handle)


def at(array: Any, offset: int = 0) -> Any:
    """A pointer so many elements into an array; None is NULL."""
    return NULL if array is None else ffi.cast("void *", array.ctypes.data + offset * array.itemsize)


def call(name: str, comm: Any, *args: Any) -> int:
    """A function whose last arguments are communicator and stream: its result. Arrays are given as their pointers."""
    pointers = (at(value) if value is None or isinstance(value, np.ndarray) else value for value in args)
    return int(getattr(lib, f"nccl{name}")(*pointers, handle(comm), NULL))


def last_error() -> str:
    """ncclGetLastError."""
    return str(ffi.string(lib.ncclGetLastError(NULL)).decode())


def new_id(comm: Any) -> UniqueId:
    """An id that all ranks of a communicator have."""
    made = np.frombuffer(bytes(UniqueId.create("host")), np.uint8).copy()
    comm.broadcast(made)
    return UniqueId(made.tobytes())


def another(comm: Any, **options: Any) -> Communicator:
    """One more communicator of the same ranks."""
    return Communicator(comm.nranks, new_id(comm), comm.rank, **options)
