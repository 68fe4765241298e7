"""Words of other processes on a terminal: in one line, and with nothing in them that the terminal would obey."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations


def plain(text: str) -> str:
    """The text with a space for each run of white space and ? for what else cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
