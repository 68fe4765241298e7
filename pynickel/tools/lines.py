"""The output of one rank, shown line by line with a prefix; a traceback is held until it is known whether its rank dies of it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import time

_TRACEBACK = b"Traceback (most recent call last):"
_HOLD = 1.0  # seconds; a program that goes on after printing a traceback shows it then
_KEPT = 20  # lines for the report
_LONGEST = 1 << 20  # bytes without a newline that are held back


class Lines:
    """What one descriptor of a rank brings, on its way to ours."""

    def __init__(self, prefix: str, out: int) -> None:
        self._prefix, self._out = prefix.encode(), out
        self._part = b""  # a line without its end
        self._held: list[bytes] = []  # a traceback that may be the rank's last words
        self._since = 0.0
        self._shown: list[bytes] = []  # the last lines that were shown

    def take(self, data: bytes) -> None:
        """Show the lines that are complete."""
        *lines, self._part = (self._part + data).split(b"\n")
        if len(self._part) > _LONGEST:
            lines, self._part = [*lines, self._part], b""
        for line in lines:
            if self._held or line.startswith(_TRACEBACK):
                self._since = self._since if self._held else time.monotonic()
                self._held.append(line)
            else:
                self._show([line])

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
        with contextlib.suppress(OSError):  # our own output is closed; the ranks must not stop for it
            while data:
                data = data[os.write(self._out, data) :]
