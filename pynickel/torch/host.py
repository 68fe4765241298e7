"""The collectives: each a job for a communicator; tensors are made dense, and results are brought to where they belong.

They serve CPU tensors, and CUDA tensors where `comm` puts its calls on a stream: what they make is made on the tensors' device.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..batch import group
from ..communicator import Communicator
from . import sparse
from .elements import BITS, NATIVE, OPS, Kind, dense, factor_for, is_bitwise, kind_of, movable, reducible, settle

Tensors = Sequence[torch.Tensor]
COPIED = 1 << 20  # bytes of a tensor up to which all_gather may pass its list by memory of its own; the same on all ranks


@contextmanager
def operator(comm: Communicator, data: torch.Tensor, op: Any) -> Iterator[Any]:
    """What comm takes as op=; a PREMUL_SUM is made for the call."""
    if kind_of(op) != Kind.PREMUL_SUM:
        yield op
        return
    made = comm.pre_mul_sum(factor_for(data, op), str(data.dtype).removeprefix("torch."))
    try:
        yield made
    finally:
        made.close()


def together(calls: Sequence[Callable[[], Any]]) -> None:
    """All calls as one group of the library."""
    if len(calls) == 1:
        calls[0]()
        return
    with group():
        for call in calls:
            call()


def all_reduce(comm: Communicator, tensors: Tensors, op: Any) -> None:
    """Every rank ends up with the reductions of all ranks' tensors; several go in one group."""
    kind = kind_of(op)
    if len(tensors) == 1 and (number := OPS.get(kind)) is not None:
        (one,) = tensors
        if one.layout is torch.strided and one.dtype in NATIVE and one.is_contiguous() and not one.is_neg():
            comm.all_reduce(one.detach() if one.requires_grad else one, op=number)  # the usual case, and nothing else to do
            return
    if len(tensors) > 1 and kind != Kind.PREMUL_SUM and not any(special(tensor, op) for tensor in tensors):
        reduce_together(comm, tensors, op)
        return
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            sparse.all_reduce(comm, tensor, op)
        elif is_bitwise(tensor, op):
            bitwise(comm, tensor, op)
        else:
            into = dense(tensor)
            data, how = reducible(into, op)
            with operator(comm, data, how) as number:
                comm.all_reduce(data, op=number)
            settle(tensor, into, data)


def special(tensor: torch.Tensor, op: Any) -> bool:
    """Whether a reduction is made of other operations."""
    return tensor.layout is not torch.strided or is_bitwise(tensor, op)


def reduce_together(comm: Communicator, tensors: Tensors, op: Any) -> None:
    """Several reductions in one call of the library."""
    parts = []
    for tensor in tensors:
        into = dense(tensor)
        parts.append((tensor, into, *reducible(into, op)))
    with group():
        for _, _, data, how in parts:
            comm.all_reduce(data, op=how)
    for tensor, into, data, _ in parts:
        settle(tensor, into, data)


def bitwise(comm: Communicator, tensor: torch.Tensor, op: Any) -> None:
    """What NCCL has no operator for: all ranks' elements are gathered and combined here."""
    into = dense(tensor)
    everybody = into.new_empty((comm.nranks, *into.shape))
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


def all_gather_single(comm: Communicator, outputs: Tensors, sources: Tensors) -> None:
    """Every rank ends up with all ranks' tensors, one behind the other; several in one group."""
    for output, source in zip(outputs, sources, strict=True):
        same_type(output, source)
    into = [dense(output) for output in outputs]
    send = [dense(source) for source in sources]
    together([lambda s=s, i=i: comm.all_gather(movable(s), movable(i)) for s, i in zip(send, into, strict=True)])  # type: ignore[misc]
    for output, one in zip(outputs, into, strict=True):
        settle(output, one)


def all_gather(comm: Communicator, outputs: Tensors, source: torch.Tensor) -> None:
    """Every rank ends up with rank i's tensor in outputs[i]; they may differ in size."""
    for tensor in outputs:
        same_type(tensor, source)
    if len({tensor.numel() for tensor in outputs}) > 1 or source.nbytes > COPIED:
        broadcasts(comm, outputs, source)
        return
    into, own = side_by_side(outputs)
    comm.all_gather(movable(dense(source)), movable(into))
    hand_out(into, own, outputs)


def broadcasts(comm: Communicator, outputs: Tensors, source: torch.Tensor) -> None:
    """The same without memory between, which a large tensor would have to pass; all ranks must come here, whatever their memory is."""
    send, into = dense(source), [dense(output) for output in outputs]
    with group():
        for root, one in enumerate(into):
            comm.broadcast(movable(send) if root == comm.rank else None, movable(one), root)
    for output, one in zip(outputs, into, strict=True):
        settle(output, one)


