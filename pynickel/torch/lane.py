"""A lane: operations in order, run by whoever waits for one and comes first, or by a thread of the lane."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter

from .soon import TICK, soon

Job = Callable[[], None]
IDLE = 5.0  # seconds without work after which a thread ends; each tag of messages has a lane
AT_ONCE = 0.0002  # seconds from giving an operation to waiting for it, if nothing else is done between


class Task:
    """One operation that was given to a lane: whether it is over, and how it failed."""

    __slots__ = ("_callbacks", "_event", "_given", "_lane", "_lock", "error", "is_over", "job")

    def __init__(self, job: Job | None = None, lane: Lane | None = None) -> None:
        self.job = job
        self.error: BaseException | None = None
        self.is_over = job is None  # whether it has ended, well or not
        self._lane = lane
        self._given = perf_counter()
        self._lock = threading.Lock()
        self._event: threading.Event | None = None  # made by the first who waits
        self._callbacks: list[Job] = []

    def run(self) -> None:
        """Do it, and keep what it raises; `finish` then tells those who wait."""
        job, self.job = self.job, None  # it holds tensors
        try:
            if job is not None:
                job()
        except BaseException as error:
            self.error = error

    def finish(self) -> list[Job]:
        """Say that it is over; the callbacks, which the caller is to call."""
        with self._lock:
            self.is_over = True
            event, callbacks = self._event, self._callbacks
            self._callbacks = []
        if event is not None:
            event.set()
        return callbacks

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is over; whether it is. Without a deadline of its own the waiter does it, if nobody else has begun."""
        if not self.is_over and self._lane is not None:
            self._lane.patient = perf_counter() - self._given < AT_ONCE
            if seconds is None:
                self._lane.help(self)
        with self._lock:
            if self.is_over:
                return True
            event = self._event = self._event or threading.Event()
        if self._lane is not None:
            self._lane.begin(waits=True)
        return event.wait(seconds)

    def then(self, callback: Job) -> None:
        """Call this when it is over, now if it is."""
        with self._lock:
            waits = not self.is_over
            if waits:
                self._callbacks.append(callback)
        if not waits:
            callback()
        elif self._lane is not None:
            self._lane.begin()


OVER = Task()


