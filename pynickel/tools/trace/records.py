"""The lines of a NICKEL_TRACE file, checked."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXTS = ("comm", "operation", "type", "op", "path")
NUMBERS = ("pid", "tid", "rank", "nranks", "call", "count", "root", "bytes", "result")


@dataclass(frozen=True)
class Record:
    """One call of one rank; times in seconds of the clock that all processes of the machine share."""

    start: float
    end: float
    pid: int
    tid: int
    comm: str
    rank: int
    nranks: int
    call: int
    operation: str
    count: int
    type: str
    op: str
    root: int
    bytes: int
    path: str
    result: int

    @property
    def what(self) -> tuple[str, int, str, str, int]:
        """In what the calls of one round must agree (the count is each rank's own part, the same on all)."""
        return self.operation, self.count, self.type, self.op, self.root


def read(path: Path) -> tuple[list[Record], list[int]]:
    """All records by start, and the numbers of lines that are none: the last may be cut, if a rank was killed while it wrote."""
    found, bad = [], []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                fields = json.loads(line)
                values: dict[str, Any] = {name: int(fields[name]) for name in NUMBERS}
                values |= {name: str(fields[name]) for name in TEXTS}
                found.append(Record(start=float(fields["start"]), end=float(fields["end"]), **values))
            except (ValueError, KeyError, TypeError):
                bad.append(number)
    return sorted(found, key=lambda record: record.start), bad
