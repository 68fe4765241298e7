"""Which protocol tells of an object's memory; each is a file of its own, loaded when the first object speaks it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from typing import Any

from .layout import View


def speak(obj: Any, name: str, writable: bool, stream: int | None) -> View:
    """Ask for each protocol in turn; objects of libraries that have several are asked by the one that tells most."""
    if isinstance(obj, (bool, float, complex, str, type)) or obj is None:
        raise TypeError(f"{name} must be a buffer or the address of one, not {obj!r}")
    if (view := of_library(obj, name, writable)) is not None:
        return view
    from . import _pointer

    if (address := _pointer.address_of(obj)) is not None:
        return _pointer.read(address, name)
    if hasattr(obj, "__cuda_array_interface__"):
        from . import _cuda_array_interface

        return _cuda_array_interface.read(obj, name, writable)
    if hasattr(obj, "__dlpack__"):
        from . import _dlpack

        return _dlpack.read(obj, name, writable, stream)
    from . import _pybuffer

    if (memory := _pybuffer.view_of(obj)) is not None:
        return _pybuffer.read(obj, memory, name, writable)
    if hasattr(obj, "__array_interface__"):
        from . import _array_interface

        return _array_interface.read(obj, name, writable)
    raise TypeError(
        f"{name} must be an int address or an object with DLPack, an array interface or the buffer protocol, "
        f"not {type(obj).__name__}; a list or a frame becomes an array by numpy.asarray"
    )


def of_library(obj: Any, name: str, writable: bool) -> View | None:
    """The memory of an object of NumPy, torch, CuPy or cuda.core, whichever of them the caller has brought."""
    if is_a(obj, "numpy", "ndarray"):
        from . import _numpy

        return _numpy.read(obj, name, writable)
    if is_a(obj, "torch", "Tensor"):
        from . import _torch

        return _torch.read(obj, name, writable)
    home = type(obj).__module__.split(".")
    if home[0] == "cupy" and hasattr(obj, "data") and hasattr(obj, "strides"):
        from . import _cupy

        return _cupy.read(obj, name)
    if home[:2] == ["cuda", "core"] and hasattr(obj, "handle") and hasattr(obj, "is_host_accessible"):
        from . import _cuda_core

        return _cuda_core.read(obj, name)
    return None


def is_a(obj: Any, module: str, name: str) -> bool:
    """Whether an object is of a class of a module that has been imported; if it has not, no object is."""
    return isinstance(obj, getattr(sys.modules.get(module), name, ()))
