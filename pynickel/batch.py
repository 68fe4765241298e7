"""Operations written down in C and launched together in one call: group(), and what Plan stands on."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import interrupt, report
from ._nccl import ffi, lib
from .errors import BusyError, InvalidUsageError

if TYPE_CHECKING:
    from .library import Library
    from .lifetime import Lifetime

# By the call of a communicator: what writes the same call down.
PLANNED = {
    getattr(lib, f"comm_{name[5:]}"): getattr(lib, name) for name in dir(lib) if name.startswith("plan_nccl")
}  # fmt: skip


class Operation(NamedTuple):
    """One call of the library: `call(pn_comm, *args)`; `keep` holds its buffers alive."""

    comm: Lifetime
    call: Callable[..., int]
    args: tuple[Any, ...]
    keep: Any


class Batch:
    """A list of operations; `launch` is one NCCL group of all of them, in order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._plan: Any = None

    def __len__(self) -> int:
        return len(self.operations)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds addresses of this process and cannot be pickled or copied; make one on each side")

    def add(self, operation: Operation) -> None:
        """Write an operation down behind the others."""
        comm = operation.comm
        if comm._guard.state or comm._born != lib.pn_generation():  # 0 is ready; the name of the call is only made where it is needed
            comm._require_ready(name_of(operation.call))
        if self.operations and self.operations[0].comm._blocking is not comm._blocking:
            raise InvalidUsageError(
                f"{comm!r} is {'' if comm._blocking else 'non-'}blocking and another communicator of this group is not; "
                "the operations of one group are on blocking or on non-blocking communicators"
            )
        self.operations.append(operation)  # before C knows it: what C has must be kept alive, whatever happens now
        if self._plan is None:
            self._plan = new_plan()
        try:
            code = PLANNED[operation.call](self._plan, comm._guard, *operation.args)
        except (OverflowError, TypeError):  # a number that C cannot hold
            self.operations.pop()
            raise
        if code:
            self.operations.pop()
            raise refusal(code)

    def extend(self, other: Batch) -> None:
        """Put all operations of another batch behind the own ones."""
        if not other.operations:
            return
        self.operations += other.operations
        if self._plan is None:
            self._plan = new_plan()
        if code := lib.pn_plan_extend(self._plan, other._plan):
            del self.operations[-len(other.operations) :]
            raise refusal(code)

    def launch(self, stream: int | None = None) -> None:
        """Start all operations, on one stream or each on its own; on any failure none is started."""
        if not self.operations:
            return
        code = lib.pn_plan_launch(self._plan) if stream is None else lib.pn_plan_launch_on(self._plan, stream)
        if code:
            self._after(code, lambda: self.launch(stream))

    def simulate(self) -> float:
        """NCCL's estimate in microseconds for all operations queued so far; nothing is started, and they stay queued."""
        if not self.operations:
            return 0.0
        libraries = {id(operation.comm.library): operation.comm.library for operation in self.operations}
        if len(libraries) > 1:
            raise InvalidUsageError("simulate() is for the operations of one library, and this group has several")
        if not self.operations[0].comm._blocking:
            raise InvalidUsageError("simulate() needs blocking communicators: with others NCCL starts the operations")
        (library,) = libraries.values()
        if not library.has("ncclGroupSimulateEnd"):
            raise library.missing("ncclGroupSimulateEnd")
        info = ffi.new("ncclSimInfo_t *", lib.pn_initial_ncclSimInfo_t)
        if code := lib.pn_plan_simulate(self._plan, info):
            self._after(code, lambda: None, "ncclGroupSimulateEnd")
        return float(info.estimatedTime)

    def _after(self, code: int, again: Callable[[], None], end: str = "ncclGroupEnd") -> None:
        """After a launch that did not simply succeed: wait, try again, or raise."""
        failed: int = self._plan.failed
        if code in (lib.PN_BUSY, lib.PN_CLOSED, lib.PN_FORKED):
            self._refused(code, again)
        elif 0 <= failed < len(self.operations):
            operation = self.operations[failed]
            said = ffi.string(self._plan.text).decode(errors="replace").strip()
            place = (failed, len(self.operations))
            raise operation.comm._error(code, name_of(operation.call), said, place)
        elif failed == lib.PN_AT_START:
            comms = comms_of(self.operations)
            raise group_error(code, "ncclGroupStart", comms[0].library, comms)
        else:
            self._ended(end)

    def _refused(self, code: int, again: Callable[[], None]) -> None:
        """No library was entered: a communicator has ended, is in use, or is at work in the background and will be ready."""
        waiting = False
        for comm in comms_of(self.operations):
            waiting = waiting or comm.state == "in progress"
            comm._require_ready("ncclGroupStart")
        if code == lib.PN_CLOSED and waiting:
            again()
        else:
            raise self.operations[0].comm._error(lib.PN_BUSY, "ncclGroupStart")

    def _ended(self, end: str) -> None:
        """Raise what the groups' ends have told, or note that non-blocking communicators are at work."""
        comms = comms_of(self.operations)
        for library in {id(comm.library): comm.library for comm in comms}.values():
            ours = [comm for comm in comms if comm.library is library]
            code = lib.pn_plan_result(self._plan, library.table)
            if code == lib.ncclInProgress:
                for comm in ours:
                    comm._begun([operation.keep for operation in self.operations if operation.comm is comm], end)
            elif code != lib.ncclSuccess:
                raise group_error(code, end, library, ours)


