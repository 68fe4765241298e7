"""Operations that nobody has begun yet: their lanes' threads get them if no caller waits for them within a millisecond or two."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

TICK = 0.001  # seconds between two looks
QUIET = 100  # looks without anything to do, after which the thread sleeps until there is something

Begin = Callable[[], None]


class Soon:
    """Calls back what it was given, unless that has become needless, from a thread that looks once in a tick.

    To wake a thread costs more than a small message. A program that waits at once for what it has begun wakes none: this
    thread is awake by itself while operations come in.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new; in a child process, which has none of the threads."""
        self._given: deque[Begin] = deque()
        self._awake = self._ended = False
        self._lock = threading.Lock()
        self._more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def add(self, begin: Begin) -> bool:
        """Call this in a tick or two. False: there is no thread for that, and nothing has happened."""
        self._given.append(begin)
        if self._awake:  # looked at after the append; _sleep does the two in the other order, so one of them sees the other
            return True
        with self._lock:
            if not self._awake:
                self._awake = not self._ended and self._rouse()
            if not self._awake:
                with suppress(ValueError):  # another thread has called it by now
                    self._given.remove(begin)
            return self._awake

    def _rouse(self) -> bool:
        """Have the thread look again; False: there can be none."""
        if self._thread is not None:
            self._more.release()
            return True
        thread = threading.Thread(target=self._look, name="pynickel begins operations", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads, or the interpreter is about to exit
            return False
        self._thread = thread
        return True

    def now(self) -> None:
        """Call all of them now: this thread is about to wait for something, which may need them."""
        for _ in range(len(self._given)):  # one that is not to be called yet is added again
            try:
                begin = self._given.popleft()
            except IndexError:  # the other thread has been here
                return
            with suppress(RuntimeError):  # no thread can be started now: whoever waits does the operation itself, or hears of this
                begin()

    def end(self) -> None:
        """No thread is left; what is given from now on is called at once."""
        with self._lock:
            self._ended = True
            thread, awake = self._thread, self._awake
            if not awake:
                self._more.release()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _look(self) -> None:
        quiet = 0
        while not self._ended:
            time.sleep(TICK)
            quiet = 0 if self._given else quiet + 1
            self.now()
            if quiet >= QUIET:
                self._sleep()
                quiet = 0
        self._awake = False
        self.now()

    def _sleep(self) -> None:
        with self._lock:
            self._awake = False
            if self._given or self._ended:
                self._awake = True
                return
        self._more.acquire()


soon = Soon()
os.register_at_fork(after_in_child=soon.reset)
