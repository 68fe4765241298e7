"""docs/c_to_python.md: no function of nccl.h is forgotten, and every Python name in it exists."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pynickel
from pynickel.batch import Group
from pynickel.library import symbols
from pynickel.owned import Owned
from pynickel.parameters import GETTERS
from pynickel.registration import Window

PAGE = Path(__file__).parents[1] / "docs" / "c_to_python.md"
ROWS = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
PARTS = {"op", "timeout", "with", "close", "user_pointer", "simulate"}  # arguments, syntax, and members of what the row is about
NAMES = sorted({name for _, _, python in ROWS for name in re.findall(r"`([\w.]+)", python)} - PARTS)


def test_no_function_is_forgotten() -> None:
    """The table has every function that is declared, once, with the release that it came with."""
    assert sorted((name, since) for name, since, _ in ROWS) == sorted((name, since) for name, (_, since) in symbols().items())


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name: str) -> None:
    """What the page says is there."""
    first, *rest = name.split(".")
    value: Any = pynickel.load("host") if first == "Library" else getattr(pynickel, first)
    for attribute in rest:
        assert hasattr(value, attribute), name
        value = getattr(value, attribute)


def test_members() -> None:
    """What the page names beside its object is there: simulate() of a group, close() of what a communicator owns."""
    assert hasattr(Group, "simulate") and hasattr(Owned, "close") and hasattr(Window, "user_pointer")


def test_readers_of_parameters() -> None:
    """Every type that the page shows can be read, and no other."""
    assert set(re.findall(r'parameters\.read\(key, "(\w+)"\)', PAGE.read_text())) == set(GETTERS)


def test_low_level_names() -> None:
    """What is there under its C name alone is there, on the CPU library too."""
    for name, _, python in ROWS:
        if python.startswith("`lib."):
            assert callable(getattr(pynickel.lib, name))
