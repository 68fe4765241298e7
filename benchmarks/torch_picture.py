"""Time against size of torch.distributed's backends, one panel for each operation, and the parts of a training step."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from report import short  # noqa: E402

STYLES: dict[str, dict[str, Any]] = {
    "pynickel": {"color": "tab:blue", "marker": "o", "linewidth": 2.0},
    "gloo": {"color": "tab:gray", "marker": "x"},
    "mpi": {"color": "tab:orange", "marker": "s"},
}


def draw(cells: Sequence[dict[str, Any]], path: Path, machine: str) -> None:
    """Write the picture, of the smallest number of ranks that was measured."""
    nranks = min(cell["nranks"] for cell in cells)
    cells = [cell for cell in cells if cell["nranks"] == nranks]
    operations = [name for name in dict.fromkeys(cell["operation"] for cell in cells) if name != "step"]
    columns = 3
    rows = -(-(len(operations) + 1) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for operation, panel in zip(operations, panels.flat, strict=False):
        for name, style in STYLES.items():
            points = sorted((c["bytes"], c["median_us"]) for c in cells if c["operation"] == operation and c["backend"] == name)
            if points:
                panel.plot(*zip(*points, strict=True), label=name, markersize=4, **style)
        sizes = sorted({cell["bytes"] for cell in cells if cell["operation"] == operation})
        panel.set(xscale="log", yscale="log", title=operation)
        panel.set_xticks(sizes[::2], [short(size) for size in sizes[::2]], rotation=45)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    steps = {cell["backend"]: cell["median_us"] / 1000 for cell in cells if cell["operation"] == "step"}
    last = panels.flat[len(operations)]
    last.bar(list(steps), list(steps.values()), color=[STYLES.get(name, {"color": "tab:green"})["color"] for name in steps])
    last.set(title="a training step, milliseconds")
    for panel in list(panels.flat)[len(operations) + 1 :]:
        panel.set_axis_off()
    for row in panels:
        row[0].set_ylabel("median microseconds")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"torch.distributed, {nranks} ranks; {machine}", fontsize="small")
    figure.savefig(path, dpi=100)
    plt.close(figure)
