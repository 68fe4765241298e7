"""The CUDA array interface, versions 0 to 3 (Numba, JAX, RAPIDS ...): NumPy's dictionary with device memory and a stream."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from . import _array_interface
from .enums import DataType
from .layout import DEVICE, View


def read(obj: Any, name: str, writable: bool) -> View:
    """The device memory that `__cuda_array_interface__` tells of, and the stream on which it will be ready, if it names one."""
    interface = obj.__cuda_array_interface__
    view = _array_interface.parse(obj, interface, name, writable, DEVICE, "memory of a CUDA device")
    if isinstance(element := getattr(obj, "element", None), DataType):  # our own say more than the interface has names for
        view = view._replace(dtype=element)
    stream = interface.get("stream")
    if stream is None:
        return view
    if isinstance(stream, bool) or not isinstance(stream, int) or stream <= 0:
        raise ValueError(
            f"{name} ({type(obj).__name__}) names stream {stream!r} in its CUDA array interface; None, 1, 2 or a handle is allowed"
        )
    return view._replace(after=stream)
