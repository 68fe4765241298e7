"""What a benchmark has found: the table with its ratios, the targets, and JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

MPI = ("Open MPI", "MPICH")
COMPARED = ("empty", "empty plan", "plain", "plain plan")  # columns of pynickel that get a ratio
EVERY = 0  # size
# What is promised of an all-reduce: ranks, our column, whom it is compared with, and by size how many times as fast it must be.
TARGETS: list[tuple[int, str, Sequence[str], dict[int, float]]] = [
    (2, "empty", MPI, {1 << 16: 3, 1 << 20: 4, 1 << 24: 3, 1 << 26: 4}),
    (2, "plain", MPI, {1 << 10: 1, 1 << 16: 1.2, 1 << 20: 1.1, 1 << 26: 1.5}),
    (2, "empty plan", MPI, {8: 1}),
    (2, "plain plan", MPI, {8: 1, 1 << 10: 1}),
    (2, "empty", ["gloo"], {EVERY: 10}),
    (2, "plain", ["gloo"], {EVERY: 4}),
    (4, "empty", MPI, {EVERY: 2}),
    (4, "empty plan", MPI, {EVERY: 2}),
    (4, "plain", MPI, {EVERY: 1}),
]
AT_MOST = 1.0  # microseconds more than the better MPI, for 8 bytes by arrays and 2 ranks


@dataclass
class Cell:
    """One operation at one size by one library."""

    nranks: int
    operation: str
    size: int
    peer: str
    version: str
    memory: str
    api: str
    ours: bool
    path: str = ""
    times: list[int] = field(default_factory=list)
    median: float = 0.0
    quartiles: tuple[float, float] = (0.0, 0.0)
    calls: int = 0

    @property
    def key(self) -> tuple[int, str, int, str]:
        """No other cell of a table is in its place."""
        return self.nranks, self.operation, self.size, self.label

    def finish(self) -> None:
        """From the times of all calls, in nanoseconds, to microseconds."""
        self.calls = len(self.times)
        low, middle, high = statistics.quantiles(self.times, n=4)
        self.median, self.quartiles = middle / 1000, (low / 1000, high / 1000)
        self.times = []

    @property
    def label(self) -> str:
        """Its column."""
        if not self.ours:
            return self.peer
        build = "" if self.peer == "pynickel" else f"{self.peer} "
        return build + self.memory + ("" if self.api == "methods" else f" {self.api}")


def short(size: int) -> str:
    """A size as people write it."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def figure(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write_table(cells: Sequence[Cell], out: TextIO, machine: str, busy: float) -> None:
    """A block for each number of ranks and operation: microseconds, then ratios to the better of Open MPI and MPICH, and to gloo."""
    for nranks, operation in dict.fromkeys((cell.nranks, cell.operation) for cell in cells):
        block = [cell for cell in cells if (cell.nranks, cell.operation) == (nranks, operation)]
        labels = list(dict.fromkeys(cell.label for cell in block))
        compared = [label for label in COMPARED if label in labels]
        out.write(f"\n{operation}, {nranks} ranks, float32: median microseconds; x: times as fast as the better of {' and '.join(MPI)}\n")
        rows = [["size", *labels, *(f"x {label}" for label in compared), "x gloo", "path empty/plain"]]
        for size in sorted({cell.size for cell in block}):
            row = {cell.label: cell for cell in block if cell.size == size}
            medians = {label: row[label].median if label in row else None for label in labels}
            best = fastest(row, MPI)
            ratios = [*(ratio(best, medians[label]) for label in compared), ratio(medians.get("gloo"), medians.get("plain"))]
            paths = "/".join(row[label].path or "-" for label in ("empty", "plain") if label in row)
            rows.append([short(size), *(figure(medians[label]) for label in labels), *(figure(one) for one in ratios), paths])
        write_rows(rows, out)
    out.write("\n" + "".join(f"{line}\n" for line in [*judged(cells), *behind(cells)]))
    out.write("\n" + ", ".join(dict.fromkeys(f"{cell.peer} ({cell.version})" for cell in cells)) + f"; {machine}")
    out.write("\n" if busy < 0.1 else f"; before the run {busy:.1f} cores were busy with other work\n")


