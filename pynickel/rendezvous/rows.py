"""What each rank says of itself, and what follows: the same verdict on every rank, since all see the same rows in the same order."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import NCCLError, RendezvousError, WaitTimeoutError

# What a row is about: a rank has come, cannot go on, has waited long enough, or is gone; rank 0 has made the id for all that have come.
HERE, FAILED, GAVE_UP, GONE, READY = "here", "failed", "gave up", "gone", "ready"
_LONGEST = 60_000  # bytes of a row
_LONGEST_TEXT = 4000


class Row(NamedTuple):
    """One rank's words. `machine` is equal on two ranks if the CPU library can serve both; `devices` are UUIDs of visible GPUs."""

    rank: int
    nranks: int
    launcher: str
    host: str
    machine: str
    pid: int
    kind: str = ""
    version: str = ""
    local_rank: int | None = None
    device: int | None = None
    devices: tuple[str, ...] = ()
    unique_id: str = ""
    shared_gpu: bool = False
    what: str = HERE
    text: str = ""

    def to_bytes(self) -> bytes:
        """The row for the way between ranks: JSON, which can be read without running anything."""
        short = self._replace(text=self.text[:_LONGEST_TEXT])
        return json.dumps(short, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Row:
        """The row that another rank has sent; ValueError if it is none."""
        try:
            values = json.loads(data) if len(data) <= _LONGEST else None
        except RecursionError:
            values = None
        if not isinstance(values, list) or len(values) != len(cls._fields):
            raise ValueError("this is no row of a rendezvous; do all ranks use the same version of pynickel?")
        row = cls(*values)
        row = row._replace(devices=tuple(row.devices))
        numbers = (row.rank, row.nranks, row.pid)
        optional = (row.local_rank, row.device)
        texts = (row.launcher, row.host, row.machine, row.kind, row.version, row.unique_id, row.what, row.text, *row.devices)
        if not (
            all(type(value) is int for value in numbers)
            and all(value is None or type(value) is int for value in optional)
            and all(type(value) is str for value in texts)
        ):
            raise ValueError("a row of a rendezvous has values of the wrong type")
        return row


class Verdict(NamedTuple):
    """All ranks are there and fit together, or why not (`error`); `rows` in the order of ranks, or of coming.

    `unique_id` is empty until rank 0 has made it, which it does when all are there.
    """

    rows: list[Row]
    error: NCCLError | None = None
    unique_id: str = ""

    @property
    def is_final(self) -> bool:
        """Whether nothing is missing any more."""
        return self.error is not None or self.unique_id != ""


def verdict(rows: Sequence[Row]) -> Verdict | None:
    """What the rows say, in the order in which they came; None while it is not decided.

    The first row that does not fit, or the last that was missing, decides; who comes later changes nothing.
    """
    seen: dict[int, Row] = {}
    for count, row in enumerate(rows, 1):
        error = _contradiction(row, seen, rows[:count], rows)
        if error is not None:
            return Verdict(list(rows), error)
        seen[row.rank] = row
        if len(seen) == row.nranks:
            together = [seen[rank] for rank in range(row.nranks)]
            mismatch = _mismatch(together)
            return Verdict(together, mismatch) if mismatch else _ending(together, rows[count:])
    return None


def same_process(row: Row, other: Row) -> bool:
    """Whether two rows are of one process."""
    return (row.rank, row.host, row.pid) == (other.rank, other.host, other.pid)


def intruder(row: Row, rows: Sequence[Row]) -> RendezvousError:
    """The error for a process that has come as a rank which is there already, after all were there."""
    hint = "was it started twice, or do two jobs use one address?"
    return RendezvousError(f"the ranks are complete, and another process is rank {row.rank} of {row.nranks}: {hint}\n{table([*rows, row])}")


def _ending(together: list[Row], later: Sequence[Row]) -> Verdict:
    """What came of it once all were there: the id, or one of them that could not go on after all."""
    for row in later:
        if not same_process(row, together[row.rank] if row.rank < len(together) else row):
            continue
        if row.what == READY:
            return Verdict(together, None, row.unique_id)
        if row.what in (FAILED, GONE):
            return Verdict(together, _failure(row))
    return Verdict(together)


def _failure(row: Row) -> RendezvousError:
    return RendezvousError(f"rank {row.rank} of {row.nranks} ({row.host}, pid {row.pid}) {row.text}", rank=row.rank)


def missing(rows: Sequence[Row], nranks: int) -> tuple[int, ...]:
    """The ranks of which nothing has been heard."""
    return tuple(sorted(set(range(nranks)) - {row.rank for row in rows if row.what == HERE}))


def too_late(rows: Sequence[Row], nranks: int, seconds: float, where: str) -> WaitTimeoutError:
    """The error of a deadline."""
    absent = missing(rows, nranks)
    text = f"only {nranks - len(absent)} of {nranks} ranks came within {seconds:g} s; missing: {_names(absent)} ({where})"
    return WaitTimeoutError(f"{text}\n{table([row for row in rows if row.what == HERE])}", missing=absent, function="rendezvous.init")


def unheard(row: Row, seconds: float, why: str) -> WaitTimeoutError:
    """The error of a deadline at which not one row has come back; which ranks are missing is not known then."""
    text = f"rank {row.rank} of {row.nranks} heard nothing within {seconds:g} s: {why}\n{table([row])}"
    return WaitTimeoutError(text, missing=(), function="rendezvous.init")


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks[:20]))}{' ...' * (len(ranks) > 20)}"


