"""How far a run is: a bar on the terminal that the user looks at, while the table goes elsewhere."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

WIDTH = 30  # characters of the bar
ERASE = "\r\x1b[K"


def terminal(as_json: bool) -> str | None:
    """The terminal for the bar: that of stderr, unless the table's lines on it show as much."""
    if not sys.stderr.isatty() or (sys.stdout.isatty() and not as_json):
        return None
    try:
        return os.ttyname(sys.stderr.fileno())
    except (OSError, ValueError):
        return None


class Bar:
    """Drawn anew after each of `steps` (0: nobody knows how many); nothing of it stays when it is closed."""

    def __init__(self, path: str | None, title: str, steps: int) -> None:
        self.title, self.steps, self.done, self.begin = title, steps, 0, time.monotonic()
        self.file: TextIO | None = None
        try:
            if path is not None:
                self.file = open(os.open(path, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8", errors="replace")
        except OSError:  # a terminal of somebody else, or none any more
            return
        self.draw()

    def step(self) -> None:
        """One is done."""
        self.done += 1
        self.draw()

    def draw(self) -> None:
        """The bar as it is now."""
        text = f"{self.title} {self.done}"
        if self.steps:
            filled = WIDTH * self.done // self.steps
            text = f"{self.title} [{'#' * filled}{'-' * (WIDTH - filled)}] {self.done}/{self.steps}"
        self.write(f"{text}  {time.monotonic() - self.begin:.0f} s")

    def write(self, text: str) -> None:
        """Put it where the last one was; a terminal that has gone is no matter."""
        if self.file is not None:
            try:
                self.file.write(ERASE + text)
                self.file.flush()
            except OSError:
                self.file = None

    def close(self) -> None:
        """Clear the line."""
        self.write("")
