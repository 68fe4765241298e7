"""No small case is forgotten: each has its number in the docstring of at least one test."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ast
import re
from pathlib import Path

NUMBERS = (
    "01 02 03 04 06 08 11 12 13 14 16 18 19 20 22 24 26 28 30 32 33 34 36 39 40 42 44 46 47 49 50 52 54 55 58 60 62 63 66 67 68 69 70 71 "
    "73 74 75 76 77 78"
)


def test_every_scenario_has_a_test() -> None:
    """Every number of the list of small cases is that of a test, and no test has a number that the list has not."""
    found: dict[str, list[str]] = {}
    for file in sorted(Path(__file__).parent.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for numbers in re.findall(r"\b[Ss]cenarios? (\d\d[a-z]?(?:, \d\d[a-z]?)*)", ast.get_docstring(node) or ""):
                    for number in numbers.split(", "):
                        found.setdefault(number[:2], []).append(f"{file.name}::{node.name}")
    assert set(found) == set(NUMBERS.split()), (set(NUMBERS.split()) - set(found), {n: found[n] for n in set(found) - set(NUMBERS.split())})
