"""CuPy arrays, by their own attributes: the CUDA array interface has no names for their narrow floats."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from typing import Any

from .layout import DEVICE, View, is_dense, not_dense

LEGACY = 1  # what the null pointer is called in the CUDA array interface


def read(array: Any, name: str) -> View:
    """The device memory of a cupy.ndarray, ready on CuPy's current stream."""
    dtype = array.dtype
    if not is_dense(array.shape, array.strides, dtype.itemsize):
        raise not_dense(name, array.shape, array.strides)
    stream = sys.modules["cupy"].cuda.get_current_stream().ptr or LEGACY
    raw = dtype.itemsize if dtype.kind == "u" else 0
    gpu = getattr(getattr(array, "device", None), "id", None)
    return View(
        array.data.ptr, array.nbytes, dtype, raw=raw, keep=array, where=DEVICE, place="memory of a CUDA device", after=stream, gpu=gpu
    )
