"""DLPack, versions 0 and 1: a capsule with a C struct that tells of memory on any device."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

from .layout import BOTH, BY_KIND, DEVICE, HOST, View, is_dense, not_dense, read_only

CPU = 1
DEVICES = {1: (HOST, "host memory"), 2: (DEVICE, "memory of a CUDA device"), 3: (BOTH, "pinned host memory"),
           10: (DEVICE, "memory of a ROCm device"), 11: (BOTH, "pinned host memory"), 13: (BOTH, "managed memory")}  # fmt: skip
KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
NARROW = {(4, 16): "bfloat16", (10, 8): "float8e4m3", (12, 8): "float8e5m2"}
CUDA, ROCM = (2, 13), 10
LEGACY = 1  # CUDA's default stream; 0 is not allowed there, for it could mean two streams
NO_ORDER = -1
READ_ONLY, COPIED = 1, 2


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, DLPack 1; in DLPack 0 the tensor comes first and flags do not exist."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


def read(obj: Any, name: str, writable: bool, stream: int | None = None) -> View:
    """The memory in the capsule. It is not consumed: kept, it keeps the memory; dropped, it gives it back by itself.

    The producer makes `stream` wait for its own work on the memory; None asks for no such order.
    """
    capsule = capsule_of(obj, name, stream)
    tensor, flags = unpack(capsule, name)
    if writable and flags & (READ_ONLY | COPIED):
        raise read_only(name, obj)
    itemsize = tensor.bits * tensor.lanes // 8
    shape = tensor.shape[: tensor.ndim]
    strides = [stride * itemsize for stride in tensor.strides[: tensor.ndim]] if tensor.strides else None
    if not is_dense(shape, strides, itemsize):
        raise not_dense(name, shape, strides)
    where, place = DEVICES.get(tensor.device_type, ("", f"memory of DLPack device type {tensor.device_type}"))
    address = (tensor.data or 0) + tensor.byte_offset
    raw = itemsize if tensor.code == 1 else 0
    gpu = tensor.device_id if where == DEVICE else None
    return View(address, prod(shape) * itemsize, dtype_of(tensor), raw=raw, keep=capsule, where=where, place=place, gpu=gpu)


def capsule_of(obj: Any, name: str, stream: int | None) -> Any:
    """The newest form that the producer knows, of the memory where it is, without a copy."""
    if not hasattr(obj, "__dlpack_device__"):
        raise TypeError(f"{name} ({type(obj).__name__}) has __dlpack__ but no __dlpack_device__; both belong to DLPack")
    device = obj.__dlpack_device__()
    if not (isinstance(device, tuple) and len(device) == 2):
        raise TypeError(f"{name} ({type(obj).__name__}) answered __dlpack_device__ with {device!r}; (device type, number) is understood")
    order = stream_for(device[0], stream)
    forms: list[dict[str, Any]] = [{"max_version": (1, 0), "dl_device": device, "copy": False}, {"max_version": (1, 0)}]
    try:
        for form in forms:
            try:
                return obj.__dlpack__(**form, **order)
            except TypeError:  # an older producer does not know these arguments
                continue
        return obj.__dlpack__(**order)
    except BufferError as error:
        raise ValueError(f"{name} ({type(obj).__name__}) cannot be shown by DLPack: {error}") from error


def stream_for(device_type: int, stream: int | None) -> dict[str, int]:
    """What the producer is told of our stream; memory of the host has none."""
    if device_type in CUDA:
        return {"stream": NO_ORDER if stream is None else stream or LEGACY}
    return {"stream": NO_ORDER if stream is None else stream} if device_type == ROCM else {}


def unpack(capsule: Any, name: str) -> tuple[Tensor, int]:
    """The tensor and the flags."""
    if is_valid(capsule, b"used_dltensor_versioned") or is_valid(capsule, b"used_dltensor"):
        raise ValueError(f"{name} gave a DLPack capsule that something else has consumed; it must make a new one for each call")
    if is_valid(capsule, b"dltensor_versioned"):
        versioned = Versioned.from_address(get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major > 1:
            raise TypeError(f"{name} speaks DLPack {versioned.major}.{versioned.minor}; 0 and 1 are understood")
        return versioned.tensor, versioned.flags
    if not is_valid(capsule, b"dltensor"):
        raise TypeError(f"{name} answered __dlpack__ with {capsule!r}; a capsule named dltensor or dltensor_versioned is understood")
    return Tensor.from_address(get_pointer(capsule, b"dltensor")), 0


def dtype_of(tensor: Tensor) -> Any:
    """The element type, or words for one that NCCL does not have."""
    if tensor.lanes == 1 and (tensor.code, tensor.bits) in NARROW:
        return NARROW[tensor.code, tensor.bits]
    unknown = f"with DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
    if tensor.lanes != 1 or tensor.code not in KINDS:
        return unknown
    return BY_KIND.get(f"{KINDS[tensor.code]}{tensor.bits // 8}", unknown)
