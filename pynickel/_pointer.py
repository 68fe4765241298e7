"""Bare addresses: ints, NumPy's integers, and pointers of cffi. Nothing is known about the memory behind them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from numbers import Integral
from typing import Any

from ._nccl import ffi
from .layout import View

LIMIT = 1 << 64  # of an address


def address_of(obj: Any) -> int | None:
    """The number that an object of this kind stands for; None for any other object."""
    if isinstance(obj, Integral):
        return int(obj)
    if isinstance(obj, ffi.CData) and ffi.typeof(obj).kind == "pointer":
        return int(ffi.cast("uintptr_t", obj))
    return None


def read(address: int, name: str) -> View:
    """The memory at an address; its size and type come from the other arguments of the call."""
    if not 0 <= address < LIMIT:
        raise ValueError(f"{name} {address} is no address: it must be at least 0 and below 2**64")
    return View(address, 0, None)
