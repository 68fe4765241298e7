"""How communicators come into being, and the checks of what callers say about ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import driver, errors, lifetime
from ._nccl import ffi, lib
from .deadline import host_seconds
from .library import Library, get_library, load
from .plan import refuse_in_group
from .unique_id import SIZE, UniqueId

if TYPE_CHECKING:
    from .communicator import Communicator

LARGEST = (1 << 31) - 1
HOST_MARK = b"\xffhnickel"  # how ids of the CPU library begin


def chosen(library: str | os.PathLike[str] | Library | None) -> Library:
    """The library of a new communicator."""
    refuse_in_group("making a communicator")
    return get_library() if library is None else load(library)


def as_index(value: Any, name: str, low: int, high: int, meaning: str) -> int:
    """An int of the caller's between low and high."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__} {value!r}")
    number = int(value.__index__())
    if not low <= number <= high:
        raise ValueError(f"{name} must be {meaning}, not {number}")
    return number


def checked_rank(rank: Any, nranks: int, name: str) -> int:
    """A rank of a communicator of nranks."""
    return as_index(rank, name, 0, nranks - 1, f"a rank of the communicator, 0..{nranks - 1}")


def join(comm: Communicator, nranks: int, unique_id: UniqueId | bytes, rank: int, device: int | None) -> None:
    """Come together with the other ranks; blocks until all are there, or the communicator's timeout is over."""
    count = as_index(nranks, "nranks", 1, LARGEST, "at least 1")
    own = checked_rank(rank, count, "rank")
    label = None if device is None else as_index(device, "device", 0, LARGEST, "a device number, 0 or higher")
    identity = checked_id(unique_id, comm.library)
    comm._rank, comm._nranks, comm._device = own, count, label
    if comm.library.kind == "host":
        handle = join_host(comm, count, identity, own)
    else:
        if label is not None:
            driver.use_device(label)
        handle = join_blocking(comm, count, identity, own) if comm._timeout is None else join_polling(comm, count, identity, own)
    comm._begin(handle, label)


def checked_id(unique_id: Any, library: Library) -> Any:
    """The id as a C struct, if it can be one of this library."""
    data = bytes(unique_id if isinstance(unique_id, UniqueId) else UniqueId(unique_id))
    if data == bytes(SIZE):
        raise ValueError("unique_id is all zeros; make one with UniqueId.create() on one rank and carry it to the others")
    if data.startswith(HOST_MARK) != (library.kind == "host"):
        maker = "the CPU library" if library.kind != "host" else "another library than the CPU library"
        raise ValueError(f"unique_id was made by {maker}, but this rank uses {library.label}; all ranks need the same one")
    return UniqueId(data).struct()


def join_host(comm: Communicator, nranks: int, identity: Any, rank: int) -> Any:
    """The CPU library keeps the deadline by itself."""
    table, out = comm.library.table, ffi.new("ncclComm_t *")
    if comm._timeout is not None:
        lib.nickelCommSetTimeout(table, ffi.NULL, host_seconds(comm._timeout))
    try:
        code = lib.ncclCommInitRank(table, out, nranks, identity[0], rank)
    finally:
        if comm._timeout is not None:
            lib.nickelCommSetTimeout(table, ffi.NULL, -1.0)
    if code != lib.ncclSuccess:
        raise comm._error(code, "ncclCommInitRank")
    return out[0]


def join_blocking(comm: Communicator, nranks: int, identity: Any, rank: int) -> Any:
    """NCCL's plain way: waits as long as the library likes."""
    out = ffi.new("ncclComm_t *")
    code = lib.ncclCommInitRank(comm.library.table, out, nranks, identity[0], rank)
    if code != lib.ncclSuccess:
        raise comm._error(code, "ncclCommInitRank")
    return out[0]


def join_polling(comm: Communicator, nranks: int, identity: Any, rank: int) -> Any:
    """A non-blocking communicator, asked again and again; only so does NCCL let go at a deadline."""
    library, out = comm.library, ffi.new("ncclComm_t *")
    if not library.has("ncclCommInitRankConfig"):
        raise errors.NotAvailableError(f"timeout= needs a non-blocking communicator: {library.missing('ncclCommInitRankConfig')}")
    config = ffi.new("ncclConfig_t *", lib.pn_initial_ncclConfig_t)
    config.blocking = 0
    function = "ncclCommInitRankConfig"
    code = lib.ncclCommInitRankConfig(library.table, out, nranks, identity[0], rank, config)
    if code not in (lib.ncclSuccess, lib.ncclInProgress):
        raise comm._error(code, function)
    comm._guard.comm = out[0]
    comm._guard.state = lifetime.READY  # so that polls get through
    try:
        comm._settle(function)
    except BaseException:
        comm.abort()
        raise
    return out[0]


def all_at_once(library: Library, devices: int | Sequence[int]) -> list[Any]:
    """The handles of ncclCommInitAll."""
    if isinstance(devices, (str, bytes)) or not (hasattr(devices, "__index__") or isinstance(devices, Sequence)):
        raise TypeError(f"devices must be their number or a sequence of device numbers, not {devices!r}")
    if isinstance(devices, Sequence):
        labels = [as_index(device, "device", 0, LARGEST, "a device number, 0 or higher") for device in devices]
        ndev, devlist = as_index(len(labels), "number of devices", 1, LARGEST, "at least 1"), ffi.new("int[]", labels)
    else:
        ndev, devlist = as_index(devices, "devices", 1, LARGEST, "at least 1"), ffi.NULL
    out = ffi.new("ncclComm_t[]", ndev)
    library.check(lib.ncclCommInitAll(library.table, out, ndev, devlist), "ncclCommInitAll")
    return list(out)


def as_handle(pointer: Any) -> Any:
    """An ncclComm_t from its address or from cffi."""
    if isinstance(pointer, ffi.CData) and ffi.typeof(pointer) is ffi.typeof("ncclComm_t"):
        handle = pointer
    else:
        handle = ffi.cast("ncclComm_t", as_index(pointer, "pointer", 0, (1 << 64) - 1, "an address"))
    if not handle:
        raise ValueError("pointer is NULL; the address of a communicator is needed")
    return handle
