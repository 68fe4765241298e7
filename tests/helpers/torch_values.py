"""What the ranks of a process group have in tests, and what should come of it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

Group = Any
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FOLDS: dict[Any, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: operator.add, ReduceOp.PRODUCT: operator.mul, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: operator.and_, ReduceOp.BOR: operator.or_, ReduceOp.BXOR: operator.xor,
}  # fmt: skip


def has(rank: int, count: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank has: small whole numbers, different on each rank."""
    numbers = torch.arange(count) % 5 + rank + 1
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double() - 1).to(dtype)
    return numbers % 2 == 0 if dtype is torch.bool else numbers.to(dtype)


def fold(kind: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """The reduction in the elements' own type, by torch."""
    if parts[0].dtype is torch.uint16:  # torch cannot add these
        return fold(kind, [part.to(torch.int32) for part in parts]).to(torch.uint16)
    if parts[0].dtype is torch.bool and kind in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        return functools.reduce(operator.or_ if kind in (ReduceOp.SUM, ReduceOp.MAX) else operator.and_, parts)
    return functools.reduce(FOLDS[kind], parts)


def same(found: torch.Tensor, wanted: torch.Tensor, what: Any = "") -> None:
    """Equal in every bit, type and shape."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(found, wanted), (what, found, wanted)
