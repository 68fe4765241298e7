"""NumPy arrays, with the types that ml_dtypes adds."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from ._nccl import ffi
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
