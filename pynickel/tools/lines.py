"""The output of one rank, shown line by line with a prefix; a traceback is held until it is known whether its rank dies of it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

_TRACEBACK = b"Traceback (most recent call last):"
_HOLD = 1.0  # seconds; a program that goes on after printing a traceback shows it then
_GLANCE = 100  # milliseconds between two looks whether to stop, while nobody reads our output
_KEPT = 20  # lines for the report
_LONGEST = 1 << 20  # bytes without a newline that are held back


def write(out: int, data: bytes | memoryview, stop: Callable[[], bool]) -> bool:
    """Write all to a descriptor of ours; while nobody reads there, look whether to stop, and then leave the rest out.

    When it is closed, everything is left out, since the ranks must not stop for it; False then.
    """
    poll = select.poll()
    poll.register(out, select.POLLOUT)
    data = memoryview(data)
    try:
        while data:
            if poll.poll(0) or poll.poll(0 if stop() else _GLANCE):
                data = data[os.write(out, data[: select.PIPE_BUF]) :]  # so much fits, and the call does not wait
            elif stop():
                break
    except OSError:
        return False
    return True


class Lines:
    """What one descriptor of a rank brings, on its way to ours."""

    def __init__(self, prefix: str, out: int, stop: Callable[[], bool] = lambda: False) -> None:
        self._prefix, self._out, self._stop = prefix.encode(), out, stop
        self.unread = False  # nobody reads it any more
        self._part = b""  # a line without its end
        self._held: list[bytes] = []  # a traceback that may be the rank's last words
        self._since = 0.0
        self._shown: list[bytes] = []  # the last lines that were shown

    def take(self, data: bytes) -> None:
        """Show the lines that are complete."""
        *lines, self._part = (self._part + data).split(b"\n")
        if len(self._part) > _LONGEST:
            lines, self._part = [*lines, self._part], b""
        shown = []
        for line in lines:
            if self._held or line.startswith(_TRACEBACK):
                self._since = self._since if self._held else time.monotonic()
                self._held.append(line)
            else:
                shown.append(line)
        self._show(shown)

    def release(self, now: float) -> None:
        """Show what was held for long."""
        if self._held and now - self._since > _HOLD:
            held, self._held = self._held, []
            self._show(held)

    def end(self) -> None:
        """Show everything that is left."""
        held, self._held = self._held, []
        self._show(held + ([self._part] if self._part else []))
        self._part = b""

    def last(self) -> list[str]:
        """The last lines: those that were held, else the last ones that were shown."""
        lines = self._held or self._shown[-_KEPT:]
        return [line.decode(errors="replace") for line in [*lines, self._part] if line][-_KEPT:]

    def _show(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._shown = (self._shown + lines)[-_KEPT:]
        data = b"".join(self._prefix + line + b"\n" for line in lines)
        self.unread = not write(self._out, data, self._stop)
