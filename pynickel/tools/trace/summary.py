"""Per operation: calls, bytes, time, and on whom the others waited; per communicator: the first call in which ranks differ."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from .records import Record

# These are not numbered with the collectives: each pair of ranks has a numbering of its own, and joining comes before all calls.
APART = ("ncclSend", "ncclRecv", "ncclPutSignal", "ncclSignal", "ncclWaitSignal", "ncclCommInitRank")


@dataclass
class Line:
    """Sums over all calls of one operation. `waited`: seconds that ranks waited for the last one to come; `late`: by rank, in how many
    rounds it was that one, and how many seconds the first had waited by then."""

    operation: str
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    failed: int = 0
    waited: float = 0.0
    late: Counter[int] = field(default_factory=Counter)
    late_seconds: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def slowest(self) -> int | None:
        """The rank for which the others waited longest in all."""
        return max(self.late_seconds, key=lambda rank: self.late_seconds[rank]) if self.late_seconds else None


def rounds(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """The calls of all ranks that belong together: those of one communicator with one number."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        if record.operation not in APART:
            found.setdefault((record.comm, record.call), []).append(record)
    return found


def lines(records: Sequence[Record]) -> list[Line]:
    """One line per operation, the one that took the most time first."""
    found: dict[str, Line] = {}
    for record in records:
        line = found.setdefault(record.operation, Line(record.operation))
        line.calls += 1
        line.bytes += record.bytes
        line.seconds += record.end - record.start
        line.longest = max(line.longest, record.end - record.start)
        line.failed += record.result not in (0, 7)
    for together in rounds(records).values():
        if len(together) > 1 and len({record.operation for record in together}) == 1:
            line = found[together[0].operation]
            last = max(together, key=lambda record: record.start)
            first = min(record.start for record in together)
            line.late[last.rank] += 1
            line.late_seconds[last.rank] += last.start - first
            line.waited += sum(last.start - record.start for record in together)
    return sorted(found.values(), key=lambda line: -line.seconds)


def first_difference(records: Sequence[Record]) -> list[tuple[str, int, list[Record], list[int]]]:
    """Per communicator that has one: the first call in which ranks called something else, or that some never made; its records by
    rank, and the ranks that made no such call."""
    by_comm: dict[str, dict[int, list[Record]]] = {}
    for (comm, call), together in rounds(records).items():
        by_comm.setdefault(comm, {})[call] = together
    found = []
    for comm, calls in by_comm.items():
        for call in sorted(calls):
            together = sorted(calls[call], key=lambda record: record.rank)
            missing = sorted(set(range(together[0].nranks)) - {record.rank for record in together})
            if missing or len({record.what for record in together}) > 1:
                found.append((comm, call, together, missing))
                break
    return found
