"""Checks of what callers pass: numbers, names and flags, each refused by the argument's name, its value, and what is expected."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from operator import index
from typing import Any

LARGEST = (1 << 31) - 1


def as_int(value: Any, name: str) -> int:
    """An int of the caller's, of Python, NumPy or another; arrays and tensors are none, though their types have an __index__."""
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's up to 2.2 is an index, too
        try:
            return int(index(value))
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(value).__name__} {value!r}")


def as_index(value: Any, name: str, low: int, high: int, meaning: str) -> int:
    """An int of the caller's between low and high."""
    number = as_int(value, name)
    if not low <= number <= high:
        raise ValueError(f"{name} must be {meaning}, not {number}")
    return number


def as_name(value: Any, name: str = "name") -> str | None:
    """A text that the caller gives a thing, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, not {value!r}")
    return value


def as_flag(value: Any, name: str) -> bool:
    """A yes or no of the caller's; other values would be taken for a yes, whatever they were meant to say."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value
