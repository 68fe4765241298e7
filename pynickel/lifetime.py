"""The life of a communicator: made, ready, ended; its states, deadlines, and what becomes of a failed call."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from . import driver, errors, interrupt, report
from ._nccl import ffi, lib
from .deadline import checked_timeout, host_seconds, looks
from .enums import Result
from .layout import BOTH, DEVICE, HOST
from .library import Library
from .plan import refuse_in_group
from .stream import as_stream

# pn_comm.state: 0 lets calls through, anything else is refused in C before the library is entered.
READY, NEW, FINALIZED, FAILED, ABORTED, CLOSED = 0, 1, 2, 3, 4, 5
NAMES = {READY: "ready", NEW: "new", FINALIZED: "finalized", FAILED: "failed", ABORTED: "aborted", CLOSED: "closed"}
ENDED = (ABORTED, CLOSED)
ending = threading.Lock()  # whoever sets an ending state under it is the one who ends the communicator
log = logging.getLogger("pynickel")
# The thread that held the lock may not exist in a forked child.
os.register_at_fork(after_in_child=lambda: globals().update(ending=threading.Lock()))


class Lifetime:
    """What a communicator is, apart from what it can do: see Communicator."""

    __slots__ = (
        "__weakref__", "_async", "_born", "_device", "_guard", "_memory", "_name", "_nranks", "_owned", "_rank", "_reason",
        "_scratch", "_timeout", "library",
    )  # fmt: skip

    def _set_up(self, library: Library, name: str | None, timeout: float | None, owned: bool = True) -> None:
        """The object without a communicator yet; its state refuses every call."""
        guard = lib.pn_comm_new(library.table)
        if not guard:
            raise MemoryError("no memory for a communicator")
        self._guard = ffi.gc(guard, lib.pn_comm_free)
        self._guard.state = NEW
        self.library = library
        self._async = ffi.new("ncclResult_t *")
        self._born = lib.pn_generation()
        self._reason = "its init has not succeeded"
        self._name, self._timeout, self._owned = name, timeout, owned
        self._rank, self._nranks = -1, 0
        self._device: int | None = None
        self._scratch: Any = None
        self._memory = HOST if library.kind == "host" else BOTH

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
            self._memory = DEVICE  # by now NCCL has loaded the driver, and it can be asked about memory and streams
        if device is not None and self.library.kind == "host":
            self._device = device  # a label there
        if self.library.kind == "host" and self._timeout is not None:
            lib.nickelCommSetTimeout(self.library.table, comm, host_seconds(self._timeout))
        self._guard.state = READY

    @property
    def rank(self) -> int:
        """This rank, 0 to nranks - 1."""
        return self._rank

    @property
    def nranks(self) -> int:
        """How many ranks the communicator has."""
        return self._nranks

    @property
    def device(self) -> int | None:
        """The CUDA device; on the CPU library a label."""
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
        """ "new", "ready", "finalized", "failed", "aborted", "closed", or "forked" in a child of its process."""
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
        if guard is not None and guard.state in (READY, FINALIZED, FAILED) and self._owned and self.state != "forked":
            warnings.warn(f"{self!r} was never closed; use close(), abort() or a with block", ResourceWarning, stacklevel=2)

    # -- after a call ------------------------------------------------------------------------------------------------

    def _require_open(self, function: str) -> None:
        """Raise if calls would be refused."""
        if self._guard.state != READY or self._born != lib.pn_generation():
            raise self._error(lib.PN_FORKED if self._born != lib.pn_generation() else lib.PN_CLOSED, function)

    def _conclude(self, code: int, function: str) -> None:
        """After a call that did not return ncclSuccess: wait while it is in progress, else raise."""
        if code == lib.ncclInProgress:
            self._settle(function)
        else:
            raise self._error(code, function)

    def _error(self, code: int, function: str) -> BaseException:
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
        failed = report.failure(code, function, self.library, self._where)
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
        if self._async[0] not in (lib.ncclSuccess, lib.ncclInProgress):
            self._end(FAILED, f"{failed.function}: {(failed.last_error or failed.library_text).splitlines()[0]}")

    def _settle(self, function: str, timeout: float | None = None) -> None:
        """Wait until a non-blocking communicator has done its part of a call; raise its error or the deadline's."""
        self._poll(function, timeout, lambda: True)

    def _poll(self, function: str, timeout: float | None, is_done: Callable[[], bool]) -> None:
        limit = timeout if timeout is not None else self._timeout
        for is_last in looks(limit):
            code = lib.comm_ncclCommGetAsyncError(self._guard, self._async) or self._async[0]
            if code not in (lib.ncclSuccess, lib.ncclInProgress):
                raise self._error(code, function)
            if code == lib.ncclSuccess and is_done():
                return
            if is_last:
                text = f"{function} was not done within {limit:g} s ({self._where}; {self.library.label})"
                raise errors.WaitTimeoutError(text, function=function, **self._where._asdict())

    @contextmanager
    def _deadline(self, timeout: float | None) -> Iterator[None]:
        """The CPU library's deadline for the calls in the body."""
        if timeout is None or self.library.kind != "host":
            yield
            return
        comm, table = self._guard.comm, self.library.table
        lib.nickelCommSetTimeout(table, comm, host_seconds(timeout))
        try:
            yield
        finally:
            if self._guard.state not in ENDED:
                lib.nickelCommSetTimeout(table, comm, host_seconds(self._timeout))

    # -- looking and waiting -----------------------------------------------------------------------------------------

    def get_async_error(self) -> int:
        """The communicator's own state: Result.SUCCESS, Result.IN_PROGRESS, or the error that has broken it."""
        if self.state == "failed":  # refused to all other calls; this one asks why
            code = lib.ncclCommGetAsyncError(self.library.table, self._guard.comm, self._async)
        else:
            code = lib.comm_ncclCommGetAsyncError(self._guard, self._async)
        if code != lib.ncclSuccess:
            raise self._error(code, "ncclCommGetAsyncError")
        found = self._async[0]
        return Result(found) if found in Result._value2member_map_ else found

    def last_error(self) -> str:
        """The library's last warning in words; NVIDIA's keeps one for the whole process."""
        return report.last_error(self.library)

    def wait(self, stream: Any = None, timeout: float | None = None) -> None:
        """Return when the work queued so far is done: on `stream` with a GPU, in the background with non-blocking communicators.

        Raises the communicator's error as soon as it shows, and WaitTimeoutError after `timeout` seconds.
        """
        refuse_in_group("wait()")
        handle = as_stream(stream)
        on_gpu = self._memory == DEVICE
        self._poll("wait()", checked_timeout(timeout), lambda: not on_gpu or driver.is_done(handle))

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end(self, state: int, reason: str) -> bool:
        """Move to a later state; False if the communicator has ended already."""
        with ending:
            if self._guard.state in ENDED:
                return False
            self._guard.state, self._reason = state, reason
            return True

    def finalize(self) -> None:
        """Finish all outstanding work on every rank; afterwards only close() and abort() are left. Twice is harmless."""
        refuse_in_group("finalize()")
        if self._guard.state == FINALIZED:
            return
        code = lib.comm_ncclCommFinalize(self._guard)
        if code != lib.ncclSuccess:
            self._conclude(code, "ncclCommFinalize")
        self._end(FINALIZED, "finalize() was called")

    def close(self, timeout: float | None = None) -> None:
        """End the communicator; twice is harmless.

        While another thread is inside it raises BusyError at once; with `timeout` it waits so long and then aborts.
        A failed communicator is aborted.
        """
        refuse_in_group("close()")
        seconds = checked_timeout(timeout)
        if self._guard.state in ENDED:
            return
        if self.state == "forked" or not self._owned or not self._guard.comm:
            self._end(CLOSED, "close() was called")
            return
        if self._guard.state == FAILED:
            self.abort()
            return
        code: int = lib.PN_BUSY
        for is_last in looks(seconds or 0.0):
            code = self._destroy()
            if code != lib.PN_BUSY or is_last:
                break
        if code == lib.PN_BUSY and seconds is not None:
            log.warning("%r is still in use by another thread after %g s; aborting it", self, seconds)
            self.abort()
        elif code == lib.PN_BUSY:
            raise self._error(code, "ncclCommDestroy")
        elif code not in (lib.ncclSuccess, lib.PN_CLOSED):
            interrupt.reraise()
            raise report.failure(code, "ncclCommDestroy", self.library, self._where)

    def _destroy(self) -> int:
        """ncclCommDestroy, with the door shut before it: nobody may come in while or after it runs."""
        if self._guard.state == FINALIZED:
            self._guard.state = READY
        code: int = lib.pn_enter(self._guard)
        if code != 0:
            return code
        try:
            if not self._end(CLOSED, "close() was called"):
                return int(lib.PN_CLOSED)
            code = lib.ncclCommDestroy(self.library.table, self._guard.comm)
            self._guard.comm = ffi.NULL
        finally:
            lib.pn_leave(self._guard)
        return code

    def abort(self) -> None:
        """End the communicator at once, from any thread; calls that run in it end with AbortedError. Twice is harmless."""
        comm = self._guard.comm
        if not self._end(ABORTED, "abort() was called") or self._born != lib.pn_generation() or not self._owned or not comm:
            return
        self.library.check(lib.ncclCommAbort(self.library.table, comm), "ncclCommAbort")
        self._guard.comm = ffi.NULL

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
