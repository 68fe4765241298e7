"""group(): operations queued in Python and handed to the library in one go, at a clean exit."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import interrupt, report
from ._nccl import ffi, lib
from .errors import InvalidUsageError

if TYPE_CHECKING:
    from .library import Library
    from .lifetime import Lifetime

FINE = (lib.ncclSuccess, lib.ncclInProgress)
NO_TYPE = -1


class Operation(NamedTuple):
    """One call of the library: `call(pn_comm, *args)`; `keep` holds its buffers alive."""

    comm: Lifetime
    call: Callable[..., int]
    args: tuple[Any, ...]
    keep: Any


open_groups: dict[int, Group] = {}  # by thread: its innermost group; empty means that nobody has to look further


class Group:
    """What `group` returns; holds the operations of one `with` block."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._outer: Group | None = None
        self._thread = 0

    def __enter__(self) -> Group:
        if self._thread:
            raise InvalidUsageError("this group() has been entered before; make a new one for each with block")
        self._thread = get_ident()
        self._outer = open_groups.get(self._thread)
        open_groups[self._thread] = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if get_ident() != self._thread or open_groups.get(self._thread) is not self:
            raise InvalidUsageError("a group() must be left by the thread that entered it, inner groups first")
        if self._outer is None:
            del open_groups[self._thread]
        else:
            open_groups[self._thread] = self._outer
        if kind is not None:
            return
        if self._outer is not None:
            self._outer.operations += self.operations
        elif self.operations:
            launch(self.operations)


def group() -> Group:
    """A context manager: the collectives, sends and receives in its body start together, when it is left.

    Each thread has its own group. Inner groups start with the outermost one. A body that raises starts nothing. Results
    are there after the exit; calls of the low-level `lib` are not part of it.
    """
    return Group()


def refuse_in_group(what: str) -> None:
    """Raise inside group(), for what has to happen at once."""
    if open_groups and get_ident() in open_groups:
        raise InvalidUsageError(f"{what} cannot be part of group(): do it before or after the with block")


def run(operations: Sequence[Operation]) -> None:
    """Start operations together: now, or with this thread's open group."""
    queue = open_groups.get(get_ident())
    if queue is None:
        launch(operations)
        return
    for operation in operations:
        operation.comm._require_open(name_of(operation.call))
    queue.operations += operations


def launch(operations: Sequence[Operation]) -> None:
    """One NCCL group of all operations, in order; on any failure none is started."""
    for operation in operations:
        operation.comm._require_open(name_of(operation.call))
    libraries: dict[int, Library] = {id(operation.comm.library): operation.comm.library for operation in operations}
    opened: list[Library] = []
    entered: dict[int, Operation] = {}  # by library: an operation that it has taken, which a failure elsewhere must undo
    error: BaseException | None = None
    try:
        for library in libraries.values():
            library.check(lib.ncclGroupStart(library.table), "ncclGroupStart")
            opened.append(library)
        for operation in operations:
            code = operation.call(operation.comm._guard, *operation.args)
            if code not in FINE:
                raise operation.comm._error(code, name_of(operation.call))
            entered[id(operation.comm.library)] = operation
    except BaseException as caught:  # an interrupt too: half a group must not start
        error = caught
        for operation in entered.values():
            spoil(operation)
    ends = [(library, lib.ncclGroupEnd(library.table)) for library in opened]
    if error is not None:
        raise error
    finish(operations, ends)


def finish(operations: Sequence[Operation], ends: Sequence[tuple[Library, int]]) -> None:
    """Raise what a group's end has told, or wait for non-blocking communicators to take the work."""
    comms = {id(operation.comm): operation.comm for operation in operations}
    for library, code in ends:
        ours = [comm for comm in comms.values() if comm.library is library]
        if code == lib.ncclInProgress:
            for comm in ours:
                comm._settle("ncclGroupEnd")
        elif code != lib.ncclSuccess:
            error = report.failure(code, "ncclGroupEnd", library, ours[0]._where if len(ours) == 1 else report.NOWHERE)
            for comm in ours:
                comm._note_failure(error)
            interrupt.reraise()
            raise error


def spoil(operation: Operation) -> None:
    """Make the open group of this library fail: an error inside a group is remembered, and its end then starts nothing."""
    lib.ncclBroadcast(operation.comm.library.table, ffi.NULL, ffi.NULL, 1, NO_TYPE, 0, operation.comm._guard.comm, ffi.NULL)


def name_of(call: Callable[..., int]) -> str:
    """The C function behind a guarded call."""
    return call.__name__.removeprefix("comm_")
