"""NCCL's enums; their values come from the C declarations and are written nowhere else."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ._nccl import lib


class Result(IntEnum):
    """What a call of NCCL's C API returns; a newer library may return numbers that are not listed here."""

    SUCCESS = lib.ncclSuccess
    UNHANDLED_CUDA_ERROR = lib.ncclUnhandledCudaError
    SYSTEM_ERROR = lib.ncclSystemError
    INTERNAL_ERROR = lib.ncclInternalError
    INVALID_ARGUMENT = lib.ncclInvalidArgument
    INVALID_USAGE = lib.ncclInvalidUsage
    REMOTE_ERROR = lib.ncclRemoteError
    IN_PROGRESS = lib.ncclInProgress
    TIMEOUT = lib.ncclTimeout


class DataType(IntEnum):
    """The type of the elements of a buffer."""

    int8 = lib.ncclInt8
    uint8 = lib.ncclUint8
    int32 = lib.ncclInt32
    uint32 = lib.ncclUint32
    int64 = lib.ncclInt64
    uint64 = lib.ncclUint64
    float16 = lib.ncclFloat16
    float32 = lib.ncclFloat32
    float64 = lib.ncclFloat64
    bfloat16 = lib.ncclBfloat16
    float8e4m3 = lib.ncclFloat8e4m3
    float8e5m2 = lib.ncclFloat8e5m2

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self]


class Pairs(IntEnum):
    """Complex numbers as NCCL can move and add them: each is two reals. The value is the DataType of a real."""

    complex64 = lib.ncclFloat32
    complex128 = lib.ncclFloat64

    @property
    def itemsize(self) -> int:
        """Bytes of one real, for this is what the library counts."""
        return ITEMSIZE[self]


class RedOp(IntEnum):
    """How a reduction combines elements. AVG divides the wrapped sum of integers and truncates toward zero."""

    SUM = lib.ncclSum
    PROD = lib.ncclProd
    MAX = lib.ncclMax
    MIN = lib.ncclMin
    AVG = lib.ncclAvg


int8 = DataType.int8
uint8 = DataType.uint8
int32 = DataType.int32
uint32 = DataType.uint32
int64 = DataType.int64
uint64 = DataType.uint64
float16 = DataType.float16
float32 = DataType.float32
float64 = DataType.float64
bfloat16 = DataType.bfloat16
float8e4m3 = DataType.float8e4m3
float8e5m2 = DataType.float8e5m2
SUM = RedOp.SUM
PROD = RedOp.PROD
MAX = RedOp.MAX
MIN = RedOp.MIN
AVG = RedOp.AVG

ITEMSIZE: dict[int, int] = {
    int8: 1, uint8: 1, float8e4m3: 1, float8e5m2: 1, float16: 2, bfloat16: 2,
    int32: 4, uint32: 4, float32: 4, int64: 8, uint64: 8, float64: 8,
}  # fmt: skip

# The names that NCCL, NumPy, ml_dtypes and torch use, beside the members' own.
SYNONYMS = {
    "char": int8,
    "half": float16,
    "float": float32,
    "double": float64,
    "float8_e4m3fn": float8e4m3,
    "float8_e5m2": float8e5m2,
}
DTYPES: dict[str, DataType] = {**DataType.__members__, **SYNONYMS}
OPS: dict[str, RedOp] = {name.lower(): op for name, op in RedOp.__members__.items()}

SUPPORTED = ", ".join(DataType.__members__)
ADVICE = {
    "bool": "; view it as uint8",
    "complex64": " as a type of its own; take float32, two elements for each number",
    "complex128": " as a type of its own; take float64, two elements for each number",
}


def as_dtype(value: Any, argument: str = "dtype") -> DataType:
    """The DataType meant by a member, its name, NCCL's number, or a dtype of NumPy, ml_dtypes or torch."""
    if isinstance(value, DataType):
        return value
    if type(value) is int and value in DataType._value2member_map_:
        return DataType(value)
    name = dtype_name(value)
    if name in DTYPES:
        return DTYPES[name]
    raise unsupported(name or repr(value), argument, ValueError if isinstance(value, str) else TypeError)


def width(element: DataType | Pairs) -> int:
    """Bytes of one element as the caller counts them: of a whole complex number."""
    return ITEMSIZE[element] * (2 if type(element) is Pairs else 1)


def unsupported(name: str, argument: str, kind: type[Exception] = TypeError) -> Exception:
    """The refusal of a type that NCCL does not have."""
    return kind(f"{argument} {name} is not supported by NCCL{ADVICE.get(name, '')}. Supported: {SUPPORTED}")


def dtype_name(value: Any) -> str:
    """The plain name of a type ("float32"), or "" for what is none. Types in foreign byte order keep a mark and match nothing."""
    if isinstance(value, str):
        return value
    if getattr(value, "isnative", True) is False:
        return f"{value} (byte order of another machine)"
    for attribute in ("name", "__name__"):
        if isinstance(name := getattr(value, attribute, None), str):
            return name if name not in ("int", "float") else ""
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") else ""


def as_op(value: Any) -> int:
    """The number of a reduction: a RedOp, its name, or NCCL's number for one."""
    if isinstance(value, RedOp):
        return value
    if isinstance(value, str) and value.lower() in OPS:
        return OPS[value.lower()]
    if type(value) is int and value in RedOp._value2member_map_:
        return value
    message = f"op must be one of {', '.join(RedOp.__members__)}, not {value!r}"
    raise ValueError(message) if isinstance(value, (str, int)) and not isinstance(value, bool) else TypeError(message)
