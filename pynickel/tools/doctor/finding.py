"""One finding: OK, a note, or a problem with its remedy."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import NamedTuple

OK, NOTE, PROBLEM = "OK", "note", "problem"
COLOURS = {OK: "green", NOTE: "yellow", PROBLEM: "red"}


class Finding(NamedTuple):
    """`topic`: what was looked at, in a word or two; `remedy`: what to do, for problems and some notes."""

    level: str
    topic: str
    text: str
    remedy: str = ""
