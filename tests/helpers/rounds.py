"""Rounds of forked ranks that overlap: while the survivors of some find out what has happened, which is mostly sleep, others begin."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from helpers.forks import End, Forked


class Rounds:
    """Leaving the `with` block waits for the rounds that have been left to themselves; an exception ends all ranks at once."""

    def __init__(self, most: int = 6) -> None:
        self.most = most
        self.begun: list[Forked] = []
        self.ending: list[tuple[Forked, float, Callable[[list[End]], None]]] = []

    def __enter__(self) -> Rounds:
        return self

    def begin(self, nranks: int, function: Callable[..., Any], *args: Any) -> Forked:
        """The ranks of a new round."""
        self.begun.append(Forked(nranks, function, *args))
        return self.begun[-1]

    def leave(self, ranks: Forked, deadline: float, judge: Callable[[list[End]], None]) -> None:
        """Leave a round's ranks to end by themselves; judge(ends) follows when all have, or after so many seconds. Waits while there are
        too many of such rounds."""
        self.ending.append((ranks, time.monotonic() + deadline, judge))
        self.until_left(self.most)

    def until_left(self, most: int) -> None:
        """Take in how ranks end, until no more than so many rounds are left."""
        while True:
            for one in list(self.ending):
                ranks, until, judge = one
                if ranks.open:
                    ranks.listen(0.0)
                if not ranks.open or time.monotonic() > until:
                    self.ending.remove(one)
                    self.begun.remove(ranks)
                    judge(ranks.ends(0.0))
            if len(self.ending) <= most:
                return
            time.sleep(0.002)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.until_left(0)
        finally:
            for ranks in self.begun:
                ranks.__exit__(kind, value, trace)
