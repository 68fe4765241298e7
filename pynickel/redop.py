"""PreMulSum: a reduction operator that multiplies each rank's input by a factor of that rank's own before the sum."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ._nccl import ffi, lib
from .arguments import as_int
from .buffer import look
from .enums import DataType, as_dtype, bfloat16, float8e4m3, float8e5m2
from .layout import DEVICE
from .owned import Owned

if TYPE_CHECKING:
    from .lifetime import Lifetime

FORMATS = {
    DataType.int8: "b", DataType.uint8: "B", DataType.int32: "i", DataType.uint32: "I", DataType.int64: "q", DataType.uint64: "Q",
    DataType.float16: "e", DataType.float32: "f", DataType.float64: "d",
}  # fmt: skip


class PreMulSum(Owned):
    """What `Communicator.pre_mul_sum` returns: usable as op= with that communicator and data type until close()."""

    __slots__ = ("_keep", "dtype", "number")

    def __init__(self, comm: Lifetime, scalar: Any, dtype: Any) -> None:
        self.dtype = as_dtype(dtype)
        pointer, residence, self._keep = place_of(scalar, self.dtype)
        out = ffi.new("ncclRedOp_t *")
        comm._finish(lib.comm_ncclRedOpCreatePreMulSum, out, pointer, self.dtype, residence)
        self.number: int = out[0]
        super().__init__(comm)

    def _release(self, comm: Any) -> tuple[int, str]:
        return lib.ncclRedOpDestroy(self.comm.library.table, self.number, comm), "ncclRedOpDestroy"

    def _number(self, comm: Lifetime, element: DataType) -> int:
        """The number for a call, if the operator fits it."""
        self._require_open("the operator of op=")
        if comm is not self.comm:
            raise ValueError(f"op was made by another communicator, {self.comm!r}; make one by pre_mul_sum() of this one")
        if element is not self.dtype:
            raise ValueError(f"op multiplies {self.dtype.name}, but the buffers hold {element.name}; make one for that type")
        return self.number

    def __repr__(self) -> str:
        return f"<PreMulSum of {self.dtype.name}, {'open' if self.is_open else 'closed'}>"


def place_of(scalar: Any, dtype: DataType) -> tuple[int, int, Any]:
    """Address of the factor, when it is read (ncclScalar...), and what keeps it."""
    if isinstance(scalar, (int, float)) or not hasattr(scalar, "__dlpack__") and hasattr(scalar, "__float__"):
        keep = ffi.from_buffer(encode(scalar, dtype))
        return int(ffi.cast("uintptr_t", keep)), lib.ncclScalarHostImmediate, keep
    view = look(scalar, "scalar", False, "")
    if view.nbytes != dtype.itemsize or (view.raw == 0 and as_dtype(view.dtype, "scalar's dtype") is not dtype):
        raise ValueError(f"scalar must be one element of {dtype.name}, not {view.nbytes} bytes of {view.dtype}")
    return view.address, lib.ncclScalarDevice if view.where == DEVICE else lib.ncclScalarHostImmediate, (scalar, view.keep)


def encode(scalar: Any, dtype: DataType) -> bytes:
    """A Python number as an element of that type."""
    if isinstance(scalar, bool):
        raise TypeError(f"scalar must be a number, not {scalar!r}")
    if dtype in (float8e4m3, float8e5m2):
        import ml_dtypes
        import numpy

        kind = ml_dtypes.float8_e4m3fn if dtype is float8e4m3 else ml_dtypes.float8_e5m2
        return numpy.array(scalar, kind).tobytes()
    if not dtype.name.startswith(("float", "bfloat")):
        scalar = as_int(scalar, f"scalar for {dtype.name}")
    try:
        return to_bfloat16(scalar) if dtype is bfloat16 else struct.pack(f"<{FORMATS[dtype]}", scalar)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"scalar {scalar!r} does not fit {dtype.name}") from error


def to_bfloat16(scalar: Any) -> bytes:
    """The upper half of the float32, rounded to nearest, ties to even; a NaN stays one."""
    bits: int = struct.unpack("<I", struct.pack("<f", scalar))[0]
    rounded = bits + 0x7FFF + (bits >> 16 & 1) if scalar == scalar else bits | 0x400000
    return struct.pack("<H", rounded >> 16)
