"""Torch's element types and reductions in NCCL's terms: what moves as it is, what moves as bytes, what is reduced as something else."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

from ..enums import RedOp

Kind = dist.ReduceOp.RedOpType

NATIVE = {
    torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float16, torch.float32, torch.float64,
    torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
}  # fmt: skip
# Reduced in a wider type and cut back, which is exact for integers: their sums and products wrap in both.
WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32}
OPS = {Kind.SUM: RedOp.SUM, Kind.AVG: RedOp.AVG, Kind.PRODUCT: RedOp.PROD, Kind.MIN: RedOp.MIN, Kind.MAX: RedOp.MAX}
# What they do to truth values, which are bytes 0 and 1: or is the larger one, and the smaller one.
TRUTH = {Kind.SUM: RedOp.MAX, Kind.MAX: RedOp.MAX, Kind.BOR: RedOp.MAX, Kind.PRODUCT: RedOp.MIN, Kind.MIN: RedOp.MIN, Kind.BAND: RedOp.MIN}
BITS = {Kind.BAND: torch.bitwise_and, Kind.BOR: torch.bitwise_or, Kind.BXOR: torch.bitwise_xor}
LINEAR = (Kind.SUM, Kind.AVG, Kind.PREMUL_SUM)  # what complex numbers can do as pairs of reals


def kind_of(op: Any) -> Any:
    """The kind of a ReduceOp, given as such or as its kind."""
    return op.op if isinstance(op, dist.ReduceOp) else op


def name_of(op: Any) -> str:
    """A reduction by name, for messages."""
    return str(kind_of(op)).rpartition(".")[2]


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a dense tensor that NCCL can move: itself, or its bytes."""
    if tensor.dtype in NATIVE:
        return tensor
    return tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def reducible(tensor: torch.Tensor, op: Any) -> tuple[torch.Tensor, Any]:
    """A dense tensor that NCCL can reduce, a view or, for WIDER types, a copy; and the reduction of its elements.

    TypeError: NCCL cannot do that exactly. Bitwise reductions of integers are none of NCCL's, and not for this function.
    """
    kind = kind_of(op)
    if tensor.dtype is torch.bool:
        if kind not in TRUTH:
            raise TypeError(f"{name_of(op)} of torch.bool is not defined; use SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR, or integers")
        return tensor.view(torch.uint8), TRUTH[kind]
    if tensor.is_complex():
        if kind not in LINEAR:
            raise TypeError(f"{name_of(op)} of {tensor.dtype} is not what NCCL can do; complex numbers can be summed and averaged")
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in WIDER:
        tensor = tensor.to(WIDER[tensor.dtype])
    if tensor.dtype not in NATIVE:
        raise TypeError(f"{tensor.dtype} cannot be reduced by NCCL; its types are {', '.join(sorted(map(str, NATIVE)))}")
    if kind == Kind.PREMUL_SUM:
        return tensor, op
    if kind not in OPS:
        raise TypeError(f"{name_of(op)} of {tensor.dtype} is not what NCCL can do; use integers or torch.bool")
    return tensor, OPS[kind]


def factor_for(data: torch.Tensor, op: Any) -> Any:
    """The factor of a PREMUL_SUM, as pynickel takes one for elements of that type."""
    factor = op.factor
    if isinstance(factor, torch.Tensor):
        if factor.is_cuda:
            return factor.to(data.dtype)
        factor = factor.item()
    if data.is_floating_point():
        return factor
    if not float(factor).is_integer():
        raise TypeError(f"PREMUL_SUM of {data.dtype} takes a whole number as its factor, not {factor!r}")
    return int(factor)


def is_bitwise(tensor: torch.Tensor, op: Any) -> bool:
    """Whether this is a reduction of bits, which is done by gathering (exclusive or of truth values is one, too)."""
    kind = kind_of(op)
    if tensor.dtype is torch.bool:
        return bool(kind == Kind.BXOR)
    return kind in BITS and not tensor.is_floating_point() and not tensor.is_complex()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy with its elements side by side; detached, because autograd has no part in this."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"this takes dense tensors, not one of {tensor.layout}; all_reduce() sums those of torch.sparse_coo")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def settle(tensor: torch.Tensor, into: torch.Tensor, data: torch.Tensor | None = None) -> None:
    """Bring a result to where it belongs: from the type it was reduced in, and from the dense copy, if those are others."""
    if data is not None and into.dtype in WIDER:
        into.copy_(data.view(into.shape))
    if into.data_ptr() != tensor.data_ptr() or tensor.is_neg() or tensor.is_conj():
        tensor.detach().copy_(into)
