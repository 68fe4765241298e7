"""NumPy arrays, with the types that ml_dtypes adds."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from typing import Any

from ._nccl import ffi, lib
from .layout import View, not_dense, read_only

CHARS = ffi.typeof("char *")
NOWHERE = ffi.cast(CHARS, 0)


def read(array: Any, name: str, writable: bool) -> View:
    """The memory of an ndarray."""
    if hasattr(array, "mask"):
        raise TypeError(f"{name} is a masked array; NCCL knows no masks, pass its data")
    if not array.flags.c_contiguous:
        raise not_dense(name, array.shape, array.strides)
    if writable and not array.flags.writeable:
        raise read_only(name, array)
    dtype = array.dtype
    raw = dtype.itemsize if dtype.kind == "u" or (dtype.kind == "V" and dtype.name.startswith("void")) else 0
    keep = ffi.from_buffer(CHARS, array, writable)
    return View(keep - NOWHERE, array.nbytes, dtype, raw=raw, keep=keep)


def show(array: Any, dtypes: Any) -> Any:
    """The class ndarray. C reads such arrays in place from now on, if it reads of this one what the array says."""
    kind = sys.modules["numpy"].ndarray
    if type(array) is kind:
        address, _ = array.__array_interface__["data"]
        lib.pn_know_arrays(id(kind), id(array), address, array.size, array.flags.num, id(array.dtype), id(dtypes))
    return kind
