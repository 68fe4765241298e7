"""How communicators come into being, and the checks of what callers say about ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from . import driver, environment, errors, lifetime
from ._nccl import ffi, lib
from .arguments import LARGEST, as_index
from .batch import refuse_in_group
from .config import Config
from .deadline import host_seconds
from .ending import Ending
from .library import Library, get_library, load
from .unique_id import SIZE, UniqueId

HOST_MARK = b"\xffhnickel"  # how ids of the CPU library begin


def chosen(library: str | os.PathLike[str] | Library | None) -> Library:
    """The library of a new communicator."""
    refuse_in_group("making a communicator")
    found = get_library() if library is None else load(library)
    environment.look(found)
    return found


def checked_rank(rank: Any, nranks: int, name: str) -> int:
    """A rank of a communicator of nranks."""
    return as_index(rank, name, 0, nranks - 1, f"a rank of the communicator, 0..{nranks - 1}")


def join(
    comm: Ending,
    nranks: int,
    unique_id: UniqueId | bytes | Sequence[UniqueId | bytes],
    rank: int,
    device: int | None,
    config: Config | None,
    grow: bool = False,
) -> None:
    """Come together with the other ranks; blocks until all are there, or the communicator's timeout is over.

    With blocking=False in the config it only begins. `grow`: the others are a communicator that grows.
    """
    count = as_index(nranks, "nranks", 1, LARGEST, "at least 1")
    own = checked_rank(rank, count, "rank")
    label = None if device is None else as_index(device, "device", 0, LARGEST, "a device number, 0 or higher")
    identities = checked_ids(unique_id, count, comm.library)
    comm._rank, comm._nranks, comm._device = own, count, label
    settings = chosen_settings(comm, config)
    if label is not None and comm.library.kind != "host":
        driver.use_device(label)
    out = ffi.new("ncclComm_t *")
    with host_deadline(comm):
        code, function = begin(comm.library, out, count, own, identities, settings, grow)
    if code not in lifetime.FINE:
        raise comm._error(code, function)
    if code == lib.ncclSuccess and comm._blocking:
        comm._begin(out[0], label)
    else:
        make_progress(comm, out[0], label, function)


def chosen_settings(comm: Ending, config: Config | None) -> Any:
    """The configuration as a C struct or NULL; notes whether the communicator blocks.

    On other libraries than the CPU library a deadline needs a non-blocking communicator: only so does NCCL let go.
    """
    library, function = comm.library, "ncclCommInitRankConfig"
    asked = None if config is None else checked_config(config).blocking
    deadline = comm._timeout is not None and library.kind != "host"
    if deadline and asked:
        raise ValueError(f"timeout= needs a non-blocking communicator with {library.label}, but the config says blocking=True")
    if deadline and not library.has(function):
        raise errors.NotAvailableError(f"timeout= needs a non-blocking communicator: {library.missing(function)}")
    comm._blocking = not deadline if asked is None else asked
    comm._waits = asked is not False
    if config is not None:
        return config.struct(library, function, comm._blocking if deadline else None)
    if not deadline:
        return ffi.NULL
    settings = ffi.new("ncclConfig_t *", lib.pn_initial_ncclConfig_t)
    settings.blocking = 0
    return settings


def begin(library: Library, out: Any, nranks: int, rank: int, ids: Any, settings: Any, grow: bool) -> tuple[int, str]:
    """The library's init: its result and its name."""
    table = library.table
    if grow:
        return lib.ncclCommGrow(table, ffi.NULL, nranks, ids, rank, out, settings), "ncclCommGrow"
    if len(ids) > 1:
        return lib.ncclCommInitRankScalable(table, out, nranks, rank, len(ids), ids, settings), "ncclCommInitRankScalable"
    if settings:
        return lib.ncclCommInitRankConfig(table, out, nranks, ids[0], rank, settings), "ncclCommInitRankConfig"
    return lib.ncclCommInitRank(table, out, nranks, ids[0], rank), "ncclCommInitRank"


def make_progress(comm: Ending, handle: Any, label: int | None, function: str) -> None:
    """An init that is in progress: wait for it, or leave that to the caller."""
    comm._guard.comm = handle
    comm._on_ready = lambda: comm._begin(handle, label)
    comm._move(lifetime.NEW, lifetime.IN_PROGRESS, "its init is in progress")
    if not comm._waits:
        return
    try:
        comm._poll(function, None)
    except BaseException:
        comm.abort()
        raise


@contextmanager
def host_deadline(comm: Ending) -> Iterator[None]:
    """The CPU library keeps the deadline of an init by itself."""
    if comm.library.kind != "host" or comm._timeout is None:
        yield
        return
    lib.nickelCommSetTimeout(comm.library.table, ffi.NULL, host_seconds(comm._timeout))
    try:
        yield
    finally:
        lib.nickelCommSetTimeout(comm.library.table, ffi.NULL, -1.0)


def checked_config(config: Any) -> Config:
    """The caller's Config."""
    if not isinstance(config, Config):
        raise TypeError(f"config must be a Config or None, not {config!r}")
    return config


def checked_ids(unique_id: Any, nranks: int, library: Library) -> Any:
    """One id, or several for large communicators, as a C array."""
    several = isinstance(unique_id, (list, tuple)) and not all(isinstance(part, int) for part in unique_id)
    given = list(unique_id) if several else [unique_id]
    if len(given) > nranks:
        raise ValueError(f"unique_id has {len(given)} ids, but at most one per rank, {nranks}, can be used")
    ids = ffi.new("ncclUniqueId[]", len(given))
    for i, one in enumerate(given):
        ids[i] = checked_id(one, library)[0]
    return ids


def checked_id(unique_id: Any, library: Library) -> Any:
    """The id as a C struct, if it can be one of this library."""
    data = bytes(unique_id if isinstance(unique_id, UniqueId) else UniqueId(unique_id))
    if data == bytes(SIZE):
        raise ValueError("unique_id is all zeros; make one with UniqueId.create() on one rank and carry it to the others")
    if data.startswith(HOST_MARK) != (library.kind == "host"):
        maker = "the CPU library" if library.kind != "host" else "another library than the CPU library"
        raise ValueError(f"unique_id was made by {maker}, but this rank uses {library.label}; all ranks need the same one")
    return UniqueId(data).struct()


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
