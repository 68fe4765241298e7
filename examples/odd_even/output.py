"""What a run shows and leaves: a progress bar on a terminal or plain lines, the log, the picture of both curves."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saved import Progress, whole

HEADING = "average loss per sample\taverage validation error %\n"


class Output:
    """Where the parent's lines go. On a terminal a progress bar stands for the lines of updates and epochs."""

    def __init__(self, quiet: bool, debug: bool, done: int, total: int) -> None:
        self.lines = not quiet
        self.bar = None if quiet or debug or not sys.stdout.isatty() else progress_bar(done, total)

    def say(self, text: str) -> None:
        """Print a line at once."""
        if self.bar is None:
            print(text, flush=True)
        else:
            self.bar.write(text)

    def detail(self, text: str) -> None:
        """Print a line of an update or an epoch, unless a bar stands for it."""
        if self.lines and self.bar is None:
            print(text, flush=True)

    def advance(self, loss: float, error: float) -> None:
        """Move the bar by one update."""
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.1e}, validation error {error:.0%}", refresh=False)
            self.bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def progress_bar(done: int, total: int) -> Any:
    """tqdm's bar, or None without tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=done, unit="update", file=sys.stdout, dynamic_ncols=True)


class Log:
    """A text file: two names, then two numbers for each epoch, which are there as soon as the epoch is over."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path = path
        rows = [row(*pair) for pair in zip(progress.losses, progress.errors, strict=True)]
        path.write_text("".join([HEADING, *rows]))

    def add(self, loss: float, error: float) -> None:
        """One more row."""
        with open(self.path, "a") as file:
            file.write(row(loss, error))


def row(loss: float, error: float) -> str:
    """A line of the log."""
    return f"{loss:.4e}\t{100 * error:.4e}\n"


def draw(path: Path, losses: Sequence[float], errors: Sequence[float]) -> None:
    """Draw both curves over the epochs; ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    epochs = range(1, len(losses) + 1)
    left.semilogy(epochs, losses, ".-", color="tab:blue", linewidth=1, markersize=2)
    right.plot(epochs, [100 * error for error in errors], ".-", color="tab:orange", linewidth=1, markersize=2)
    left.set_xlabel("epoch")
    left.set_ylabel("average loss per sample", color="tab:blue")
    right.set_ylabel("validation error %", color="tab:orange")
    right.set_ylim(bottom=0)
    with whole(path) as file:
        figure.savefig(file, format="png", dpi=80)