def write_rows(rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """Columns of one width, to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        out.write("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n")


def fastest(row: dict[str, Cell], names: Sequence[str]) -> float | None:
    """The best time of these columns."""
    return min((row[name].median for name in names if name in row), default=None)


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """How many times as fast."""
    return theirs / ours if theirs and ours else None


def judged(cells: Sequence[Cell]) -> list[str]:
    """Which targets are met."""
    rows: dict[tuple[int, int], dict[str, Cell]] = {}
    for cell in cells:
        if cell.operation == "all_reduce":
            rows.setdefault((cell.nranks, cell.size), {})[cell.label] = cell
    lines = []
    for nranks, label, names, wanted in TARGETS:
        told = []
        for (ranks, size), row in sorted(rows.items()):
            target, best = wanted.get(size, wanted.get(EVERY)), fastest(row, names)
            if ranks == nranks and target is not None and best is not None and label in row:
                got = best / row[label].median
                told.append(f"{short(size)} {got:.2f}" + ("" if got >= target else f" MISSED {target:g}"))
        if told:
            wish = " ".join(f"{'all' if size == EVERY else short(size)} {target:g}" for size, target in wanted.items())
            lines.append(f"target, {nranks} ranks, {label} against {' and '.join(names)} ({wish}): {', '.join(told)}")
    row = rows.get((2, 8), {})
    if "plain" in row and (best := fastest(row, MPI)) is not None:
        more = row["plain"].median - best
        lines.append(f"target, 2 ranks, 8 B by arrays, at most {AT_MOST:g} us more: {more:.2f}" + ("" if more <= AT_MOST else " MISSED"))
    return lines


def behind(cells: Sequence[Cell]) -> list[str]:
    """Where some peer, whichever it is, was faster: how many times as fast as the fastest of them pynickel was."""
    lines = []
    for nranks, operation in dict.fromkeys((cell.nranks, cell.operation) for cell in cells):
        block = [cell for cell in cells if (cell.nranks, cell.operation) == (nranks, operation)]
        told = []
        for size in sorted({cell.size for cell in block}):
            theirs = min((cell for cell in block if cell.size == size and not cell.ours), key=lambda cell: cell.median, default=None)
            ours = [cell for cell in block if cell.size == size and cell.label in COMPARED]
            slower = [f"{cell.label} {theirs.median / cell.median:.2f}" for cell in ours if theirs and theirs.median < cell.median]
            if theirs and slower:
                told.append(f"{short(size)} {', '.join(slower)} of {theirs.peer}")
        if told:
            lines.append(f"slower than a peer, {operation}, {nranks} ranks: {'; '.join(told)}")
    return lines


def machine() -> str:
    """Where it was measured."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass  # then the architecture has to do
    return f"{len(os.sched_getaffinity(0))} cores, {model}, Linux {platform.release()}, Python {platform.python_version()}"


def busy(seconds: float = 0.3) -> float:
    """How many cores are in use while we do nothing: times on a machine that does other work tell little."""

    def idle() -> float:
        with open("/proc/stat") as stat:
            fields = stat.readline().split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")

    before, begun = idle(), time.monotonic()
    time.sleep(seconds)
    return max(0.0, (os.cpu_count() or 1) - (idle() - before) / (time.monotonic() - begun))


def as_json(cells: Sequence[Cell], machine: str, busy: float) -> dict[str, Any]:
    """All figures."""
    return {"machine": machine, "busy_cores_before": round(busy, 2), "cells": [as_record(cell) for cell in cells]}


def from_json(paths: Sequence[Path]) -> tuple[list[Cell], str, float]:
    """The figures of several runs as those of one, the later ones in place of the earlier; the machines, and the most busy cores."""
    found = [json.loads(path.read_text()) for path in paths]
    cells = {cell.key: cell for run in found for cell in map(from_record, run["cells"])}
    machines, busy = " / ".join(dict.fromkeys(run["machine"] for run in found)), max(run["busy_cores_before"] for run in found)
    return sorted(cells.values(), key=lambda cell: cell.nranks), machines, busy


def from_record(record: dict[str, Any]) -> Cell:
    """A cell as `as_record` has written it."""
    ours = "api" in record
    place = [record[name] for name in ("nranks", "operation", "bytes", "library", "version")]
    cell = Cell(*place, record.get("memory", "plain"), record.get("api", "methods"), ours, record.get("path", ""))
    cell.median, cell.calls = record["median_us"], record["calls"]
    cell.quartiles = tuple(record["quartiles_us"])
    return cell


def as_record(cell: Cell) -> dict[str, Any]:
    """One figure; memory and API are pynickel's."""
    own = {"memory": cell.memory, "api": cell.api, "path": cell.path} if cell.ours else {}
    return {
        "nranks": cell.nranks,
        "operation": cell.operation,
        "bytes": cell.size,
        "library": cell.peer,
        "version": cell.version,
        **own,
        "median_us": round(cell.median, 4),
        "quartiles_us": [round(value, 4) for value in cell.quartiles],
        "calls": cell.calls,
    }
