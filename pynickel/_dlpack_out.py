"""The other side of DLPack: a capsule of our own memory for array libraries that ask for one."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from typing import Any

from ._dlpack import CPU, KINDS, NARROW, ROCM
from ._nccl import ffi, lib
from .enums import DataType

CUDA = 2
HOME = {"host": CPU, "rccl": ROCM}  # by the kind of library; all others work on CUDA devices
CODES = {kind: code for code, kind in KINDS.items()}
NARROW_CODES = {name: code for (code, _), name in NARROW.items()}
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def device_of(kind: str, address: int) -> tuple[int, int]:
    """DLPack's device type and number of memory from a library of that kind."""
    if kind == "host":
        return CPU, 0
    from . import driver

    return HOME.get(kind, CUDA), driver.ordinal(address) or 0


def capsule(
    owner: Any,
    address: int,
    shape: tuple[int, ...],
    element: DataType,
    device: tuple[int, int],
    max_version: Any,
    dl_device: Any,
    copy: Any,
) -> Any:
    """Dense elements at an address, in the newest form that the caller knows; `owner` lives until the last user is done."""
    if copy:
        raise BufferError("memory of a library is shown where it is; copy=True cannot be had, copy what you get")
    if dl_device is not None and tuple(dl_device) != device:
        raise BufferError(f"the memory is on DLPack device {device} and cannot be shown on {dl_device!r}")
    versioned = int(max_version is not None and max_version[0] >= 1)
    code = NARROW_CODES[element.name] if element.name in NARROW_CODES else CODES[element.name[0]]
    sizes = ffi.new("int64_t[]", shape)
    made = lib.pn_dlpack_new(versioned, id(owner), address, *device, code, element.itemsize * 8, len(shape), sizes)
    if made == ffi.NULL:
        raise MemoryError("no memory for a DLPack capsule")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))  # what it has taken over
    return new_capsule(int(ffi.cast("uintptr_t", made)), lib.pn_dlpack_name(versioned), lib.pn_dlpack_destructor())
