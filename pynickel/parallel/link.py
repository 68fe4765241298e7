"""The way to one other process, and waiting: all news wakes one condition, and a child's failure ends any wait."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from pynickel.parallel.channel import Channel
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.failure import ChildError

_CAUSE = 0.5  # seconds in which the failure that made another child fail turns up


class News:
    """What the reading threads tell the waiting ones. `changed` guards everything they share."""

    changed: threading.Condition
    failures: list[ChildError]  # of any child until a wait has raised them, oldest first, those that follow from others last
    told: bool  # one has been raised since the last close
    hold: float  # until when failures that follow from others are held back: the time is monotonic's

    def __init__(self) -> None:
        self.renew()

    def add_failure(self, error: ChildError) -> None:
        """Keep a failure for the next wait. When a rank fails its peers do, too, and may be first to say so: they wait for it."""
        with self.changed:
            if error.follows and not self.failures:
                self.hold = time.monotonic() + _CAUSE
            self.failures.append(error)
            self.failures.sort(key=lambda failure: failure.follows)

    def held(self) -> float:
        """Seconds for which the failures that there are are held back; math.inf when there are none."""
        if not self.failures:
            return math.inf
        return max(0.0, self.hold - time.monotonic()) if self.failures[0].follows else 0.0

    def holds(self, error: ChildError | None) -> bool:
        """Whether this failure shall not be raised yet."""
        with self.changed:
            return error in self.failures and 0 < self.held() < math.inf

    def raise_failure(self, whatever: bool = False) -> None:
        """Raise the first failure that nobody has seen, `whatever` else may still come."""
        with self.changed:
            if self.failures and (whatever or not self.held()):
                self.told = True
                raise self.failures.pop(0)

    def take_untold(self) -> ChildError | None:
        """Return the first failure if no wait has raised one; then begin anew."""
        with self.changed:
            first = self.failures[0] if self.failures and not self.told else None
            self.failures, self.told = [], False
            return first

    def renew(self) -> None:
        """Begin anew with a lock of its own: in a copy of this process another thread may have held the old one."""
        self.changed, self.failures, self.told, self.hold = threading.Condition(), [], False, 0.0


news = News()


class Link(ABC):
    """One other process: its channel, and what came from it and was not yet asked for."""

    channel: Channel  # there once the process has been reached

    def __init__(self) -> None:
        self.inbox: deque[list[bytearray]] = deque()

    @property
    @abstractmethod
    def name(self) -> str:
        """The process in words, with its pid."""

    @abstractmethod
    def _check_end(self, doing: str) -> None:
        """Raise if the process has ended or is ending, so that it cannot do what is waited for."""

    @abstractmethod
    def _lost(self, doing: str) -> NoReturn:
        """Raise what explains why the connection is broken."""

    def _push(self, kind: int, parts: Sequence[bytes | memoryview], deadline: Deadline) -> None:
        """Send one message; the errors name the process."""
        news.raise_failure()
        try:
            self.channel.send(kind, parts, deadline, news.raise_failure)
        except TimeoutError:
            raise TimeoutError(f"{self.name} took no data for {deadline.seconds:g} s") from None
        except OSError:
            self._lost("take a message")


AnyLink = TypeVar("AnyLink", bound=Link)


def wait_for(
    links: Sequence[AnyLink],
    ready: Callable[[AnyLink], bool],
    doing: str,
    deadline: Deadline,
    *,
    may_end: bool = False,
) -> None:
    """Wait until `ready` holds for every link; TimeoutError names those that did not do it (`doing`, in words).

    A link whose process ends before it is ready raises at once, unless it `may_end`.
    """
    with news.changed:
        while True:
            news.raise_failure()
            missing = [link for link in links if not ready(link)]
            if not missing:
                return
            if not may_end:
                for link in missing:
                    link._check_end(doing)
            if deadline.left() <= 0:
                news.raise_failure(whatever=True)
                names = ", ".join(link.name for link in missing)
                raise TimeoutError(f"{names} did not {doing} within {deadline.seconds:g} s")
            news.changed.wait(min(deadline.left(), news.held()))
