"""The CUDA array interface (CuPy, Numba, PyTorch): NumPy's dictionary with device memory and a stream."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from . import _array_interface
from .layout import DEVICE, View


def read(obj: Any, name: str, writable: bool) -> View:
    """The device memory that `__cuda_array_interface__` tells of."""
    return _array_interface.parse(obj, obj.__cuda_array_interface__, name, writable, DEVICE, "memory of a CUDA device")
