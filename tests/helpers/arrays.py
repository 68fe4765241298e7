"""Host memory that speaks one protocol at a time, and may claim to be on another device."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pynickel._dlpack import Tensor, Versioned

CPU, CUDA, CUDA_HOST = 1, 2, 3
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class ArrayInterface:
    """NumPy's array interface and nothing else."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | changes


class CudaArrayInterface:
    """The CUDA array interface over host memory."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__array_interface__ | {"version": 3, "stream": 1} | changes


class DLPack:
    """A DLPack producer of version 0 or 1, for any device type, with capsules made by hand."""

    def __init__(self, array: Any, version: int = 1, device: int = CPU, flags: int = 0, **fields: Any) -> None:
        self.array, self.version, self.device, self.flags, self.fields = array, version, device, flags, fields
        self.streams: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.alive: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, stream: Any = None, **newer: Any) -> Any:
        self.asked.append(newer)
        if newer and self.version == 0:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        struct = Versioned(major=self.version, flags=self.flags, tensor=self.tensor()) if self.version else self.tensor()
        self.alive.append(struct)
        return new_capsule(ctypes.addressof(struct), b"dltensor_versioned" if self.version else b"dltensor", None)

    def tensor(self) -> Tensor:
        """The description of the array, with changed fields."""
        array = self.array
        dims = ctypes.c_int64 * max(array.ndim, 1)
        shape, strides = dims(*array.shape), dims(*(s // array.itemsize for s in array.strides))
        self.alive += [shape, strides]
        values = {
            "data": array.ctypes.data, "device_type": self.device, "ndim": array.ndim, "code": CODES.get(array.dtype.kind, 3),
            "bits": array.itemsize * 8, "lanes": 1, "shape": shape, "strides": strides, "byte_offset": 0,
        }  # fmt: skip
        return Tensor(**values | self.fields)


def kinds(array: Any) -> dict[str, Any]:
    """The same memory in every form that the CPU library can take."""
    flat = array.reshape(-1)
    return {
        "numpy": array,
        "memoryview": memoryview(flat),
        "array interface": ArrayInterface(array),
        "DLPack 0": DLPack(array, 0),
        "DLPack 1": DLPack(array, 1),
        "DLPack pinned": DLPack(array, 1, CUDA_HOST),
        "ctypes": (ctypes.c_float * flat.size).from_buffer(flat) if array.dtype == np.float32 else memoryview(flat),
    }
