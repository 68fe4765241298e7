"""The collectives of CPU tensors: each a job that a lane runs; the tensors are dense, the results are brought to where they belong."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..batch import group
from ..communicator import Communicator
from .elements import BITS, Kind, dense, is_bitwise, kind_of, movable, reducible, settle

Tensors = Sequence[torch.Tensor]


@contextmanager
def operator(comm: Communicator, data: torch.Tensor, op: Any) -> Iterator[Any]:
    """What comm takes as op=; a PREMUL_SUM is made for the call."""
    if kind_of(op) is not Kind.PREMUL_SUM:
        yield op
        return
    made = comm.pre_mul_sum(op.factor, str(data.dtype).removeprefix("torch."))
    try:
        yield made
    finally:
        made.close()


def all_reduce(comm: Communicator, tensors: Tensors, op: Any) -> None:
    """Every rank ends up with the reductions of all ranks' tensors; several go in one group."""
    if any(is_bitwise(tensor, op) for tensor in tensors):
        for tensor in tensors:
            bitwise(comm, tensor, op)
        return
    parts = []
    for tensor in tensors:
        into = dense(tensor)
        parts.append((tensor, into, *reducible(into, op)))
    if len(parts) == 1:
        ((tensor, into, data, how),) = parts
        with operator(comm, data, how) as number:
            comm.all_reduce(data, op=number)
    else:
        in_group(comm, parts)
    for tensor, into, data, _ in parts:
        settle(tensor, into, data)


def in_group(comm: Communicator, parts: Sequence[tuple[Any, Any, torch.Tensor, Any]]) -> None:
    """All in one call of the library; PREMUL_SUM, whose operators end with their calls, one by one."""
    if kind_of(parts[0][3]) is Kind.PREMUL_SUM:
        for _, _, data, how in parts:
            with operator(comm, data, how) as number:
                comm.all_reduce(data, op=number)
        return
    with group():
        for _, _, data, how in parts:
            comm.all_reduce(data, op=how)


def bitwise(comm: Communicator, tensor: torch.Tensor, op: Any) -> None:
    """What NCCL has no operator for: all ranks' elements are gathered and combined here."""
    into = dense(tensor)
    everybody = torch.empty((comm.nranks, *into.shape), dtype=into.dtype)
    comm.all_gather(movable(into), movable(everybody))
    combine = BITS[kind_of(op)]
    result = everybody[0]
    for other in everybody[1:]:
        result = combine(result, other)
    tensor.detach().copy_(result)


def broadcast(comm: Communicator, tensor: torch.Tensor, root: int) -> None:
    """Every rank ends up with the root's tensor."""
    into = dense(tensor)
    comm.broadcast(movable(into), root=root)
    if comm.rank != root:
        settle(tensor, into)


def reduce(comm: Communicator, tensor: torch.Tensor, op: Any, root: int) -> None:
    """The root ends up with the reduction; the others' tensors stay as they are."""
    if is_bitwise(tensor, op):
        mine = tensor if comm.rank == root else tensor.detach().clone()
        bitwise(comm, mine, op)
        return
    into = dense(tensor)
    data, how = reducible(into, op)
    with operator(comm, data, how) as number:
        comm.reduce(data, op=number, root=root)
    if comm.rank == root:
        settle(tensor, into, data)


def all_gather_single(comm: Communicator, output: torch.Tensor, source: torch.Tensor) -> None:
    """Every rank ends up with all ranks' tensors, one behind the other."""
    into = dense(output)
    comm.all_gather(movable(dense(source)), movable(into))
    settle(output, into)


