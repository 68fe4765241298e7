"""From a result code to the exception that tells the whole story: what, where, in which library, and what is often the cause."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors
from ._nccl import ffi, lib

if TYPE_CHECKING:
    from .library import Library

CLASSES: dict[int, type[errors.NCCLError]] = {
    lib.ncclUnhandledCudaError: errors.CudaError,
    lib.ncclSystemError: errors.NCCLSystemError,
    lib.ncclInternalError: errors.InternalError,
    lib.ncclInvalidArgument: errors.InvalidArgumentError,
    lib.ncclInvalidUsage: errors.InvalidUsageError,
    lib.ncclRemoteError: errors.RemoteError,
    lib.ncclTimeout: errors.WaitTimeoutError,
    lib.PN_MISSING: errors.NotAvailableError,
    lib.PN_BUSY: errors.BusyError,
    lib.PN_CLOSED: errors.CommunicatorClosedError,
    lib.PN_FORKED: errors.ForkedError,
}

# The CPU library says more than the code does: the kind of the thread's last error, which goes with these codes and is an earlier error's
# where the code is another.
ARGUMENT, USAGE = lib.ncclInvalidArgument, lib.ncclInvalidUsage
KINDS: dict[int, tuple[type[errors.NCCLError], tuple[int, ...]]] = {
    lib.nickelKindMismatch: (errors.CollectiveMismatchError, (USAGE,)),
    lib.nickelKindDeadlock: (errors.DeadlockError, (USAGE,)),
    lib.nickelKindClosed: (errors.CommunicatorClosedError, (ARGUMENT, USAGE)),
    lib.nickelKindAborted: (errors.AbortedError, (USAGE,)),
    lib.nickelKindForked: (errors.ForkedError, (USAGE,)),
    lib.nickelKindBusy: (errors.BusyError, (ARGUMENT, USAGE)),
    lib.nickelKindRemote: (errors.RemoteError, (lib.ncclRemoteError,)),
    lib.nickelKindTimeout: (errors.WaitTimeoutError, (lib.ncclTimeout,)),
    lib.nickelKindInterrupted: (errors.AbortedError, (USAGE,)),
    lib.nickelKindDuplicateRank: (errors.RendezvousError, (USAGE,)),
    lib.nickelKindWorldSize: (errors.RendezvousError, (USAGE,)),
    lib.nickelKindIdReused: (errors.RendezvousError, (USAGE,)),
    lib.nickelKindIdStale: (errors.RendezvousError, (USAGE, lib.ncclSystemError)),
    lib.nickelKindIdInvalid: (errors.RendezvousError, (ARGUMENT,)),
    lib.nickelKindVersion: (errors.RendezvousError, (USAGE,)),
    lib.nickelKindOverlap: (errors.OverlapError, (ARGUMENT,)),
}

NAMES = {
    getattr(lib, name): name
    for name in (
        "ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument",
        "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress", "ncclTimeout",
    )
}  # fmt: skip

# What was the reason most of the time; not said of the CPU library, which knows its reasons.
CAUSES: dict[int, tuple[str, ...]] = {
    lib.ncclUnhandledCudaError: (
        "no GPU or no driver here, or a driver older than the CUDA version the library was built for",
        "a device number that does not exist, or GPU memory that is used up",
        "a fault in an earlier kernel that shows only now",
    ),
    lib.ncclSystemError: (
        "too little shared memory (/dev/shm in a container) or too few open files",
        "a network interface or address the ranks cannot reach each other by (NCCL_SOCKET_IFNAME)",
    ),
    lib.ncclInternalError: ("different libraries or versions on the ranks", "memory that was freed or overwritten"),
    lib.ncclInvalidArgument: (
        "a data type or reduction that this version of the library does not know",
        "a communicator that is not ready or was damaged",
    ),
    lib.ncclInvalidUsage: (
        "two ranks on one GPU (NCCL 2.30 allows it with NCCL_MULTI_RANK_GPU_ENABLE=1)",
        "ranks with different versions of NCCL",
        "a group that was opened and closed in different places",
    ),
    lib.ncclRemoteError: ("a peer crashed, was killed, or lost its network",),
}


class Where(NamedTuple):
    """Which communicator a call was about."""

    rank: int | None = None
    nranks: int | None = None
    device: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        if self.rank is None:
            return ""
        device = "" if self.device is None else f", device {self.device}"
        return f"rank {self.rank} of {self.nranks}{device}" + (f", communicator {self.name!r}" if self.name else "")


NOWHERE = Where()


def text(pointer: Any) -> str:
    """A C string of the library, copied."""
    return ffi.string(pointer).decode(errors="replace") if pointer else ""


def last_error(library: Library) -> str:
    """The library's last warning; on NVIDIA's, that of the whole process."""
    return text(lib.ncclGetLastError(library.table, ffi.NULL)).strip()


def failure(
    code: int, function: str, library: Library, where: Where = NOWHERE, said: str | None = None, place: tuple[int, int] | None = None
) -> errors.NCCLError:
    """The exception for a code that `function` has just returned on this thread.

    `said`: the library's words, where they were copied at once; `place`: which of how many operations of a group it was.
    """
    if code == lib.PN_MISSING:
        return library.missing(function)
    kind = lib.nickelErrorKind(library.table, ffi.NULL) if library.kind == "host" else 0
    error_class, codes = KINDS.get(kind, (CLASSES.get(code, errors.NCCLError), (code,)))
    last = last_error(library) if said is None else said
    if code not in codes:
        kind, error_class, last = 0, CLASSES.get(code, errors.NCCLError), said or ""
    own = text(lib.ncclGetErrorString(library.table, code))
    causes = () if library.kind == "host" else CAUSES.get(code, ())
    details: dict[str, Any] = {
        "code": code, "function": function, "library_text": own, "last_error": last, "causes": causes,
        "rank": where.rank, "nranks": where.nranks, "device": where.device,
        "library_path": library.path, "library_version": library.version, "operation": place[0] if place else None,
    }  # fmt: skip
    if kind in (lib.nickelKindRemote, lib.nickelKindTimeout):
        details |= about_ranks(library, error_class)
    lines = [f"{function} failed with {NAMES.get(code, 'code')} ({code}): {own or 'the library has no text for it'}"]
    lines += [f"it was operation {place[0]} of 0..{place[1] - 1}; none was started"] if place else []
    lines += [f"{last}"] if last else []
    lines += [f"often because of: {cause}" for cause in causes]
    lines += [f"({'; '.join(filter(None, [str(where), library.label]))})"]
    return error_class("\n  ".join(lines), **details)


def about_ranks(library: Library, error_class: type[errors.NCCLError]) -> dict[str, Any]:
    """Which ranks the CPU library's last error names, as attributes of the exception."""
    room = 4096
    ranks, pids = ffi.new("int[]", room), ffi.new("int[]", room)
    found = min(room, lib.nickelErrorRanks(library.table, ffi.NULL, ranks, pids, room))
    if error_class is errors.WaitTimeoutError:
        return {"missing": tuple(ranks[0:found])}
    return {"rank": ranks[0], "pid": pids[0] or None} if found > 0 else {}