def reduce_scatter_single(comm: Communicator, outputs: Tensors, sources: Tensors, op: Any) -> None:
    """Rank r ends up with part r of the reductions; several in one group."""
    for output, source in zip(outputs, sources, strict=True):
        same_type(output, source)
    if len(outputs) > 1 and (kind_of(op) == Kind.PREMUL_SUM or any(is_bitwise(source, op) for source in sources)):
        for output, source in zip(outputs, sources, strict=True):
            reduce_scatter_single(comm, [output], [source], op)
        return
    if is_bitwise(sources[0], op):
        whole = dense(sources[0]).clone()
        bitwise(comm, whole, op)
        outputs[0].detach().copy_(whole.view(comm.nranks, *outputs[0].shape)[comm.rank])
        return
    into = [dense(output) for output in outputs]
    send, data = ([reducible(one, op)[0] for one in tensors] for tensors in (map(dense, sources), into))
    with operator(comm, data[0], reducible(into[0], op)[1]) as number:
        together([lambda s=s, d=d: comm.reduce_scatter(s, d, number) for s, d in zip(send, data, strict=True)])  # type: ignore[misc]
    for output, one, result in zip(outputs, into, data, strict=True):
        settle(output, one, result)


def reduce_scatter(comm: Communicator, output: torch.Tensor, sources: Tensors, op: Any) -> None:
    """Rank r ends up with the reduction of all ranks' sources[r]; they may differ in size from rank to rank."""
    for tensor in sources:
        same_type(output, tensor)
    if len(sources) != comm.nranks or sources[comm.rank].numel() != output.numel():
        sizes = [tensor.numel() for tensor in sources]
        raise ValueError(f"the inputs have {sizes} elements; they must be {comm.nranks}, and that of rank {comm.rank} {output.numel()}")
    if len({tensor.numel() for tensor in sources}) == 1:
        reduce_scatter_single(comm, [output], [filled(sources).view(comm.nranks, *output.shape)], op)
        return
    for root, tensor in enumerate(sources):
        mine = tensor.detach().clone()
        reduce(comm, mine, op, root)
        if root == comm.rank:
            output.detach().copy_(mine.view(output.shape))


def gather(comm: Communicator, outputs: Tensors, source: torch.Tensor, root: int) -> None:
    """The root ends up with rank i's tensor in outputs[i]."""
    if comm.rank != root:
        comm.gather(movable(dense(source)), None, root)
        return
    for tensor in outputs:
        same_type(tensor, source)
    into, own = side_by_side(outputs)
    comm.gather(movable(dense(source)), movable(into), root)
    hand_out(into, own, outputs)


def scatter(comm: Communicator, output: torch.Tensor, sources: Tensors, root: int) -> None:
    """Rank i ends up with the root's sources[i]."""
    into = dense(output)
    send = None
    if comm.rank == root:
        for tensor in sources:
            same_type(output, tensor)
        send = movable(filled(sources))
    comm.scatter(send, movable(into), root)
    settle(output, into)


def all_to_all_single(
    comm: Communicator, output: torch.Tensor, source: torch.Tensor, output_sizes: Sequence[int], source_sizes: Sequence[int]
) -> None:
    """Part i of output is what rank i had in part r of its source, r being this rank; sizes are rows of the first dimension."""
    same_type(output, source)
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
    length = tensor.shape[0] if tensor.dim() else 1
    if sizes and (len(sizes) != nranks or sum(sizes) != length):
        raise ValueError(f"the sizes of the parts are {list(sizes)}; they must be {nranks}, and {length} together, as the tensor has rows")
    if not sizes and length % nranks:
        raise ValueError(f"a tensor of {length} rows cannot be cut into {nranks} equal parts; say how many rows each has")
    row = tensor.numel() // length if length else 0
    parts = list(sizes) or [length // nranks] * nranks
    return [size * row * scale for size in parts]


def all_to_all(comm: Communicator, outputs: Tensors, sources: Tensors) -> None:
    """outputs[i] is what rank i had in sources[r], r being this rank; each may have a size of its own."""
    for output, source in zip(outputs, sources, strict=True):
        same_type(output, source)
    send = filled(sources)
    into, own = side_by_side(outputs)
    scale = send.element_size() if movable(send).dtype is not send.dtype else 1
    counts = [[tensor.numel() * scale for tensor in tensors] for tensors in (sources, outputs)]
    comm.all_to_all_v(movable(send), movable(into), *counts)
    hand_out(into, own, outputs)


def same_type(one: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse what would be converted in silence."""
    if one.dtype is not other.dtype:
        raise TypeError(f"the tensors of one collective must have one type; these are {one.dtype} and {other.dtype}")


def side_by_side(tensors: Tensors) -> tuple[torch.Tensor, bool]:
    """Flat memory for all of them, in order, and whether it is their own: if they are dense parts of one storage and lie so."""
    first, size = tensors[0], sum(tensor.numel() for tensor in tensors)
    place = first.storage_offset()
    for tensor in tensors:
        same_type(first, tensor)
        if tensor.storage_offset() != place or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or (
            tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        ):  # fmt: skip
            return first.new_empty(size), False
        place += tensor.numel()
    return first.detach().as_strided((size,), (1,), first.storage_offset()), True


def filled(tensors: Tensors) -> torch.Tensor:
    """The same, with their elements."""
    flat, own = side_by_side(tensors)
    if not own:
        torch.cat([dense(tensor).reshape(-1) for tensor in tensors], out=flat)
    return flat


def hand_out(flat: torch.Tensor, own: bool, tensors: Tensors) -> None:
    """Bring the parts to the tensors, if that is not where they are."""
    if not own:
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))
