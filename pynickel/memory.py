"""Memory from ncclMemAlloc, which NCCL moves fastest; it lives as long as anything looks at it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from ._nccl import ffi, lib
from .arguments import as_int
from .enums import DataType, as_dtype
from .library import Library, get_library, load

MOST = (1 << 63) - 1
NUMPY_NAMES = {DataType.bfloat16: "bfloat16", DataType.float8e4m3: "float8_e4m3fn", DataType.float8e5m2: "float8_e5m2"}


class Memory:
    """A block of `nbytes` at `address`, freed when it and every view of it are gone.

    On the CPU library NumPy views it (`numpy.asarray(memory)` is its bytes); on a GPU it offers the CUDA array interface. Both
    offer DLPack, for `from_dlpack` of torch, CuPy, JAX and NumPy; a view keeps the block.
    """

    def __init__(self, nbytes: int, library: Library, shape: tuple[int, ...], element: DataType) -> None:
        self.library = library
        self.nbytes, self.shape, self.element = nbytes, shape, element
        out = ffi.new("void **")
        library.check(lib.ncclMemAlloc(library.table, out, max(nbytes, 1)), "ncclMemAlloc")
        # The last view drops the block, wherever that happens; freeing is local and waits for nobody.
        self._block = ffi.gc(out[0], lambda block: lib.ncclMemFree(library.table, block))
        self.address = int(ffi.cast("uintptr_t", out[0]))
        # The array interface of the side on which the memory is; the other one must not seem to exist.
        side = "__array_interface__" if library.kind == "host" else "__cuda_array_interface__"
        interface = {"shape": shape, "typestr": typestr(element), "strides": None, "data": (self.address, False), "version": 3}
        setattr(self, side, interface)

    def __dlpack_device__(self) -> tuple[int, int]:
        from . import _dlpack_out

        return _dlpack_out.device_of(self.library.kind, self.address)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """A capsule of this memory. No work of its own is under way on it, so that `stream` has nothing to wait for."""
        from . import _dlpack_out

        return _dlpack_out.capsule(self, self.address, self.shape, self.element, self.__dlpack_device__(), max_version, dl_device, copy)

    def __repr__(self) -> str:
        return f"<Memory of {self.nbytes} bytes at {self.address:#x}, {self.library.kind} library>"

    def __len__(self) -> int:
        return self.nbytes

    def __reduce__(self) -> NoReturn:
        raise TypeError("memory of a library lives in its process and cannot be pickled; send what it holds, as a NumPy array for one")


def mem_alloc(nbytes: int, *, library: str | os.PathLike[str] | Library | None = None) -> Memory:
    """`nbytes` bytes from ncclMemAlloc: host memory with the CPU library, memory of the current device with the others.

    NotAvailableError before NCCL 2.19.
    """
    return Memory(checked_size(nbytes, "nbytes"), chosen(library), (nbytes,), DataType.uint8)


def empty(shape: int | Sequence[int], dtype: Any = DataType.float32, *, library: str | os.PathLike[str] | Library | None = None) -> Any:
    """An uninitialised C-contiguous array in memory from ncclMemAlloc, freed when the last view of it is gone.

    With the CPU library a NumPy array (bfloat16 and the float8 types need ml_dtypes); with the others a Memory of this
    shape for CuPy, torch or Numba.
    """
    found = chosen(library)
    dims = checked_shape(shape)
    element = as_dtype(dtype)
    nbytes = checked_size(prod(dims) * element.itemsize, "the size in bytes")
    if found.kind != "host":
        return Memory(nbytes, found, dims, element)
    import numpy

    return numpy.asarray(Memory(nbytes, found, (nbytes,), DataType.uint8)).view(numpy_dtype(element)).reshape(dims)


def numpy_dtype(element: DataType) -> Any:
    """NumPy's type for elements of that kind; bfloat16 and the float8 types are those of ml_dtypes."""
    import numpy

    if element not in NUMPY_NAMES:
        return numpy.dtype(element.name)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, NUMPY_NAMES[element]))


def checked_shape(shape: Any) -> tuple[int, ...]:
    """The lengths of the axes."""
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)) else (shape,)
    return tuple(checked_size(size, "shape") for size in sizes)


def typestr(element: DataType) -> str:
    """The array interface's name of a type; those it has no name for are told as unsigned integers of their size."""
    kind = "u" if element in NUMPY_NAMES else {"i": "i", "u": "u", "f": "f"}[element.name[0]]
    return f"{'|' if element.itemsize == 1 else '<'}{kind}{element.itemsize}"


def chosen(library: str | os.PathLike[str] | Library | None) -> Library:
    """The library to allocate from."""
    return get_library() if library is None else load(library)


def checked_size(size: Any, name: str) -> int:
    """A size that the caller gave."""
    number = as_int(size, name)
    if not 0 <= number <= MOST:
        raise ValueError(f"{name} must be at least 0 and below 2**63, not {number}")
    return number
