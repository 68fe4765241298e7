"""NumPy's array interface: a dictionary with shape, type, address and strides."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import prod
from typing import Any

from .layout import BY_KIND, HOST, View, is_dense, not_dense, read_only


def read(obj: Any, name: str, writable: bool) -> View:
    """The memory that `__array_interface__` tells of."""
    return parse(obj, obj.__array_interface__, name, writable)


def parse(obj: Any, interface: dict[str, Any], name: str, writable: bool, where: str = HOST, place: str = "host memory") -> View:
    """The memory that an interface dictionary tells of; the CUDA form has the same entries."""
    data = interface.get("data") if isinstance(interface, dict) else None
    if not (isinstance(data, tuple) and len(data) == 2 and (data[0] is None or are_ints(data[:1], 0))):
        raise TypeError(f"{name} ({type(obj).__name__}) gives no address in its array interface (data {data!r}); pass the buffer itself")
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is a masked array; NCCL knows no masks, pass its data")
    address, is_read_only = data
    if writable and is_read_only:
        raise read_only(name, obj)
    typestr: Any = interface.get("typestr")
    shape: Any = interface.get("shape")
    strides: Any = interface.get("strides")
    if not (is_typestr(typestr) and are_ints(shape, 0) and (strides is None or (are_ints(strides) and len(strides) == len(shape)))):
        found = f"typestr {typestr!r}, shape {shape!r}, strides {strides!r}"
        raise TypeError(f"{name} ({type(obj).__name__}) has an array interface that cannot be read: {found}")
    kind, itemsize = typestr[1], int(typestr[2:])
    if not is_dense(shape, strides, itemsize):
        raise not_dense(name, shape, strides)
    dtype = BY_KIND.get(f"{kind}{itemsize}", f"with type {typestr!r}")
    if typestr[0] == ">":
        dtype = f"with type {typestr!r} (byte order of another machine)"
    return View(address or 0, prod(shape) * itemsize, dtype, raw=itemsize if kind in "uV" else 0, keep=obj, where=where, place=place)


def is_typestr(typestr: Any) -> bool:
    """Whether it names a byte order, a kind and a size."""
    return isinstance(typestr, str) and len(typestr) > 2 and typestr[2:].isdecimal()


def are_ints(numbers: Any, low: int | None = None) -> bool:
    """Whether these are ints, none of them below `low`."""
    return isinstance(numbers, (tuple, list)) and all(hasattr(n, "__index__") and (low is None or n >= low) for n in numbers)
