"""Gradients averaged over all ranks, in place: sum first, then one division by the number of ranks or of samples."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import kinds
from .buckets import Buckets, buckets_for, buckets_of_module, known_buckets, scale
from .kinds import Kind
from .settling import check_comm, settle

if TYPE_CHECKING:
    from ..communicator import Communicator

REDUCTIONS = ("mean", "sum")


def average_gradients(comm: Communicator, arrays: Any, weights: float | Sequence[float] | None = None, *, reduction: str = "mean") -> None:
    """Every rank's gradients become their average over all ranks, the same bits on every rank.

    `arrays`: gradients as an array, or a list or dict of arrays (NumPy, CuPy or torch), or a torch module or its parameters,
    whose `.grad` are meant. All ranks pass the same shapes in the same order. `weights`: how many samples are behind this
    rank's gradients, or a list or array with the number of each rank; then the result is what one process with all samples has, and
    the gradients of a rank without any, NaN perhaps, are not looked at. Without it ranks count alike. `reduction`: what this
    rank's gradients are of its samples, "mean" or "sum" (as a loss has it); sums are divided by the number of all samples,
    or of ranks, without being multiplied first.

    A parameter without a gradient (None) counts as zeros if another rank has one, else it keeps None. A module's gradients
    are afterwards views of a buffer, which the next call for this module overwrites: copy what you want to keep longer.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    check_comm(comm, "average_gradients()")
    weight, total = checked_weights(comm, weights)
    factor = 1.0 if weight is None or reduction == "sum" else weight
    divisor = comm.nranks if weight is None else total
    if kinds.is_torch(arrays, "Module"):
        average_module(comm, arrays, weight or 0.0, factor, divisor)
        return
    kind, likes, grads, parameters = collected(arrays)
    if not likes:
        return
    kinds.check_writable(kind, [grad for grad in grads if grad is not None])
    if not parameters and divisor is not None and alone(kind, likes):
        one_array(comm, kind, likes[0], factor, divisor)
        return
    buckets = buckets_for(comm, kind, likes)
    buckets.fill(grads, weight or 0.0, factor)
    average(comm, buckets, divisor)
    if parameters:
        give_back(buckets, likes, grads, False)
    else:
        for bucket in buckets.buckets:
            for i, piece in zip(bucket.which, bucket.pieces, strict=True):
                kind.copy(likes[i], piece)


def average_module(comm: Communicator, module: Any, weight: float, factor: float, divisor: float | None) -> None:
    """The same for the gradients of a module's parameters."""
    from .torch_arrays import Torch, dense, trained

    likes = trained(module)
    if not likes:
        return
    grads = [like.grad for like in likes]
    buckets = known_buckets(comm, module, likes)
    if buckets is not None and buckets.fill_usual(grads, weight, factor):
        average(comm, buckets, divisor)
        for like, piece in zip(likes, buckets.usual.pieces, strict=True):
            like.grad = piece.detach()
        return
    kind = kinds.made(Torch)
    kinds.check_writable(kind, [grad for grad in dense(grads) if grad is not None])
    buckets = buckets_of_module(comm, kind, module, likes)
    buckets.fill(grads, weight, factor)
    average(comm, buckets, divisor)
    give_back(buckets, likes, grads, True)


def collected(arrays: Any) -> tuple[Kind, list[Any], list[Any], bool]:
    """The kind of arrays, what has the gradients' shapes, the gradients, and whether these are the `.grad` of parameters."""
    found = kinds.listed(arrays)
    kind = kinds.of(found)
    of_module = [kinds.is_torch(array, "Parameter") for array in found]
    if any(of_module):
        if not all(of_module):
            raise TypeError("arrays holds parameters of torch and plain arrays; average the one and the other by themselves")
        from .torch_arrays import gradients

        likes = [parameter for parameter in found if parameter.requires_grad]
        return kind, likes, gradients(likes), True
    return kind, found, found, False


