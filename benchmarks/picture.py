"""Time against size for each library, one panel for each operation and number of ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from report import Cell, short  # noqa: E402

STYLES: dict[str, dict[str, Any]] = {
    "empty": {"color": "tab:blue", "marker": "o", "linewidth": 2.0},
    "plain": {"color": "tab:cyan", "marker": "o", "linewidth": 2.0},
    "Open MPI": {"color": "tab:orange", "marker": "s"},
    "MPICH": {"color": "tab:red", "marker": "^"},
    "Intel MPI": {"color": "tab:purple", "marker": "v"},
    "gloo": {"color": "tab:gray", "marker": "x"},
}
TITLES = {"empty": "pynickel, empty() memory", "plain": "pynickel, plain arrays"}


def draw(cells: Sequence[Cell], path: Path, machine: str) -> None:
    """Write the picture; the format follows from the file's name."""
    operations = list(dict.fromkeys(cell.operation for cell in cells))
    ranks = list(dict.fromkeys(cell.nranks for cell in cells))
    sizes = sorted({cell.size for cell in cells})
    ticks = sizes if len(sizes) < 6 else sizes[:: -(-len(sizes) // 5)]
    figure, panels = plt.subplots(
        len(ranks), len(operations), figsize=(4.2 * len(operations), 3.8 * len(ranks)), squeeze=False, sharex=True, layout="constrained"
    )
    for nranks, row in zip(ranks, panels, strict=True):
        for operation, panel in zip(operations, row, strict=True):
            block = [cell for cell in cells if (cell.nranks, cell.operation) == (nranks, operation)]
            for label in (label for label in STYLES if any(cell.label == label for cell in block)):
                points = sorted((cell.size, cell.median) for cell in block if cell.label == label)
                panel.plot(*zip(*points, strict=True), label=TITLES.get(label, label), markersize=4, **STYLES[label])
            panel.set(xscale="log", yscale="log", title=f"{operation}, {nranks} ranks")
            panel.set_xticks(ticks, [short(size) for size in ticks], rotation=45)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    for row in panels:
        row[0].set_ylabel("median microseconds")
    handles, labels = max((panel.get_legend_handles_labels() for panel in panels.flat), key=lambda found: len(found[1]))
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(machine, fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
