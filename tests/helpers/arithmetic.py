"""What every reduction must give, bit by bit: NumPy and ml_dtypes, one rounded step after the other."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
TYPES = {
    **{name: np.dtype(name) for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
FLOATS = tuple(name for name in TYPES if "float" in name)
LARGEST = {"float8e4m3": 448.0, "float8e5m2": 57344.0}
COMPUTED_IN = {"bfloat16": np.dtype("float32"), "float8e4m3": np.dtype("float16"), "float8e5m2": np.dtype("float16")}


def bits(array: Array) -> Array:
    """The same memory as unsigned integers: NaNs and zeros compare as what they are."""
    return array.view(f"u{array.itemsize}")


def sample(name: str, count: int, random: np.random.Generator) -> Array:
    """Elements of a type: some near 1, some of any bits, some zeros of both signs."""
    dtype = TYPES[name]
    elements = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
    if name in FLOATS:
        kind = random.integers(0, 20, count)
        near = (4 * random.standard_normal(count)).astype("float32").astype(dtype)
        bits(elements)[kind < 12] = bits(near)[kind < 12]
        bits(elements)[kind == 12] = 0
        bits(elements)[kind == 13] = 1 << (8 * dtype.itemsize - 1)
    return elements


def rounded(values: Array, name: str) -> Array:
    """Values as elements of a type: to nearest even, 8 bits with saturation, every NaN with all bits set but the sign."""
    result = (np.clip(values, -LARGEST[name], LARGEST[name]) if name in LARGEST else values).astype(TYPES[name])
    if name in FLOATS:
        bits(result)[np.isnan(values)] = (1 << (8 * result.itemsize - 1)) - 1
    return result


def step(name: str, operation: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """One operation on elements of a type, and its rounding."""
    wide = COMPUTED_IN.get(name, TYPES[name])
    with np.errstate(all="ignore"):
        return rounded(operation(a.astype(wide), b.astype(wide)), name)


def larger(a: Array, b: Array) -> Array:
    """The maximum: a NaN loses against a number, +0 is above -0."""
    number = np.where((a != a) | (b > a), b, a)
    return np.asarray(np.where((a == 0) & (b == 0), a + b, number))


def smaller(a: Array, b: Array) -> Array:
    """The minimum: a NaN loses against a number, -0 is below +0."""
    return -larger(-a, -b) if a.dtype.kind == "f" else np.minimum(a, b)


STEPS: dict[str, Callable[[Array, Array], Array]] = {"sum": np.add, "prod": np.multiply, "max": larger, "min": smaller}


def quotient(total: Array, n: int) -> Array:
    """Integers divided by n, cut off toward zero."""
    wide = total if total.itemsize == 8 else total.astype("int64")
    down, rest = np.divmod(wide, wide.dtype.type(n))
    cut: Array = (down + ((rest != 0) & (wide < 0)).astype(wide.dtype)).astype(total.dtype)
    return cut


def fold(name: str, op: str, inputs: Sequence[Array], scalars: Sequence[Any] | None = None) -> Array:
    """The left fold of one array per rank; scalars, one per rank, belong to op "premulsum"."""
    n, floating = len(inputs), name in FLOATS
    if op == "avg" and floating and n > 1:
        scalars = [rounded(np.array([1 / n]), name)[0]] * n
    if scalars is not None:
        inputs = [step(name, np.multiply, a, np.array([scalar], TYPES[name])) for a, scalar in zip(inputs, scalars, strict=True)]
    total = inputs[0].copy()
    for array in inputs[1:]:
        total = step(name, STEPS.get(op, np.add), total, array)
    return quotient(total, n) if op == "avg" and not floating else total
