"""Python's own buffer protocol: bytearray, memoryview, array.array, mmap, ctypes arrays, cffi buffers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from ._nccl import ffi
from ._numpy import CHARS, NOWHERE
from .layout import BY_KIND, View, not_dense, read_only

KINDS = {
    "c": "u", "?": "b", "Zf": "c", "Zd": "c",
    **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("efd", "f"),
}  # fmt: skip


def view_of(obj: Any) -> memoryview | None:
    """The memoryview of an object, or None where it has no buffer protocol."""
    try:
        return memoryview(obj)
    except TypeError:
        return None


def read(obj: Any, view: memoryview, name: str, writable: bool) -> View:
    """The memory behind a memoryview of obj."""
    if not view.c_contiguous:
        raise not_dense(name, view.shape or (), view.strides)
    if writable and view.readonly:
        raise read_only(name, obj)
    kind = KINDS.get(view.format.lstrip("@=<"), "")
    dtype = BY_KIND.get(f"{kind}{view.itemsize}", f"with buffer format {view.format!r}")
    keep = ffi.from_buffer(CHARS, obj, writable)
    return View(keep - NOWHERE, view.nbytes, dtype, raw=view.itemsize if kind == "u" else 0, keep=keep)