class Lane:
    """Operations one after the other, in the order in which they were given.

    Whoever holds the turn takes the next operation and runs it. Waiting for the thread to wake up would cost more than a small
    operation itself; so a caller that has to wait anyway takes the turn if it is free. And where callers have waited at once, the
    thread is not even woken, unless nobody comes for an operation within a millisecond or two (soon.py).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.patient = True  # whether operations are likely to be waited for at once
        self._turn = threading.RLock()  # a signal handler may come to what its own thread holds; it must not wait for itself
        self._busy = False  # whether who holds the turn runs an operation
        self._giving = threading.RLock()  # whoever gives an operation, starts or ends the thread, or says that there will be no more
        self._waiting: deque[Task] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._calls_since = 0.0  # when the thread began with callbacks; 0: it is not in any
        self._ended = False

    def submit(self, job: Job, may_run: Callable[[], bool] | None = None) -> Task:
        """Have it done behind all that was given before, in the lane's thread unless somebody waits for it first.

        `may_run`: asked when it is the next operation; true: this thread does it now.
        """
        task = Task(job, self)
        if may_run is not None and self._at_once(task, may_run):
            return task
        with self._giving:
            self._require_open()
            self._waiting.append(task)
        if self.patient and soon.add(self.begin):
            return task
        try:
            self.begin()
        except RuntimeError:  # no thread can be started: who waits for the operation does it, or hears of this
            pass
        return task

    def _at_once(self, task: Task, may_run: Callable[[], bool]) -> bool:
        """Do it here, if nothing is before it and it may be; whether it is done."""
        if self._waiting or not self._turn.acquire(blocking=False):
            return False
        try:
            if self._waiting or self._busy or self._ended or not may_run():
                return False
            self._busy = True
            try:
                task.run()
            finally:
                self._busy = False
            callbacks = task.finish()
        finally:
            self._turn.release()
        self._tell(task, callbacks)
        return True

    def begin(self, waits: bool = False) -> None:
        """Have the thread do what nobody has begun; another one, if that is in callbacks which take long, or wait for it themselves."""
        if not self._waiting:
            return
        self.patient = False
        with self._giving:
            if self._calls_since and not self._calls_are_short(waits):
                self._thread, self._calls_since = None, 0.0
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                thread.start()
                self._thread = thread
            self._wake.put(None)

    def _calls_are_short(self, waits: bool) -> bool:
        """Whether the thread is likely to be back from its callbacks soon; then that is looked at again."""
        if (waits and self._thread is threading.current_thread()) or perf_counter() - self._calls_since > TICK:
            return False
        return soon.add(self.begin)

    def now(self, job: Job) -> None:
        """Do it in this thread, behind all that was given before; what it raises is raised here."""
        soon.now()
        while True:
            with self._turn:
                self._require_free()
                if not self._waiting:
                    self._require_open()
                    self._busy = True
                    try:
                        job()
                    finally:
                        self._busy = False
                    return
                task, callbacks = self._next()
            self._tell(task, callbacks)

    def help(self, task: Task) -> None:
        """Do what was given up to this one, in this thread, unless another thread is at it."""
        while not task.is_over and self._turn.acquire(blocking=False):
            try:
                self._require_free()
                if not self._waiting:
                    return  # it is over by now: whoever ran it said so before giving up the turn
                done, callbacks = self._next(soon.now)  # what other lanes have may be what this one's peer waits for
            finally:
                self._turn.release()
            self._tell(done, callbacks)

    def require_outside(self) -> None:
        """Refuse what a signal handler cannot do that has interrupted an operation of this lane: wait for its end, or end it."""
        if self._turn.acquire(blocking=False):
            try:
                self._require_free()
            finally:
                self._turn.release()

    def end(self, seconds: float) -> bool:
        """Take no more, and wait until what was given is over; whether all is."""
        deadline = perf_counter() + seconds
        with self._giving:
            self._ended = True
        with suppress(RuntimeError):  # no thread can be started at the interpreter's exit, where nobody waits any more
            self.begin()
        thread = self._thread
        self._wake.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
        if not self._turn.acquire(timeout=max(0.0, deadline - perf_counter())):  # a caller's own thread is in an operation
            return False
        try:
            return not self._busy and not self._waiting
        finally:
            self._turn.release()

    def _require_open(self) -> None:
        if self._ended:
            raise RuntimeError(f"{self.name}: the process group has been shut down")

    def _require_free(self) -> None:
        """The turn is had; but did this thread have it already?"""
        if self._busy:
            raise RuntimeError(
                f"{self.name}: a signal handler has interrupted an operation of this thread, and can neither call another one of the"
                " same group nor end the group; let the handler set a flag or raise, and do the rest outside of it"
            )

    def _next(self, before: Job | None = None) -> tuple[Task, list[Job]]:
        """Run what was given first; by who has the turn. Before it comes what would wake this lane's thread if that still waited."""
        task = self._waiting.popleft()
        try:
            if before is not None:
                before()
        except BaseException:  # Ctrl-C: somebody else may wait for it
            self._waiting.appendleft(task)
            raise
        self._busy = True
        try:
            task.run()
        finally:
            self._busy = False
        return task, task.finish()  # with the turn: what was given later must not be over before it

    def _tell(self, task: Task, callbacks: list[Job]) -> None:
        """Call back; without the turn, because a callback may give operations to this lane and wait for them."""
        for callback in callbacks:
            callback()
        if task.error is not None and not isinstance(task.error, Exception):
            raise task.error  # Ctrl-C came while this thread did another one's operation, and belongs to this thread

    def _work(self) -> None:
        callbacks: list[Job] = []
        while True:
            try:
                self._wake.get(timeout=IDLE)
            except Empty:
                with self._giving:
                    if self._wake.empty():
                        self._thread = None
                        return
            ended = self._ended  # looked at before the rest is done: then there is nothing more to come
            while self._waiting:
                with self._turn:
                    if self._waiting:
                        callbacks = self._next()[1]
                if callbacks and not self._call(callbacks):
                    return
                callbacks = []  # an idle thread must hold no tensors
            if ended:
                return

    def _call(self, callbacks: list[Job]) -> bool:
        """Call them; whether this is the lane's thread still. They may wait for what comes later in this lane: see begin()."""
        with self._giving:
            self._calls_since = perf_counter()
        if self._waiting and not soon.add(self.begin):
            self.begin(waits=True)
        for callback in callbacks:
            callback()
        with self._giving:
            if self._thread is not threading.current_thread():
                return False
            self._calls_since = 0.0
            return True
