"""Wall time of a training run against the number of processes, a panel for each net and batch, a line for each library."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator  # noqa: E402
from report import machine  # noqa: E402

STYLES: dict[str, dict[str, Any]] = {
    "pynickel": {"color": "tab:blue", "marker": "o", "linewidth": 2.0},
    "mpi": {"color": "tab:orange", "marker": "s"},
    "gloo": {"color": "tab:gray", "marker": "x"},
    "nccl": {"color": "tab:green", "marker": "^"},
}


def draw(figures: Mapping[tuple[str, int, str, int], list[float]], titles: Mapping[str, str], path: Path) -> None:
    """Write the picture; all lines of a panel begin at the one process alone."""
    nets = [net for net in titles if any(key[0] == net for key in figures)]
    batches = sorted({key[1] for key in figures})
    size = 4.6 * len(batches), 3.6 * len(nets)
    figure, panels = plt.subplots(len(nets), len(batches), figsize=size, squeeze=False, layout="constrained")
    for net, row in zip(nets, panels, strict=True):
        for batch, panel in zip(batches, row, strict=True):
            here = {key[2:]: seconds for key, seconds in figures.items() if key[:2] == (net, batch)}
            for comm, style in STYLES.items():
                points = sorted((n, seconds) for (name, n), seconds in here.items() if name == comm or name == "serial")
                if any(name == comm for name, _ in here):
                    counts, middles, spreads = zip(*((n, statistics.median(s), sd(s)) for n, s in points), strict=True)
                    panel.errorbar(counts, middles, spreads, label=comm, capsize=3, markersize=5, **style)
            panel.set(title=f"{titles[net]}, batch {batch}", xscale="log", yscale="log", xlabel="processes")
            ticks = sorted({n for _, n in here})
            panel.set_xticks(ticks, [str(n) for n in ticks])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.minorticks_off()
            panel.grid(alpha=0.3, which="both")
        row[0].set_ylabel("seconds")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)), frameon=False)
    figure.suptitle(f"the same updates; median and standard deviation of the runs\n{machine()}", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def sd(seconds: list[float]) -> float:
    """Standard deviation."""
    return statistics.stdev(seconds) if len(seconds) > 1 else 0.0
