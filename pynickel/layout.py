"""What a buffer protocol tells about memory, in one form, and the refusals that all protocols share."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .enums import DataType
from .errors import NonContiguousError

HOST, DEVICE, BOTH = "host", "device", "both"


class Gpu(str):
    """What equals DEVICE, for a library that works on one GPU; `number` is which."""

    __slots__ = ("number",)
    number: int

    @staticmethod
    def of(number: int) -> Gpu:
        """The memory of that GPU."""
        made = Gpu(DEVICE)
        made.number = number
        return made


class View(NamedTuple):
    """Dense memory in C order. `dtype` is whatever as_dtype understands or refuses by name; None for a bare pointer.

    `raw` is the element size of memory that may be given a type by dtype= (bytes, unsigned integers), else 0.
    `keep` holds the memory while it lives. `after` is the stream on which the memory's producer may still be at work.
    `gpu` is the number of the GPU on which it is, where the object says it.
    """

    address: int
    nbytes: int
    dtype: Any
    raw: int = 0
    keep: Any = None
    where: str = HOST
    place: str = "host memory"
    after: int | None = None
    gpu: int | None = None


# Kind and bytes per element, as array interfaces and buffer formats tell them.
BY_KIND: dict[str, Any] = {
    "i1": DataType.int8, "i4": DataType.int32, "i8": DataType.int64, "i2": "int16",
    "u1": DataType.uint8, "u4": DataType.uint32, "u8": DataType.uint64, "u2": "uint16",
    "f2": DataType.float16, "f4": DataType.float32, "f8": DataType.float64, "f16": "longdouble",
    "b1": "bool", "c8": "complex64", "c16": "complex128",
}  # fmt: skip


def is_dense(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> bool:
    """Whether the elements lie side by side in C order; axes of length 1 may have any stride, and nothing is always dense."""
    if strides is None or 0 in shape:
        return True
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True


def not_dense(name: str, shape: Sequence[int], strides: Sequence[int] | None) -> NonContiguousError:
    """The refusal of an array with gaps or in another order."""
    return NonContiguousError(
        f"{name} is not contiguous in C order: shape {tuple(shape)}, strides {tuple(strides or ())} bytes. Pass a contiguous "
        "array; a copy (numpy.ascontiguousarray) is yours to make, because results would land in the copy"
    )


def read_only(name: str, what: Any) -> ValueError:
    """The refusal of a receive buffer that must not be written."""
    return ValueError(f"{name} receives, but this {type(what).__name__} is read-only; pass writable memory")
