"""What ranks send in a checked repetition, and what they must receive: small numbers that every order of adding gets exactly right."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...enums import DataType

PERIOD = 251  # elements after which the data repeat; prime, so that a part shifted by any usual size is seen to be wrong
PIECE = PERIOD * 1024  # elements that are made or compared at a time
FLOAT8 = {DataType.float8e4m3: (4, 3), DataType.float8e5m2: (5, 2)}  # bits of exponent and mantissa
EXACT = {  # integers up to here are exact in the type
    DataType.float8e5m2: 8, DataType.float8e4m3: 16, DataType.bfloat16: 256, DataType.float16: 2048, DataType.float32: 1 << 24,
    DataType.float64: 1 << 53,
}  # fmt: skip


def is_float(element: DataType) -> bool:
    """Whether the type is a floating-point one."""
    return element in EXACT


def bits_type(element: DataType) -> np.dtype[Any]:
    """The unsigned integer that is as wide as the type; all data are kept and compared as such."""
    return np.dtype(f"u{element.itemsize}")


def numbers(element: DataType, op: str, rank: int, nranks: int) -> Any:
    """One period of what a rank sends, as int64 or float64."""
    column = np.arange(PERIOD)
    mixed = column * 7 + rank * 13
    if op == "prod":
        # Neighbouring ranks' factors cancel out, so that no product of many ranks overflows.
        return np.array([0.5, 1.0, 2.0])[(column + rank) % 3] if is_float(element) else mixed % 3 + 1
    most = EXACT.get(element, 100)
    half = max(1, min(50, most // (2 * nranks)))
    values = mixed % (2 * half + 1)
    if not element.name.startswith("u"):
        values -= half
    sparse = -(-2 * nranks // most)  # so many ranks that their sum would not be exact: some send zeros
    if sparse > 1:
        values[(column + rank) % sparse != 0] = 0
    return values.astype(np.float64) if is_float(element) else values


def reduced(element: DataType, op: str, nranks: int) -> Any:
    """One period of the reduction over all ranks."""
    rows = np.stack([numbers(element, op, rank, nranks) for rank in range(nranks)])
    if op == "mulsum":
        return (rows * factors(nranks)[:, None]).sum(axis=0)
    if op == "avg":
        if is_float(element):
            return rows.sum(axis=0) / nranks
        total = decode(encode(rows.sum(axis=0), element), element)  # wrapped to the type first
        return np.sign(total) * (np.abs(total) // nranks) if not element.name.startswith("u") else total // nranks
    return {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op].reduce(rows, axis=0)


def factors(nranks: int) -> Any:
    """What each rank's elements are multiplied with before a mulsum."""
    return 1 + np.arange(nranks) % 2


def tolerance(element: DataType, op: str, nranks: int) -> float:
    """How far a right result may be off: nothing, but for averages of floats, whose order of rounding is the library's own."""
    if op != "avg" or not is_float(element):
        return 0.0
    return nranks * 2.0 / EXACT[element] * max(1.0, float(np.abs(reduced(element, op, nranks)).max()))


def encode(values: Any, element: DataType) -> Any:
    """Numbers as the bits of the type; integers wrap, and floats must be exact in it or are rounded by NumPy."""
    if element == DataType.bfloat16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if element in FLOAT8:
        table = decode(np.arange(256, dtype=np.uint8), element)
        usable = np.flatnonzero(np.isfinite(table) & ~(np.signbit(table) & (table == 0)))
        usable = usable[np.argsort(table[usable])]
        place = np.clip(np.searchsorted(table[usable], values), 0, len(usable) - 1)
        return usable[place].astype(np.uint8)
    if is_float(element):
        return values.astype(np.dtype(element.name)).view(bits_type(element))
    return values.astype(np.int64).astype(bits_type(element))


def decode(bits: Any, element: DataType) -> Any:
    """The bits of the type as numbers."""
    if element == DataType.bfloat16:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if element in FLOAT8:
        return float8(bits.astype(np.int64), *FLOAT8[element])
    kind = np.dtype(element.name)
    return bits.view(kind).astype(np.float64 if is_float(element) else kind)


def float8(bits: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """The numbers of an 8-bit float: e5m2 has infinities as IEEE has, e4m3 only a NaN, the highest code."""
    bias = (1 << (exponent_bits - 1)) - 1
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    size = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias - mantissa_bits),
        (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias),
    )
    top = exponent == (1 << exponent_bits) - 1
    if exponent_bits == 4:
        size = np.where(top & (mantissa == 7), np.nan, size)
    else:
        size = np.where(top, np.where(mantissa == 0, np.inf, np.nan), size)
    return np.where(bits >> 7 == 1, -size, size)


def spread(period: Any, start: int, count: int) -> Any:
    """`count` elements of repeating data from element `start` on."""
    return np.resize(np.roll(period, -(start % PERIOD)), count)


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Where to cut so many elements, as (start, length): whole periods, so that every piece begins alike and none needs much memory."""
    for start in range(0, count, PIECE):
        yield start, min(PIECE, count - start)


def wrong(got: Any, period: Any, start: int, element: DataType, off: float) -> int:
    """How many of the received elements differ from what they must be."""
    first = min(len(got), PIECE)
    expected = spread(encode(period, element) if off == 0.0 else period, start, first)
    found = 0
    for at, length in pieces(len(got)):
        if off == 0.0:
            found += int(np.count_nonzero(got[at : at + length] != expected[:length]))
        else:
            difference = np.abs(decode(got[at : at + length], element) - expected[:length])
            found += int(np.count_nonzero(~(difference <= off)))  # a NaN is wrong
    return found
