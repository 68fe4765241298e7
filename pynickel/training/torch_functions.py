"""Steps of a torch graph that cross ranks, each with its own way back."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .buckets import buckets_for
from .kinds import made
from .settling import check_comm, settle
from .shares import stretch
from .torch_arrays import Torch, dense

if TYPE_CHECKING:
    from ..communicator import Communicator

ACROSS = "a step of torch's graph across ranks"


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
        return SumOverRanks.apply(gradient, context.comm), None


class Entrance(torch.autograd.Function):  # type: ignore[misc]
    """Forward, this rank's shares of inputs, and a module's parameters as they are; back, all that crosses ranks, in one order.

    One step for all, so that ranks whose graphs differ, a rank with an empty share perhaps, still call the same in turn.
    """

    @staticmethod
    def forward(context: Any, comm: Communicator, dim: int, count: int, *tensors: Any) -> Any:
        """Shares of the first `count` tensors, of which all ranks have the whole batch, then the parameters."""
        context.comm, context.dim, context.parameters = comm, dim, tensors[count:]
        context.set_materialize_grads(False)
        # Copies, because a module may change its input in place, which autograd forbids for views made here.
        shares = [share(tensor, comm, dim).clone() for tensor in tensors[:count]]
        context.empty = [(part.new_empty(0), part.shape, tensor.shape[dim]) for part, tensor in zip(shares, tensors, strict=False)]
        return (*shares, *(parameter.view_as(parameter) for parameter in context.parameters))

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """The shares' gradients as whole batches again, and the parameters' summed over all ranks."""
        comm, dim = context.comm, context.dim
        whole = []
        for (empty, shape, total), gradient in zip(context.empty, gradients, strict=False):
            own = empty.new_zeros(shape) if gradient is None else gradient
            whole.append(Joined.apply(own, None, comm, dim, total))
        sums = SummedGradients.apply(comm, context.parameters, *gradients[len(whole) :]) if context.parameters else ()
        return None, None, None, *whole, *sums


class SummedGradients(torch.autograd.Function):  # type: ignore[misc]
    """Forward, the gradients of parameters summed over all ranks, all at once; back, the same for each, all ranks going on alike."""

    @staticmethod
    def forward(context: Any, comm: Communicator, parameters: Any, *gradients: Any) -> Any:
        """Sums over all ranks, the same on every rank to the bit; None where no rank has a gradient."""
        context.set_materialize_grads(False)
        check_comm(comm, ACROSS)
        buckets = buckets_for(comm, made(Torch), parameters)
        buckets.fill(dense(gradients))
        buckets.sum(comm)
        nowhere = buckets.nowhere(gradients)
        found: list[Any] = [None] * len(parameters)
        for bucket in buckets.buckets:
            # A copy, which autograd may keep as .grad: the bucket's memory is needed again in the next step.
            copy = bucket.values.clone()
            for i, piece in zip(bucket.which, buckets.kind.pieces(copy, [parameters[i] for i in bucket.which]), strict=True):
                found[i] = None if i in nowhere else piece.to(parameters[i].dtype)
        return tuple(found)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """As they come."""
        return None, None, *gradients


class Joined(torch.autograd.Function):  # type: ignore[misc]
    """Forward, all ranks' shares as one batch on every rank; back, this rank's part, all ranks having gone on alike."""

    @staticmethod
    def forward(context: Any, tensor: Any, anchor: Any, comm: Communicator, dim: int, total: int) -> Any:
        """The whole batch."""
        context.comm, context.dim = comm, dim
        return joined(comm, tensor, dim, total)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """The rank's part."""
        return share(gradient, context.comm, context.dim), None, None, None, None


class Anchored(torch.autograd.Function):  # type: ignore[misc]
    """Forward, an output as it is; back, its gradient. It ties the output to the entrance, where the other ranks wait.

    So a rank whose output depends on no parameter comes there too.
    """

    @staticmethod
    def forward(context: Any, tensor: Any, anchor: Any) -> Any:
        """A copy, because what follows may change it in place."""
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """As it comes; nothing for the anchor, but its own way back is gone."""
        return gradient, None


def share(tensor: Any, comm: Communicator, dim: int) -> Any:
    """A view of this rank's part of a batch that all ranks have; the first ranks have one more."""
    start, stop = stretch(tensor.shape[dim], comm.rank, comm.nranks)
    return tensor.narrow(dim, start, stop - start)


def all_reduced(comm: Communicator, tensor: Any) -> Any:
    """The sum of all ranks' tensors, as a new one."""
    check_comm(comm, ACROSS)
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    stream = made(Torch).stream(result.device)
    comm.all_reduce(result, stream=stream)
    settle(comm, stream)
    return result


def joined(comm: Communicator, tensor: Any, dim: int, total: int) -> Any:
    """All ranks' shares of `total` items along a dimension, behind each other."""
    check_comm(comm, ACROSS)
    part = tensor.detach().movedim(dim, 0).contiguous()
    row = part.shape[1:].numel()
    spans = [stretch(total, rank, comm.nranks) for rank in range(comm.nranks)]
    whole = part.new_empty((total, *part.shape[1:]))
    if whole.numel():
        counts = [(stop - start) * row * part.element_size() for start, stop in spans]
        send, recv = (one.reshape(-1).view(torch.uint8) for one in (part, whole))
        stream = made(Torch).stream(part.device)
        comm.all_gather_v(send, recv, counts, stream=stream)
        settle(comm, stream)
    # No view: what follows may work on it in place, which autograd forbids for views made here.
    return whole if dim % tensor.ndim == 0 else whole.movedim(0, dim).clone(memory_format=torch.contiguous_format)
