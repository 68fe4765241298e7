"""The picture of a run: time and bus bandwidth against size."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .sweep import Row


def draw(path: Path, title: str, rows: Sequence[Row], others: Mapping[str, Mapping[int, float]]) -> None:
    """`others`: by name, what a peer needed, seconds by size, as drawn beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for (kind, op), group in grouped(rows).items():
        label = f"{kind} {op}" if op != "none" else kind
        forms = {"out of place": [(row.size, row.out_of_place) for row in group]}
        forms["in place"] = [(row.size, row.in_place) for row in group if row.in_place]
        for form, halves in forms.items():
            sizes, style = [size for size, _ in halves], "-o" if form == "out of place" else "--"
            if sizes:
                left.plot(sizes, [half.seconds * 1e6 for _, half in halves], style, label=f"{label}, {form}")
                right.plot(sizes, [half.bus for _, half in halves], style, label=f"{label}, {form}")
    for name, times in others.items():
        left.plot(list(times), [seconds * 1e6 for seconds in times.values()], marker="s", label=name)
    left.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (us)")
    right.set(xscale="log", xlabel="size (bytes)", ylabel="bus bandwidth (GB/s)")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows by type and operator; of several roots the last one counts, and nothing of size 0 is on a logarithmic axis."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if row.size:
            found.setdefault((row.type, row.op), {})[row.size] = row
    return {key: [by_size[size] for size in sorted(by_size)] for key, by_size in found.items()}
