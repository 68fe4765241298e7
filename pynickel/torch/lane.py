"""A lane: operations in order, in the caller's thread if it waits anyway, else in a thread of the lane's own."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]


class Task:
    """One operation that was given to a lane: whether it is over, and how it failed."""

    __slots__ = ("_callbacks", "_done", "_lock", "error")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._done: threading.Event | bool = False  # the event is made by the first who waits
        self._callbacks: list[Job] = []

    def finish(self, error: BaseException | None) -> None:
        """Say that it is over, and do what waits for that."""
        self.error = error
        with self._lock:
            event, self._done = self._done, True
            callbacks, self._callbacks = self._callbacks, []
        if isinstance(event, threading.Event):
            event.set()
        for callback in callbacks:
            callback()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done is True

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is over; whether it is."""
        with self._lock:
            if self._done is True:
                return True
            event = self._done if isinstance(self._done, threading.Event) else threading.Event()
            self._done = event
        return event.wait(seconds)

    def then(self, callback: Job) -> None:
        """Call this when it is over, now if it is."""
        with self._lock:
            if self._done is not True:
                self._callbacks.append(callback)
                return
        callback()


OVER = Task()
OVER.finish(None)


class Lane:
    """Operations one after the other, in the order in which they were given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._turn = threading.Lock()  # whoever runs an operation
        self._change = threading.Condition()
        self._waiting: deque[tuple[Job, Task]] = deque()
        self._last: Task = OVER
        self._thread: threading.Thread | None = None
        self._ended = False

    def submit(self, job: Job) -> Task:
        """Run it in the lane's thread, behind all that was given before."""
        task = Task()
        with self._change:
            if self._ended:
                raise RuntimeError(f"{self.name} has been shut down")
            self._waiting.append((job, task))
            self._last = task
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self._change.notify()
        return task

    def now(self, job: Job) -> None:
        """Run it in this thread, when all that was given before is over; what it raises is raised here."""
        if not self._last.is_over:
            self._last.wait(None)
        with self._turn:
            if self._ended:
                raise RuntimeError(f"{self.name} has been shut down")
            job()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._waiting:
                    if self._ended:
                        return
                    self._change.wait()
                job, task = self._waiting.popleft()
            error: BaseException | None = None
            with self._turn:
                try:
                    job()
                except BaseException as failure:
                    error = failure
            del job  # it holds tensors
            task.finish(error)
            del task, error

    def end(self, seconds: float) -> bool:
        """Take no more, and wait until what was given is over; whether the thread has ended."""
        with self._change:
            self._ended = True
            self._change.notify()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()