def _contradiction(row: Row, seen: dict[int, Row], before: Sequence[Row], known: Sequence[Row]) -> NCCLError | None:
    """Why this row cannot belong to the ones before it."""
    came = [other for other in known if other.what == HERE]
    if row.what == GAVE_UP:
        absent = missing(before, row.nranks)
        text = f"rank {row.rank} of {row.nranks} {row.text}; missing: {_names(absent)}"
        return WaitTimeoutError(f"{text}\n{table(came)}", missing=absent, function="rendezvous.init")
    if row.what in (FAILED, GONE):
        return _failure(row)
    first = next(iter(seen.values()), row)
    if row.nranks != first.nranks:
        return RendezvousError(f"the ranks disagree about their number: {first.nranks} or {row.nranks}?\n{table(came)}")
    if row.rank in seen:
        hint = "was it started twice, or do two jobs use one address?"
        return RendezvousError(f"two processes say that they are rank {row.rank} of {row.nranks}: {hint}\n{table(came)}")
    return None


def _mismatch(rows: list[Row]) -> NCCLError | None:
    """Why ranks that are complete cannot become one communicator."""
    from . import devices

    if len({(row.kind, row.version) for row in rows}) > 1:
        remedy = "install the same one for all ranks, or name it by library= or PYNICKEL_LIBRARY"
        return RendezvousError(f"the ranks use different libraries, which do not talk to each other: {remedy}\n{table(rows)}")
    if rows[0].kind == "host" and len({row.machine for row in rows}) > 1:
        return RendezvousError(
            "the CPU library serves one machine (one pid namespace), but the ranks are on several; use GPUs with NVIDIA's or AMD's "
            f"library there, or MPI or torch's gloo for ranks without GPUs\n{table(rows)}"
        )
    return devices.conflict(rows)


def table(rows: Sequence[Row], more: Sequence[tuple[str, Sequence[str]]] = ()) -> str:
    """The ranks one below the other, with further columns of the caller's."""
    if not rows:
        return "  (nobody came)"
    columns: list[tuple[str, list[Any]]] = [
        ("rank", [row.rank for row in rows]),
        ("of", [row.nranks for row in rows]),
        ("host", [row.host for row in rows]),
        ("pid", [row.pid for row in rows]),
        ("launcher", [row.launcher for row in rows]),
        ("library", [f"{row.kind} {row.version}".strip() or "-" for row in rows]),
        *[(name, list(values)) for name, values in more],
    ]
    widths = [max(len(name), *(len(str(value)) for value in values)) for name, values in columns]
    lines = [[name for name, _ in columns], *zip(*(values for _, values in columns), strict=True)]
    return "\n".join("  " + "  ".join(f"{value!s:{width}}" for value, width in zip(line, widths, strict=True)).rstrip() for line in lines)
