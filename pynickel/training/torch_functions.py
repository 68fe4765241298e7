"""Steps of a torch graph that cross ranks, each with its own way back."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .buckets import buckets_for
from .kinds import made
from .shares import stretch
from .torch_arrays import Torch

if TYPE_CHECKING:
    from ..communicator import Communicator


class SumOverRanks(torch.autograd.Function):  # type: ignore[misc]
    """Forward, the sum of all ranks' tensors; back, the sum of all ranks' gradients, since each rank's loss depends on it."""

    @staticmethod
    def forward(context: Any, tensor: Any, comm: Communicator) -> Any:
        """The sum, as a new tensor."""
        context.comm = comm
        return all_reduced(comm, tensor)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """The same."""
        return all_reduced(context.comm, gradient), None


class Replicas(torch.autograd.Function):  # type: ignore[misc]
    """Forward, a module's parameters as they are; back, their gradients summed over all ranks, all at once."""

    @staticmethod
    def forward(context: Any, comm: Communicator, *parameters: Any) -> Any:
        """The parameters, as tensors of this graph."""
        context.comm, context.parameters = comm, parameters
        context.set_materialize_grads(False)
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Sums over all ranks, the same on every rank to the bit; None where no rank has a gradient."""
        likes = context.parameters
        buckets = buckets_for(context.comm, made(Torch), likes)
        buckets.fill(gradients)
        buckets.sum(context.comm)
        nowhere = buckets.nowhere(gradients)
        found: list[Any] = [None] * len(likes)
        for bucket in buckets.buckets:
            # A copy, which autograd may keep as .grad: the bucket's memory is needed again in the next step.
            copy = bucket.values.clone()
            for i, piece in zip(bucket.which, buckets.kind.pieces(copy, [likes[i] for i in bucket.which]), strict=True):
                found[i] = None if i in nowhere else piece.to(likes[i].dtype)
        return None, *found


class Share(torch.autograd.Function):  # type: ignore[misc]
    """Forward, this rank's share of a batch that all ranks have; back, the gradients of all shares as one batch again."""

    @staticmethod
    def forward(context: Any, tensor: Any, comm: Communicator, dim: int) -> Any:
        """A view of the rank's part; the first ranks have one more."""
        context.comm, context.dim, context.total = comm, dim, tensor.shape[dim]
        start, stop = stretch(context.total, comm.rank, comm.nranks)
        return tensor.narrow(dim, start, stop - start)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """All ranks' parts, in order."""
        return joined(context.comm, gradient, context.dim, context.total), None, None


class Joined(torch.autograd.Function):  # type: ignore[misc]
    """Forward, all ranks' shares as one batch on every rank; back, this rank's part, all ranks having gone on alike."""

    @staticmethod
    def forward(context: Any, tensor: Any, comm: Communicator, dim: int, total: int) -> Any:
        """The whole batch."""
        context.comm, context.dim, context.total = comm, dim, total
        return joined(comm, tensor, dim, total)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """The rank's part."""
        start, stop = stretch(context.total, context.comm.rank, context.comm.nranks)
        return gradient.narrow(context.dim, start, stop - start), None, None, None


def all_reduced(comm: Communicator, tensor: Any) -> Any:
    """The sum of all ranks' tensors, as a new one."""
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    comm.all_reduce(result, stream=made(Torch).stream(result.device))
    return result


def joined(comm: Communicator, tensor: Any, dim: int, total: int) -> Any:
    """All ranks' shares of `total` items along a dimension, behind each other."""
    part = tensor.detach().movedim(dim, 0).contiguous()
    row = part.shape[1:].numel()
    spans = [stretch(total, rank, comm.nranks) for rank in range(comm.nranks)]
    whole = part.new_empty((total, *part.shape[1:]))
    if whole.numel():
        counts = [(stop - start) * row * part.element_size() for start, stop in spans]
        send, recv = (one.reshape(-1).view(torch.uint8) for one in (part, whole))
        comm.all_gather_v(send, recv, counts, stream=made(Torch).stream(part.device))
    return whole.movedim(0, dim)
