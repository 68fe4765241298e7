"""What a benchmark has found: the table with its ratios, the targets, and JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

MPI = ("Open MPI", "MPICH")
# What is promised of an all-reduce, as ratios to the better of Open MPI and MPICH: by ranks, memory and size.
TARGETS = {
    (2, "empty"): {1 << 16: 3.0, 1 << 20: 4.0, 1 << 24: 3.0, 1 << 26: 4.0},
    (2, "plain"): {1 << 10: 1.0, 1 << 16: 1.2, 1 << 20: 1.1, 1 << 26: 1.5},
    (4, "empty"): dict.fromkeys((8, 16, 64, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 20, 1 << 22, 1 << 24, 1 << 26), 2.0),
    (4, "plain"): dict.fromkeys((1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 20, 1 << 22, 1 << 24, 1 << 26), 1.0),
}


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
    path: str = ""
    times: list[int] = field(default_factory=list)
    median: float = 0.0
    quartiles: tuple[float, float] = (0.0, 0.0)
    calls: int = 0

    def finish(self) -> None:
        """From the times of all calls, in nanoseconds, to microseconds."""
        self.calls = len(self.times)
        low, middle, high = statistics.quantiles(self.times, n=4)
        self.median, self.quartiles = middle / 1000, (low / 1000, high / 1000)
        self.times = []

    @property
    def is_ours(self) -> bool:
        """Whether it is pynickel."""
        return self.api != "methods" or self.memory == "empty" or self.peer == "pynickel"

    @property
    def label(self) -> str:
        """Its column."""
        if self.peer != "pynickel" and self.memory == "plain" and self.api == "methods":
            return self.peer
        name = "" if self.peer == "pynickel" else f"{self.peer} "
        return name + (self.memory if self.api == "methods" else f"{self.memory} {self.api}")


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


def write_table(cells: Sequence[Cell], out: TextIO) -> None:
    """A block for each number of ranks and operation: microseconds, then ratios to the better of Open MPI and MPICH."""
    labels = list(dict.fromkeys(cell.label for cell in cells))
    for nranks, operation in dict.fromkeys((cell.nranks, cell.operation) for cell in cells):
        block = [cell for cell in cells if (cell.nranks, cell.operation) == (nranks, operation)]
        out.write(f"\n{operation}, {nranks} ranks, float32: median microseconds; x: times as fast as the better of {' and '.join(MPI)}\n")
        rows = [["size", *labels, "x empty", "x plain", "x gloo", "path empty/plain"]]
        for size in sorted({cell.size for cell in block}):
            row = {cell.label: cell for cell in block if cell.size == size}
            medians = {label: row[label].median if label in row else None for label in labels}
            best = better(row)
            empty, plain, gloo = (medians.get(name) for name in ("empty", "plain", "gloo"))
            ratios = [ratio(best, empty), ratio(best, plain), ratio(gloo, empty)]
            paths = "/".join(row[label].path or "-" for label in ("empty", "plain") if label in row)
            rows.append([short(size), *(figure(medians[label]) for label in labels), *(figure(one) for one in ratios), paths])
        write_rows(rows, out)
    for line in judged(cells):
        out.write(line + "\n")
    out.write("\n" + ", ".join(dict.fromkeys(f"{cell.peer} ({cell.version})" for cell in cells)) + f"; {machine()}\n")


def write_rows(rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """Columns of one width, to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        out.write("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n")


def better(row: dict[str, Cell]) -> float | None:
    """The better of Open MPI and MPICH."""
    found = [row[name].median for name in MPI if name in row]
    return min(found) if found else None


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """How many times as fast."""
    return theirs / ours if theirs and ours else None


def judged(cells: Sequence[Cell]) -> list[str]:
    """Which targets are met."""
    lines = []
    for (nranks, memory), wanted in TARGETS.items():
        told = []
        for size, target in wanted.items():
            row = {cell.label: cell for cell in cells if (cell.nranks, cell.operation, cell.size) == (nranks, "all_reduce", size)}
            got = ratio(better(row), row[memory].median) if memory in row else None
            if got is not None:
                told.append(f"{short(size)} {got:.2f} of {target:g} {'met' if got >= target else 'MISSED'}")
        if told:
            lines.append(f"\ntargets, all_reduce, {nranks} ranks, {memory}: {'; '.join(told)}")
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


def as_json(cells: Sequence[Cell]) -> dict[str, Any]:
    """All figures."""
    return {
        "machine": machine(),
        "cells": [
            {
                "nranks": cell.nranks, "operation": cell.operation, "bytes": cell.size, "library": cell.peer, "version": cell.version,
                "memory": cell.memory, "api": cell.api, "path": cell.path, "median_us": round(cell.median, 4),
                "quartiles_us": [round(value, 4) for value in cell.quartiles], "calls": cell.calls,
            }
            for cell in cells
        ],
    }  # fmt: skip
