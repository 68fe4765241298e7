"""Torch tensors, by their own attributes: no capsule, no dictionary, and torch is never imported here."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import sys
from typing import Any

from ._dlpack import get_pointer
from ._nccl import lib
from .layout import DEVICE, HOST, View, not_dense

HOME = {"cpu": (HOST, "host memory"), "cuda": (DEVICE, "memory of a CUDA device")}  # torch calls AMD's GPUs cuda, too


class Table(ctypes.Structure):
    """The beginning of DLPackExchangeAPI, torch's functions for callers in C."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p), ("take", ctypes.c_void_p), ("describe", ctypes.c_void_p),
    ]  # fmt: skip


def show() -> tuple[Any, ...]:
    """The classes of torch's usual tensors. Where torch has its table for callers in C, these are told of them."""
    torch = sys.modules["torch"]
    kinds = (torch.Tensor, torch.nn.Parameter)
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    table = None if capsule is None else Table.from_address(get_pointer(capsule, b"dlpack_exchange_api"))
    if table is not None and table.major == 1 and table.describe:
        for kind in kinds:
            lib.pn_know_tensors(id(kind), table.describe)
    return kinds


def read(tensor: Any, name: str, writable: bool) -> View:
    """The memory of a tensor. Its storage is what is kept: a tensor may be given another one."""
    where, place = HOME.get(tensor.device.type, ("", f"memory of torch device {tensor.device}"))
    if str(tensor.layout) != "torch.strided" or not where:
        raise TypeError(f"{name} is a tensor of {tensor.layout} on {tensor.device}; NCCL takes dense tensors on cpu or cuda devices")
    if not tensor.is_contiguous():
        itemsize = tensor.element_size()
        raise not_dense(name, tuple(tensor.shape), [stride * itemsize for stride in tensor.stride()])
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{name} is a lazy {'conjugate' if tensor.is_conj() else 'negative'}: its memory holds other values; "
            "pass tensor.resolve_conj().resolve_neg()"
        )
    if writable and not tensor.is_leaf:
        raise ValueError(
            f"{name} receives, but it is a result that autograd has recorded, and gradients would not see the new values; "
            "pass tensor.detach() if that is right"
        )
    try:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
    except (RuntimeError, NotImplementedError) as error:  # what torch.func and the like hand to functions
        raise TypeError(f"{name} is a tensor without memory of its own ({error}); NCCL takes real tensors, outside torch.func") from error
    kind = str(tensor.dtype).removeprefix("torch.")
    raw = tensor.element_size() if kind.startswith("uint") else 0
    return View(address, tensor.nbytes, kind, raw=raw, keep=storage, where=where, place=place, gpu=tensor.device.index)
