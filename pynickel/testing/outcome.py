"""How a rank ended, and the error that tells it of all ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RETURNED, RAISED, ENDED, KILLED = "returned", "raised", "ended", "killed"


@dataclass
class Outcome:
    """How one rank ended.

    `status`: "returned", "raised", "ended" (its process ended before the function did) or "killed" (it had to be, at the
    timeout or soon after another rank's failure). `value`: what the function returned. `error`: the exception, if it can be
    pickled. `traceback`: its text in any case. `returncode`: of the process, negative for a signal. `output`: what the
    process wrote to stdout and stderr, with the stacks of its threads if it was killed; ranks that share a process share it.
    `when`: time.monotonic() of its failure, 0 without one. `late`: its process had to be killed, be it after the function.
    """

    rank: int
    status: str = ENDED
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    returncode: int | None = None
    output: str = ""
    when: float = 0.0
    late: bool = False

    @property
    def ok(self) -> bool:
        """Whether the function returned and its process then ended well."""
        return self.status == RETURNED and self.returncode == 0

    def __str__(self) -> str:
        if self.status == RAISED:
            what = f"raised:\n{self.traceback.rstrip()}"
        elif self.status == RETURNED:
            what = f"returned {self.value!r:.200}"
            if self.late:
                what += ", but its process did not end in time and was killed"
            elif self.returncode != 0:
                what += f", but its process then ended with {how_it_ended(self.returncode)}"
        elif self.status == KILLED:
            what = "did not end in time and was killed"
        else:
            what = f"ended before it returned: {how_it_ended(self.returncode)}"
        return indented(f"rank {self.rank} {what}")


class RankError(AssertionError):
    """At least one rank did not return. The text shows what became of every rank and what each wrote; `outcomes` holds it all.

    Its `__cause__` is the first rank's failure, where that is an exception that can be pickled.
    """

    def __init__(self, outcomes: Sequence[Outcome], how: str = "") -> None:
        super().__init__(outcomes, how)
        self.outcomes = list(outcomes)
        self.how = how
        self.__cause__ = self.first.error

    @property
    def first(self) -> Outcome:
        """The rank that failed first; but a rank that lost another or waited for it in vain comes after that one."""

        def place(outcome: Outcome) -> tuple[int, float]:
            follows = isinstance(outcome.error, (ConnectionError, TimeoutError))
            return 2 if follows else 1 if outcome.late else 0, outcome.when or math.inf

        return min((outcome for outcome in self.outcomes if not outcome.ok), key=place)

    def __str__(self) -> str:
        failed = sum(not outcome.ok for outcome in self.outcomes)
        first = f"; rank {self.first.rank} was the first" if failed > 1 else ""
        how = f" ({self.how})" if self.how else ""
        lines = [f"{failed} of {len(self.outcomes)} ranks failed{first}{how}:", *map(str, self.outcomes)]
        return "\n".join(lines + [indented(f"output of {who}:\n{text}") for who, text in outputs(self.outcomes)])


def outputs(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Who wrote what, once for each process that wrote something."""
    found: dict[int, tuple[str, list[int]]] = {}
    for outcome in outcomes:  # ranks of one process hold one and the same string
        found.setdefault(id(outcome.output), (outcome.output, []))[1].append(outcome.rank)
    return [
        ("rank " + str(ranks[0]) if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}", text.rstrip())
        for text, ranks in found.values()
        if text.strip()
    ]


def how_it_ended(returncode: int | None) -> str:
    """An exit status in words."""
    if returncode is not None and returncode < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"signal {names.get(-returncode, -returncode)}"
    return f"exit status {returncode}"


def indented(text: str) -> str:
    """All lines but the first two spaces in."""
    return text.replace("\n", "\n  ")
