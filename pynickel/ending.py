"""The end of a communicator, and stops before it: finalize, revoke, suspend, close, abort."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import interrupt, lifetime, report
from ._nccl import ffi, lib
from .batch import refuse_in_group
from .deadline import checked_timeout, looks
from .errors import NotAvailableError
from .lifetime import ABORTED, CLOSED, ENDED, FAILED, FINALIZED, FINE, IN_PROGRESS, READY, REVOKED, SUSPENDED, Lifetime

if TYPE_CHECKING:
    from .communicator import Communicator

log = logging.getLogger("pynickel")


class Ending(Lifetime):
    """How a communicator ends."""

    __slots__ = ()

    def finalize(self) -> None:
        """Finish all outstanding work on every rank; afterwards only close() and abort() are left. Twice is harmless.

        All ranks call it; WaitTimeoutError where one does not. (ncclCommFinalize)
        """
        refuse_in_group("finalize()")
        if self._guard.state == FINALIZED:
            return
        self._finish(lib.comm_ncclCommFinalize)
        self._move(READY, FINALIZED, "finalize() was called")

    def revoke(self) -> None:
        """End all work on the communicator on every rank, from any thread; then shrink(), split(), close() and abort() are left.

        Calls that run in it end with an error, here and on the other ranks. Twice is harmless. (ncclCommRevoke)
        """
        refuse_in_group("revoke()")
        if self._guard.state == REVOKED:
            return
        if self._guard.state not in (READY, IN_PROGRESS, FAILED) or self._born != lib.pn_generation():
            raise self._error(lib.PN_FORKED if self._born != lib.pn_generation() else lib.PN_CLOSED, "ncclCommRevoke")
        # No entering: it is to end the call of whoever is inside.
        code = lib.ncclCommRevoke(self.library.table, self._guard.comm, lib.NCCL_REVOKE_DEFAULT)
        if code not in FINE:
            raise self._error(code, "ncclCommRevoke")
        for state in (READY, IN_PROGRESS, FAILED):
            self._move(state, REVOKED, "revoke() was called")
        if code == lib.ncclInProgress:
            self._poll("ncclCommRevoke", None)

    def suspend(self) -> None:
        """Give the communicator's GPU memory back until resume(); until then every other call but close() and abort() is refused.

        InvalidUsageError with work outstanding, or with resources that a split shares. (ncclCommSuspend)
        """
        refuse_in_group("suspend()")
        self._finish(lib.comm_ncclCommSuspend, lib.NCCL_SUSPEND_MEM)
        self._move(READY, SUSPENDED, "suspend() was called, and resume() has not been")

    def resume(self) -> None:
        """Take the memory again, after suspend(); the communicator works as before. (ncclCommResume)"""
        refuse_in_group("resume()")
        if self._guard.state != SUSPENDED:
            self._require_ready("ncclCommResume")
        code = self._inside("ncclCommResume", lambda comm: int(lib.ncclCommResume(self.library.table, comm)))
        if code == lib.ncclInProgress:
            self._poll("ncclCommResume", None)
        elif code != lib.ncclSuccess:
            raise self._error(code, "ncclCommResume")
        self._move(SUSPENDED, READY)

    def close(self, timeout: float | None = None) -> None:
        """End the communicator; twice is harmless. (ncclCommDestroy)

        While another thread is inside it raises BusyError at once; with `timeout` (seconds) it waits so long and then aborts. So it
        does for what a non-blocking communicator has in progress, without `timeout` as long as the communicator's own says.
        A failed communicator is aborted. NotAvailableError for `timeout` on a blocking communicator of NVIDIA's library: its end
        waits for the other ranks and cannot be given up.
        """
        refuse_in_group("close()")
        seconds = checked_timeout(timeout)
        if self._guard.state in ENDED:
            return
        if self._guard.state in (READY, SUSPENDED) and self._owned and self.state != "forked":
            self._require_deadlines("close()", seconds)
        if self.state == "forked" or not self._owned or not self._guard.comm:
            self._end(CLOSED, "close() was called")
            return
        if self._guard.state == IN_PROGRESS and not self._comes_to_rest(seconds or self._timeout):
            log.warning("%r still had work in progress at the deadline of close(); aborting it", self)
        if self._guard.state in (FAILED, IN_PROGRESS) or not self._is_flushed(seconds or self._timeout):
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
        elif code not in (*FINE, lib.PN_CLOSED):
            interrupt.reraise()
            raise report.failure(code, "ncclCommDestroy", self.library, self._where)

    def abort(self) -> None:
        """End the communicator at once, from any thread; calls that run in it end with AbortedError. Twice is harmless.

        Peers that wait for this rank get an error with the CPU library; NVIDIA's leaves them waiting. (ncclCommAbort)
        """
        comm = self._guard.comm
        if not self._end(ABORTED, "abort() was called") or self._born != lib.pn_generation() or not self._owned or not comm:
            return
        self.library.check(lib.ncclCommAbort(self.library.table, comm), "ncclCommAbort")
        self._guard.comm = ffi.NULL
        self._kept.clear()  # not before: work in the background used these buffers

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _require_deadlines(self, function: str, timeout: float | None) -> None:
        """Refuse a deadline that nobody would keep: a call into a blocking communicator lasts as long as NCCL wants."""
        if timeout is None or math.isinf(timeout) or self.library.kind == "host" or not self._blocking:
            return
        text = f"{function} was not called: a timeout needs a non-blocking communicator with {self.library.label}; make it with timeout="
        raise NotAvailableError(f"{text} ({self._where})", function=function, **self._where._asdict())

    def _is_flushed(self, seconds: float | None) -> bool:
        """Finalize what cannot block; ncclCommDestroy would do it by itself and take as long as it takes. False at the deadline."""
        if self._blocking or self.library.kind == "host" or self._guard.state != READY:
            return True
        if lib.comm_ncclCommFinalize(self._guard) not in FINE or self._comes_to_rest(seconds):
            return True
        log.warning("%r was not finalized at the deadline of close(); aborting it", self)
        return False

    def _comes_to_rest(self, seconds: float | None) -> bool:
        """Wait for what is in progress, well or badly done; False at the deadline."""
        for is_last in looks(seconds):
            if self.get_async_error() != lib.ncclInProgress:
                return True
            if is_last:
                break
        return False

    def _end(self, state: int, reason: str) -> bool:
        """Move to an ending state; False if the communicator has ended already."""
        with lifetime.ending:
            if self._guard.state in ENDED:
                return False
            self._guard.state, self._reason = state, reason
        for thing in list(self._things.values()):
            thing._forget()
        return True

    def _destroy(self) -> int:
        """ncclCommDestroy, with the door shut before it: nobody may come in while or after it runs."""
        inside = ffi.new("int *")
        try:
            code: int = lib.pn_enter_at(self._guard, self._guard.state, inside)
            if code != 0:
                return code
            comm, things = self._guard.comm, list(self._things.values())
            if not self._end(CLOSED, "close() was called"):
                return int(lib.PN_CLOSED)
            for thing in things:
                thing._release(comm)
            code = lib.ncclCommDestroy(self.library.table, comm)
            self._guard.comm = ffi.NULL
            self._kept.clear()
        finally:
            if inside[0]:
                lib.pn_leave(self._guard)
        return code


def abort_all(comms: Iterable[Communicator]) -> None:
    """Abort several communicators of this process at the same time; each may have to wait for work that they share.

    Raises the first error after all have been tried.
    """
    found = list(comms) if isinstance(comms, Iterable) else [comms]
    if strange := [comm for comm in found if not isinstance(comm, Ending)]:
        raise TypeError(f"comms must be a list of communicators, not one with {strange[0]!r}; none has been aborted")
    errors: list[BaseException] = []

    def abort(comm: Communicator) -> None:
        try:
            comm.abort()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=abort, args=(comm,), daemon=True) for comm in found[1:]]
    for thread in threads:
        thread.start()
    for comm in found[:1]:
        abort(comm)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
