"""What went wrong in a child, told so that the parent can show it: ChildError."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal

_INDENT = "    "


class ChildError(RuntimeError):
    """A child failed, or ended while something was still expected of it.

    `id` and `pid` say which; `traceback` is its traceback (empty when it was killed or left by itself);
    `exitcode` is its exit code, minus the signal number if one killed it, None while that is not known.
    `follows` is True when the child lost somebody else: the cause is rather there.
    """

    follows = False

    def __init__(self, text: str, *, id: int = 0, pid: int = 0, traceback: str = "", exitcode: int | None = None) -> None:
        super().__init__(text)
        self.id = id
        self.pid = pid
        self.traceback = traceback
        self.exitcode = exitcode


ChildError.__module__ = "pynickel.parallel"  # where users find it, and what a traceback shows


def end_in_words(exitcode: int) -> str:
    """Return 'was killed by SIGKILL' or 'exited with code 3'."""
    if exitcode < 0:
        return f"was killed by {_signal_name(-exitcode)}"
    by_signal = f" (ended by {_signal_name(exitcode - 128)})" if exitcode - 128 in list(signal.Signals) else ""
    return f"exited with code {exitcode}{by_signal}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def quoted(heading: str, text: str) -> str:
    """Return the text, indented, under a heading; nothing when there is no text."""
    if not text.strip():
        return ""
    lines = "\n".join(_INDENT + line for line in text.rstrip().splitlines())
    return f"\n{heading}:\n{lines}"