def all_gather(comm: Communicator, outputs: Tensors, source: torch.Tensor) -> None:
    """Every rank ends up with rank i's tensor in outputs[i]; they may differ in size."""
    if len({tensor.numel() for tensor in outputs}) > 1:
        for root, tensor in enumerate(outputs):
            if root == comm.rank:
                tensor.detach().copy_(source.detach())
            broadcast(comm, tensor, root)
        return
    everybody = torch.empty((len(outputs), *source.shape), dtype=source.dtype)
    comm.all_gather(movable(dense(source)), movable(everybody))
    for tensor, part in zip(outputs, everybody, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def reduce_scatter_single(comm: Communicator, output: torch.Tensor, source: torch.Tensor, op: Any) -> None:
    """Rank r ends up with part r of the reduction."""
    if is_bitwise(source, op):
        whole = dense(source).clone()
        bitwise(comm, whole, op)
        output.detach().copy_(whole.view(comm.nranks, *output.shape)[comm.rank])
        return
    into = dense(output)
    send, how = reducible(dense(source), op)
    data, _ = reducible(into, op)
    with operator(comm, data, how) as number:
        comm.reduce_scatter(send, data, number)
    settle(output, into, data)


def reduce_scatter(comm: Communicator, output: torch.Tensor, sources: Tensors, op: Any) -> None:
    """Rank r ends up with the reduction of all ranks' sources[r]; they may differ in size from rank to rank."""
    if len({tensor.numel() for tensor in sources}) == 1:
        reduce_scatter_single(comm, output, torch.cat([dense(tensor).reshape(-1) for tensor in sources]).view(-1, *output.shape), op)
        return
    for root, tensor in enumerate(sources):
        mine = tensor.detach().clone()
        reduce(comm, mine, op, root)
        if root == comm.rank:
            output.detach().copy_(mine)


def gather(comm: Communicator, outputs: Tensors, source: torch.Tensor, root: int) -> None:
    """The root ends up with rank i's tensor in outputs[i]."""
    if comm.rank != root:
        comm.gather(movable(dense(source)), None, root)
        return
    everybody = torch.empty((comm.nranks, *source.shape), dtype=source.dtype)
    comm.gather(movable(dense(source)), movable(everybody), root)
    for tensor, part in zip(outputs, everybody, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def scatter(comm: Communicator, output: torch.Tensor, sources: Tensors, root: int) -> None:
    """Rank i ends up with the root's sources[i]."""
    into = dense(output)
    send = None
    if comm.rank == root:
        send = movable(torch.cat([dense(tensor).reshape(-1) for tensor in sources]))
    comm.scatter(send, movable(into), root)
    settle(output, into)


def all_to_all_single(
    comm: Communicator, output: torch.Tensor, source: torch.Tensor, output_sizes: Sequence[int], source_sizes: Sequence[int]
) -> None:
    """Part i of output is what rank i had in part r of its source, r being this rank; sizes are rows of the first dimension."""
    into, send = dense(output), dense(source)
    if not output_sizes and not source_sizes:
        comm.all_to_all(movable(send), movable(into))
    else:
        scale = (comm.nranks, send.element_size() if movable(send).dtype is not send.dtype else 1)
        counts = [rows(tensor, sizes, *scale) for tensor, sizes in ((send, source_sizes), (into, output_sizes))]
        comm.all_to_all_v(movable(send), movable(into), *counts)
    settle(output, into)


def rows(tensor: torch.Tensor, sizes: Sequence[int], nranks: int, scale: int) -> list[int]:
    """Elements of each rank's part, from its rows; equal parts without sizes."""
    row = tensor.numel() // tensor.shape[0] if tensor.dim() and tensor.shape[0] else 0
    parts = list(sizes) or [tensor.shape[0] // nranks] * nranks
    return [size * row * scale for size in parts]


def all_to_all(comm: Communicator, outputs: Tensors, sources: Tensors) -> None:
    """outputs[i] is what rank i had in sources[r], r being this rank; each may have a size of its own."""
    send = torch.cat([dense(tensor).reshape(-1) for tensor in sources])
    into = torch.empty(sum(tensor.numel() for tensor in outputs), dtype=send.dtype)
    scale = send.element_size() if movable(send).dtype is not send.dtype else 1
    counts = [[tensor.numel() * scale for tensor in tensors] for tensors in (sources, outputs)]
    comm.all_to_all_v(movable(send), movable(into), *counts)
    for tensor, part in zip(outputs, into.split([tensor.numel() for tensor in outputs]), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))
