"""The few questions that only the CUDA driver can answer; asked only where a CUDA library is in use."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from . import search
from .errors import CudaError

SUCCESS, INVALID_VALUE, NOT_READY = 0, 1, 600
MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
LEGACY = 1  # the default stream by the name that no 0 can be mistaken for
NEEDED = ("cuInit", "cuStreamQuery", "cuPointerGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemcpy",
          "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2")  # fmt: skip


@cache
def driver() -> Any:
    """libcuda, or None where there is no driver."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return found if all(hasattr(found, name) for name in NEEDED) else None


def in_process() -> bool:
    """Whether something in this process, NCCL for one, has loaded the driver."""
    return bool(search.mapped(r"libcuda\.so(\.[\d.]+)?"))


def is_done(stream: int) -> bool:
    """Whether the work queued on a stream has ended."""
    found = driver()
    code = found.cuStreamQuery(ctypes.c_void_p(stream)) if found else SUCCESS
    if code not in (SUCCESS, NOT_READY):
        raise CudaError(f"cuStreamQuery of stream {stream:#x} failed with CUresult {code}", code=code, function="cuStreamQuery")
    return bool(code == SUCCESS)


def order(first: int, then: int) -> None:
    """Work queued on stream `then` from now on waits for what is queued on stream `first`; the host does not wait."""
    found = driver()
    if found is None or (first or LEGACY) == (then or LEGACY):
        return
    event, a, b = ctypes.c_void_p(), ctypes.c_void_p(first), ctypes.c_void_p(then)
    code = found.cuEventCreate(ctypes.byref(event), NO_TIMING)
    if code == SUCCESS:
        code = found.cuEventRecord(event, a) or found.cuStreamWaitEvent(b, event, 0)
        found.cuEventDestroy_v2(event)  # CUDA keeps it until nothing waits for it
    if code != SUCCESS:
        raise CudaError(
            f"stream {then:#x} cannot be made to wait for the buffer's stream {first:#x}: CUresult {code}; "
            "both must belong to the device that is current in this thread",
            code=code,
            function="cuStreamWaitEvent",
        )


def refuse_plain_memory(address: int, name: str) -> None:
    """Raise if CUDA does not know the memory; pinned, managed and device memory it knows."""
    found = driver()
    kind = ctypes.c_uint(0)
    if found and found.cuPointerGetAttribute(ctypes.byref(kind), MEMORY_TYPE, ctypes.c_uint64(address)) == INVALID_VALUE:
        raise ValueError(f"{name} is plain host memory, which NCCL cannot reach from a GPU; pass device, managed or pinned memory")


def ordinal(address: int) -> int | None:
    """The number of the device on which memory is; None where CUDA cannot say."""
    found = driver()
    number = ctypes.c_int(0)
    if found is None or found.cuPointerGetAttribute(ctypes.byref(number), DEVICE_ORDINAL, ctypes.c_uint64(address)) != SUCCESS:
        return None
    return number.value


def use_device(device: int) -> None:
    """Make a device the current one of this thread, as cudaSetDevice does."""
    found = driver()
    if found is None:
        return
    context = ctypes.c_void_p()
    code = found.cuInit(0) or found.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or found.cuCtxSetCurrent(context)
    if code != SUCCESS:
        raise CudaError(f"device {device} cannot be used: CUresult {code}; is there such a GPU?", code=code, device=device)


def copy(to: int, source: int, nbytes: int) -> None:
    """Copy between host and device memory, in either direction; returns when it is done."""
    found = driver()
    code = found.cuMemcpy(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)) if found else INVALID_VALUE
    if code != SUCCESS:
        raise CudaError(f"cuMemcpy of {nbytes} bytes failed with CUresult {code}", code=code, function="cuMemcpy")
