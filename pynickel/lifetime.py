"""What a communicator is: its states, who it is, and what becomes of a call that did not simply succeed."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import driver, errors, interrupt, report
from ._nccl import ffi, lib
from .arguments import as_name
from .batch import name_of, refuse_in_group
from .buffer import held
from .deadline import checked_timeout, host_seconds, looks
from .enums import Result
from .layout import BOTH, DEVICE, HOST, Gpu
from .library import Library
from .stream import as_stream

if TYPE_CHECKING:
    from .owned import Owned

T = TypeVar("T")

# pn_comm.state: 0 lets calls through, anything else is refused in C before the library is entered.
READY, NEW, FINALIZED, FAILED, ABORTED, CLOSED, IN_PROGRESS, REVOKED, SUSPENDED = range(9)
NAMES = ("ready", "new", "finalized", "failed", "aborted", "closed", "in progress", "revoked", "suspended")
ENDED = (ABORTED, CLOSED)
FINE = (lib.ncclSuccess, lib.ncclInProgress)
ending = threading.Lock()  # whoever sets an ending state under it is the one who ends the communicator
# The thread that held the lock may not exist in a forked child.
os.register_at_fork(after_in_child=lambda: globals().update(ending=threading.Lock()))


class Lifetime:
    """A communicator, apart from what it can do: see Communicator."""

    __slots__ = (
        "__weakref__", "_async", "_blocking", "_born", "_device", "_entry", "_guard", "_kept", "_memory", "_name", "_nranks", "_on_ready",
        "_owned", "_places", "_rank", "_reason", "_scratch", "_things", "_timeout", "_waits", "library",
    )  # fmt: skip

    def _set_up(self, library: Library, name: str | None, timeout: float | None, owned: bool = True) -> None:
        """The object without a communicator yet; its state refuses every call."""
        as_name(name)
        guard = lib.pn_comm_new(library.table)
        if not guard:
            raise MemoryError("no memory for a communicator")
        self._guard = ffi.gc(guard, lib.pn_comm_free)
        self._guard.state = NEW
        self._entry = int(ffi.cast("uintptr_t", self._guard))
        self.library = library
        self._async = ffi.new("ncclResult_t *")
        self._born = lib.pn_generation()
        self._reason = "its init has not succeeded"
        self._name, self._timeout, self._owned = name, timeout, owned
        self._rank, self._nranks = -1, 0
        self._device: int | None = None
        self._scratch: Any = None
        self._memory: str = HOST if library.kind == "host" else BOTH
        self._blocking = True  # False: the library's calls may return before it has done its part
        self._waits = True  # calls return when it has; False: they leave it to wait() and poll()
        self._kept: list[Any] = []  # buffers of what is in progress
        self._on_ready: Callable[[], None] | None = None  # what is left to do when an init in progress is done
        self._things: dict[int, Owned] = {}  # registrations, windows and operators that end with the communicator
        self._places: dict[object, tuple[int | None, ...]] = {}  # by ancestor: the rank there of each rank here

    def _begin(self, comm: Any, device: int | None = None) -> None:
        """Take a communicator that is complete and ask it who it is."""
        self._guard.comm = comm
        answers = []
        for ask in (lib.ncclCommUserRank, lib.ncclCommCount, lib.ncclCommCuDevice):
            answer = ffi.new("int *")
            self.library.check(ask(self.library.table, comm, answer), ask.__name__)
            answers.append(answer[0])
        self._rank, self._nranks, self._device = answers
        if self._memory == BOTH and driver.in_process():
            # By now NCCL has loaded the driver, and it can be asked about memory and streams.
            self._memory = Gpu.of(answers[2])
        if device is not None and self.library.kind == "host":
            self._device = device  # a label there
        if self.library.kind == "host" and self._timeout is not None:
            lib.nickelCommSetTimeout(self.library.table, comm, host_seconds(self._timeout))
        if not self._places:
            self._places = {object(): tuple(range(self._nranks))}
        self._guard.rank, self._guard.nranks = answers[:2]
        self._guard.plain = self._memory in (HOST, BOTH)  # host memory needs no look at what it is
        self._guard.state = READY

    @property
    def rank(self) -> int:
        """This rank, 0 to nranks - 1. (ncclCommUserRank)"""
        return self._rank

    @property
    def nranks(self) -> int:
        """How many ranks the communicator has. (ncclCommCount)"""
        return self._nranks

    @property
    def device(self) -> int | None:
        """The CUDA device; on the CPU library a label. (ncclCommCuDevice)"""
        return self._device

    @property
    def name(self) -> str | None:
        """The name given at init, for error texts."""
        return self._name

    @property
    def handle(self) -> int:
        """The ncclComm_t as a number, 0 once it has ended."""
        return int(ffi.cast("uintptr_t", self._guard.comm))

    @property
    def state(self) -> str:
        """ "ready", "in progress" (calls wait), or why calls are refused: "new", "finalized", "revoked", "suspended", "failed",
        "aborted", "closed", or "forked" in a child of its process."""
        return "forked" if self._born != lib.pn_generation() else NAMES[self._guard.state]

    @property
    def _where(self) -> report.Where:
        """Who this is, for error texts."""
        return report.Where(self._rank, self._nranks, self._device, self._name)

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        version = ".".join(map(str, self.library.version))
        return f"<Communicator{name} rank {self._rank} of {self._nranks}, {self.state}, {self.library.kind} {version}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a communicator lives in its process and cannot be pickled; send a UniqueId and make one on each side")

    def __del__(self) -> None:
        guard = getattr(self, "_guard", None)
        if ENDED is None:  # the interpreter ends, and has taken this module apart
            return
        if guard is not None and guard.state not in (NEW, *ENDED) and self._owned and self.state != "forked":
            warnings.warn(f"{self!r} was never closed; use close(), abort() or a with block", ResourceWarning, stacklevel=2)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _require_ready(self, function: str) -> None:
        """Wait for what is in progress; raise if calls would be refused."""
        state = self._guard.state
        if state == IN_PROGRESS:
            self._wait_if_in_progress(function)
            state = self._guard.state
        if state != READY or self._born != lib.pn_generation():
            raise self._error(lib.PN_FORKED if self._born != lib.pn_generation() else lib.PN_CLOSED, function)

    def _after(self, code: int, call: Callable[..., int], args: tuple[Any, ...], keep: Any) -> None:
        """After a call that did not return ncclSuccess: make it when the communicator is ready, note that it is in progress, or raise."""
        if code == lib.PN_CLOSED and self._guard.state == IN_PROGRESS:
            self._wait_if_in_progress(name_of(call))
            code = call(self._guard, *args)
        if code == lib.ncclInProgress:
            self._begun([held(keep)], name_of(call))
        elif code != lib.ncclSuccess:
            raise self._error(code, name_of(call))

    def _finish(self, call: Callable[..., int], *args: Any) -> None:
        """Make a call and wait until it is done, on a non-blocking communicator too."""
        self._wait_if_in_progress(name_of(call))
        code = call(self._guard, *args)
        if code not in FINE:
            raise self._error(code, name_of(call))
        if code == lib.ncclInProgress or not self._blocking:
            self._until_done(name_of(call), [args])

    def _begun(self, keep: list[Any], function: str) -> None:
        """A call is in progress: wait for it, or leave that to wait(), poll() and the next call."""
        if self._waits:
            self._until_done(function, keep)
        else:
            self._kept += keep
            self._move(READY, IN_PROGRESS)

    def _until_done(self, function: str, keep: list[Any]) -> None:
        """Wait for a call that has begun. One that is given up in progress has failed the communicator, which keeps its memory."""
        try:
            self._poll(function, None)
        except BaseException as error:
            with suppress(errors.NCCLError):
                if self.get_async_error() == lib.ncclInProgress:
                    self._kept += keep
                    self._move(READY, FAILED, f"{function} was given up while it was in progress ({type(error).__name__})")
            raise

    def _wait_if_in_progress(self, function: str) -> None:
        """Return when nothing is in progress; BusyError at the communicator's timeout, if what is in progress has not failed before."""
        for is_last in looks(self._timeout):
            if self._guard.state != IN_PROGRESS or self.poll():
                return
            if is_last:
                text = f"{function} was not called: the communicator was not ready within {self._timeout:g} s; use wait() or poll()"
                raise errors.BusyError(f"{text} ({self._where}; {self.library.label})", function=function, **self._where._asdict())

    def _error(self, code: int, function: str, said: str | None = None, place: tuple[int, int] | None = None) -> BaseException:
        """The exception for a call that returned `code`; notes whether the communicator is still good."""
        refusals: dict[int, tuple[type[errors.NCCLError], str]] = {
            lib.PN_FORKED: (errors.ForkedError, "the communicator belongs to the parent process; make a new one in the child"),
            lib.PN_CLOSED: (errors.CommunicatorClosedError, f"the communicator is {self.state}: {self._reason}"),
            lib.PN_BUSY: (errors.BusyError, "another thread is inside the communicator; one thread at a time may use it"),
        }
        if code in refusals:
            kind, text = refusals[code]
            label = f"({self._where}; {self.library.label})"
            return kind(f"{function} was not called: {text} {label}", function=function, **self._where._asdict())
        failed = report.failure(code, function, self.library, self._where, said, place)
        self._note_failure(failed)
        try:
            interrupt.reraise()
        except BaseException as raised:  # what a signal handler raised during the call is the real reason of its end
            return raised
        return failed

    def _note_failure(self, failed: errors.NCCLError) -> None:
        """Refuse later calls if the library says that the communicator is broken, and remember why."""
        if lib.comm_ncclCommGetAsyncError(self._guard, self._async) != lib.ncclSuccess:
            return
        if self._async[0] not in FINE:
            self._move(READY, FAILED, f"{failed.function}: {(failed.last_error or failed.library_text).splitlines()[0]}")

    def _inside(self, function: str, call: Callable[[Any], T]) -> T:
        """What `call` makes of the handle, with this thread alone in the communicator, whatever its state is short of ended.

        No context manager: Ctrl-C between its functions would leave the communicator busy for ever.
        """
        guard, inside = self._guard, ffi.new("int *")
        state = guard.state
        try:
            code = lib.PN_CLOSED if state == NEW or state in ENDED else lib.pn_enter_at(guard, state, inside)
            if code == 0:
                return call(guard.comm)
        finally:
            if inside[0]:
                lib.pn_leave(guard)
        raise self._error(code, function)

    # -- looking and waiting -----------------------------------------------------------------------------------------

    def get_async_error(self) -> int:
        """Result.SUCCESS, Result.IN_PROGRESS, or the error that has broken it; an unknown number as int. (ncclCommGetAsyncError)"""
        code, found = self._look()
        if code != lib.ncclSuccess:
            raise self._error(code, "ncclCommGetAsyncError")
        if self._guard.state == IN_PROGRESS and found != lib.ncclInProgress:
            self._settle(found)
        return Result(found) if found in Result._value2member_map_ else found

    def _look(self) -> tuple[int, int]:
        """What the library returns for the look, and what it has seen."""
        table, out = self.library.table, self._async
        return self._inside("ncclCommGetAsyncError", lambda comm: (lib.ncclCommGetAsyncError(table, comm, out), out[0]))

    def _settle(self, found: int) -> None:
        """What was in progress is done, well or badly. The CPU library tells an error once that leaves the communicator usable."""
        self._kept.clear()
        if found != lib.ncclSuccess and self._is_broken():
            said = report.last_error(self.library)
            self._move(IN_PROGRESS, FAILED, said.splitlines()[0] if said else f"result {found} of what was in progress")
        elif self._move(IN_PROGRESS, READY) and self._on_ready is not None:
            do, self._on_ready = self._on_ready, None
            do()

    def _is_broken(self) -> bool:
        """Whether the library says so, once more."""
        code, found = self._look()
        return code != lib.ncclSuccess or found not in FINE

    def poll(self) -> bool:
        """Whether nothing is in progress; raises the communicator's error. Only non-blocking communicators ever say False."""
        found = self.get_async_error()
        if found not in FINE:
            raise self._error(found, "ncclCommGetAsyncError")
        return bool(found == lib.ncclSuccess)

    def wait(self, stream: Any = None, timeout: float | None = None) -> None:
        """Return when the work queued so far is done: on `stream` with a GPU, in the background with non-blocking communicators.

        Raises the communicator's error as soon as it shows, and WaitTimeoutError after `timeout` seconds.
        """
        refuse_in_group("wait()")
        handle = as_stream(stream)
        if self._guard.state != IN_PROGRESS:
            self._require_ready("wait()")
        self._poll("wait()", checked_timeout(timeout), lambda: self._memory != DEVICE or driver.is_done(handle))

    def _poll(self, function: str, timeout: float | None, is_done: Callable[[], bool] = lambda: True) -> None:
        """Look until nothing is in progress and is_done(); raise the communicator's error or the deadline's."""
        limit = timeout if timeout is not None else self._timeout
        for is_last in looks(limit):
            found = self.get_async_error()
            if found not in FINE:
                raise self._error(found, function)
            if found == lib.ncclSuccess and is_done():
                return
            if is_last:
                text = f"{function} was not done within {limit:g} s ({self._where}; {self.library.label})"
                raise errors.WaitTimeoutError(text, function=function, **self._where._asdict())

    def _move(self, old: int, new: int, reason: str = "") -> bool:
        """Go from one state to another; False if the communicator is not in the first."""
        with ending:
            if self._guard.state != old:
                return False
            self._guard.state, self._reason = new, reason or self._reason
            return True