def checked_weights(comm: Communicator, weights: Any) -> tuple[float | None, float | None]:
    """This rank's weight, and the sum of all if it is known."""
    if weights is None or type(weights) is int:
        return weights if weights is None else checked_weight(weights), None
    axes = len(weights.shape) if hasattr(weights, "shape") else 0
    if axes == 1:
        weights = weights.tolist()
    if isinstance(weights, (str, bytes)) or axes > 1:
        raise TypeError(f"weights must be a number of samples or a list with one for each rank, not {weights!r}")
    if not isinstance(weights, Sequence):
        return checked_weight(weights), None
    if len(weights) != comm.nranks:
        raise ValueError(f"weights has {len(weights)} numbers for {comm.nranks} ranks; give one for each, or only this rank's")
    numbers = [checked_weight(weight) for weight in weights]
    return numbers[comm.rank], checked_total(sum(numbers))


def checked_weight(weight: Any) -> float:
    """A number of samples."""
    if isinstance(weight, bool) or not hasattr(weight, "__float__"):
        raise TypeError(f"weights must be numbers of samples, not {weight!r}")
    try:
        number = float(weight)
    except OverflowError:
        number = float("inf")
    if not 0 <= number < float("inf"):
        raise ValueError(f"weights must be at least 0 and finite, not {number}")
    return number


def checked_total(total: float) -> float:
    """The number of all samples."""
    if total <= 0:
        raise ValueError("weights are 0 on every rank: there is no sample to average over")
    return total


def alone(kind: Kind, likes: list[Any]) -> bool:
    """Whether there is one array, which the library can sum where it is, or a copy of it. No rank may find otherwise."""
    return len(likes) == 1 and kind.dtype(likes[0]) in ("float32", "float64")


def one_array(comm: Communicator, kind: Kind, array: Any, factor: float, divisor: float) -> None:
    """The same without a bucket."""
    kinds.check_side(comm, kind, array)
    # A sum that fails leaves the array as it is, unless it is the sum of what is there: that one is worth a copy.
    in_place = factor == 1.0 and kind.is_dense(array)
    vector = kind.plain(array) if in_place else kind.dense_copy(array)
    scale(vector, factor)
    stream = kind.stream(kind.place(array))
    comm.all_reduce(vector, stream=stream)
    settle(comm, stream)
    if divisor != 1:
        vector /= divisor
    if not in_place:
        kind.copy(array, vector)


def average(comm: Communicator, buckets: Buckets, divisor: float | None) -> None:
    """From a rank's values to the average of all; without a divisor it is the sum of their weights."""
    buckets.sum(comm)
    divide(buckets, summed_weight(buckets) if divisor is None else divisor)


def summed_weight(buckets: Buckets) -> Any:
    """The sum of all ranks' weights; on a GPU it stays there, and nobody waits for it."""
    if buckets.on_gpu:
        return buckets.notes[0]
    if buckets.usual is None:
        return checked_total(float(buckets.notes[0]))
    checked_total(buckets.usual.weight.item())
    return buckets.usual.weight


def divide(buckets: Buckets, divisor: Any) -> None:
    """From sums to averages."""
    if isinstance(divisor, (int, float)) and divisor == 1:
        return
    for bucket in buckets.buckets:
        bucket.values /= divisor


def give_back(buckets: Buckets, likes: list[Any], grads: list[Any], as_views: bool) -> None:
    """Let the parameters' gradients be the averages; one that no rank has stays None."""
    nowhere = buckets.nowhere(grads)
    for bucket in buckets.buckets:
        for i, piece in zip(bucket.which, bucket.pieces, strict=True):
            if i in nowhere:
                continue
            if as_views and piece.dtype == likes[i].dtype:
                likes[i].grad = piece.detach()  # a tensor of its own: the piece must stay, whatever is done to this one
            elif grads[i] is not None:
                buckets.kind.copy(grads[i], piece)
            else:
                with buckets.kind.lasting():
                    likes[i].grad = piece.to(likes[i].dtype, copy=True)
