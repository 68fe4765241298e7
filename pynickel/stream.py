"""What callers pass as a stream, as the number that the library gets."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from ._nccl import ffi
from .arguments import as_int

PER_THREAD = 2  # cudaStreamPerThread
LIMIT = 1 << 64


def as_stream(stream: Any) -> int:
    """The handle of a stream: None is 0, the default stream; 1 and 2 are CUDA's legacy and per-thread ones.

    Objects offer it by `__cuda_stream__`, torch by `cuda_stream` or `native_handle`, CuPy by `ptr`; a cudaStream_t of `ffi` works too.
    """
    if stream is None:
        return 0
    if type(stream) is int:
        return check_handle(stream, stream)
    if protocol := getattr(stream, "__cuda_stream__", None):
        answer = protocol() if callable(protocol) else protocol
        if not (isinstance(answer, tuple) and len(answer) == 2 and answer[0] == 0):
            raise TypeError(f"__cuda_stream__ of {stream!r} answered {answer!r}; (0, handle) is the form that is understood")
        return check_handle(answer[1], stream)
    for attribute in ("cuda_stream", "ptr", "native_handle"):
        if hasattr(stream, attribute):
            return check_handle(getattr(stream, attribute), stream)
    if isinstance(stream, ffi.CData) and ffi.typeof(stream) is ffi.typeof("cudaStream_t"):
        return int(ffi.cast("uintptr_t", stream))
    return check_handle(stream, stream)


def check_handle(handle: Any, stream: Any) -> int:
    """The handle as an int, or an error that says what a stream can be."""
    try:
        number = as_int(handle, "stream")
    except TypeError:
        raise TypeError(
            f"stream must be None, an int handle, or a stream of CUDA Python, torch or CuPy, not {type(stream).__name__} {stream!r}"
        ) from None
    if not 0 <= number < LIMIT:
        raise ValueError(f"stream {stream!r} is no handle: it must be at least 0 and below 2**64")
    return number
