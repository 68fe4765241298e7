"""nccl-tests' table: the same comment lines, columns, widths and footer, so that its readers find every number where it was."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence

from .settings import Settings
from .sweep import Half, Row

BLOCK = (7, 6, 6, 6)  # widths of time, algbw, busbw, #wrong


def heading(settings: Settings, devices: Sequence[str], version: str, asked: int) -> str:
    """Everything above the first row; `asked`: the largest size that was asked for."""
    step = f"{settings.step_factor:g}(factor)" if settings.step_factor > 1 else f"{settings.step_bytes}(bytes)"
    lines = [
        f"# pynickel bench: {version}",
        f"# Collective test starting: {settings.collective}",
        f"# nThread {settings.threads} nGpus 1 minBytes {settings.min_bytes} maxBytes {settings.max_bytes} step: {step} "
        f"warmup iters: {settings.warmup} iters: {settings.iterations} agg iters: {settings.aggregated} "
        f"validation: {settings.checks} graph: 0",
        "#",
    ]
    if settings.blocking:
        note = {1: "wait and barrier after each iteration", 2: "wait after each iteration", 3: "wait and barrier after each group"}
        lines += [f"# Blocking enabled: {note[settings.blocking]}", "#"]
    lines += ["# Using devices", *devices, "#"]
    if settings.max_bytes < asked:
        lines += [f"# Reducing maxBytes to {settings.max_bytes} due to memory limitation", "#"]
    left, half = 12 + 2 + 12 + 2 + 8 + 2 + 6 + 2 + 6, sum(BLOCK) + 8
    lines += [
        "#" + " " * (left - 1) + f"{'out-of-place':^{half}}" + f"{'in-place':^{half}}",
        columns("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2),
        columns("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2),
    ]
    return "\n".join(line.rstrip() for line in lines)


def columns(size: str, count: str, kind: str, op: str, root: str, *cells: str) -> str:
    """One line of headings, above the columns of `line`."""
    widths = BLOCK * 2
    body = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"#{size:>11}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}{body}"


def line(row: Row) -> str:
    """One row."""
    left = f"{row.size:>12}  {row.count:>12}  {row.type:>8}  {row.op:>6}  {row.root:>6}"
    return left + cells(row.out_of_place) + cells(row.in_place)


def cells(half: Half | None) -> str:
    """The four columns of a form; a form that the collective has not is N/A."""
    if half is None:
        found = ("N/A",) * 4
    else:
        wrong = "N/A" if half.wrong is None else str(half.wrong)
        found = (fit(half.seconds * 1e6, BLOCK[0]), fit(half.algorithm, BLOCK[1]), fit(half.bus, BLOCK[2]), wrong)
    return "".join(f"  {cell:>{width}}" for cell, width in zip(found, BLOCK, strict=True))


def fit(value: float, width: int) -> str:
    """A number with as many of two decimals as the width has room for, else with an exponent."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.{max(0, width - 6)}e}"


class Summary:
    """What the footer and the exit status tell of all rows."""

    def __init__(self) -> None:
        self.wrong = 0
        self.halves = 0
        self.bus = 0.0  # the sum of all

    def add(self, row: Row) -> None:
        """Take in a row."""
        for half in (row.out_of_place, row.in_place):
            if half is not None:
                self.wrong += half.wrong or 0
                self.halves += 1
                self.bus += half.bus

    @property
    def bandwidth(self) -> float:
        """Mean bus bandwidth of all out-of-place and in-place entries, GB/s."""
        return self.bus / self.halves if self.halves else 0.0

    def footer(self, collective: str) -> str:
        """The lines below the table."""
        verdict = "OK" if self.wrong == 0 else "FAILED"
        return "\n".join(
            [
                f"# Out of bounds values : {self.wrong} {verdict}",
                f"# Avg bus bandwidth    : {self.bandwidth:g}",
                "#",
                f"# Collective test concluded: {collective}",
            ]
        )