class Group(Batch):
    """What `group` returns; holds the operations of one `with` block."""

    def __init__(self) -> None:
        super().__init__()
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
            self._outer.extend(self)
        else:
            self.launch()


open_groups: dict[int, Group] = {}  # by thread: its innermost group; empty means that nobody has to look further


def group() -> Group:
    """A context manager: the collectives, sends and receives in its body start together, when it is left.

    Each thread has its own group. Inner groups start with the outermost one. A body that raises starts nothing. Results
    are there after the exit; calls of the low-level `lib` are not part of it. `simulate()` of what `with group() as g`
    gives estimates the operations queued so far. (ncclGroupStart, ncclGroupEnd)

    Arguments are checked where they are given. InvalidUsageError: blocking and non-blocking communicators in one group;
    barrier(), wait(), split() and the like inside it. An error of the library is raised at the exit: its `operation` is the
    index of the one that was refused, and none has started then.
    """
    return Group()


def refuse_in_group(what: str) -> None:
    """Raise inside group(), for what has to happen at once."""
    if open_groups and get_ident() in open_groups:
        raise InvalidUsageError(f"{what} cannot be part of group(): do it before or after the with block")


def run(operations: Sequence[Operation]) -> None:
    """Start operations together: now, or with this thread's open group."""
    queue = open_groups.get(get_ident())
    batch = Batch()
    for operation in operations:
        batch.add(operation)
    if queue is None:
        batch.launch()
    else:
        queue.extend(batch)


def new_plan() -> Any:
    """An empty plan in C."""
    plan = lib.pn_plan_new()
    if not plan:
        raise MemoryError("no memory for a group")
    return ffi.gc(plan, lib.pn_plan_free)


def refusal(code: int) -> BaseException:
    """Why a plan in C has not changed."""
    if code == lib.PN_BUSY:
        return BusyError("another thread is using this plan; one thread at a time may")
    return MemoryError("no memory for an operation")


def comms_of(operations: Sequence[Operation]) -> list[Lifetime]:
    """Each communicator once."""
    return list({id(operation.comm): operation.comm for operation in operations}.values())


def group_error(code: int, function: str, library: Library, comms: list[Lifetime]) -> BaseException:
    """The exception for a group's end; notes which communicators are broken."""
    error = report.failure(code, function, library, comms[0]._where if len(comms) == 1 else report.NOWHERE)
    for comm in comms:
        comm._note_failure(error)
    try:
        interrupt.reraise()
    except BaseException as raised:  # what a signal handler raised during the call is the real reason of its end
        return raised
    return error


def name_of(call: Callable[..., int]) -> str:
    """The C function behind a guarded call."""
    return call.__name__.removeprefix("comm_")
