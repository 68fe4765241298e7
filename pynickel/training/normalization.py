"""Mean and variance over the batches of all ranks together, which batch normalization needs and averaged gradients do not give."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from . import kinds
from .settling import check_comm, settle
from .shares import whole_number

if TYPE_CHECKING:
    from ..communicator import Communicator


def batch_statistics(comm: Communicator, values: Any, axis: int | tuple[int, ...] = 0) -> tuple[Any, Any, float]:
    """Mean, variance and number of all ranks' values over these axes, as if one process had all of them; the same on every rank.

    `values`: an array of NumPy or CuPy, or a tensor; the axes that are left must have the same lengths on all ranks, and a
    rank may have none along the others. The variance is the one that normalization divides by (over n, not n - 1). For
    tensors that need gradients the results carry them across ranks: when every rank calls backward on its own part of the
    loss, each gets the gradient of the whole.
    """
    check_comm(comm, "batch_statistics()")
    kind = kinds.of([values])
    kinds.check_side(comm, kind, values)
    name = kind.dtype(values)
    if kinds.summed_in(name) != name:
        raise TypeError(f"values must be float32 or float64, not {name}; convert them first")
    axes = checked_axes(axis, len(values.shape))
    own = prod(values.shape[one] for one in axes)
    count = kind.doubles([values.reshape(-1)[:0]]).sum().reshape(1) + own  # a float64 where the values are
    number = float(summed(comm, kind, count)[0])
    if number == 0:
        raise ValueError(f"no rank has a value along axis {axis}: the shape here is {tuple(values.shape)}")
    kept = tuple(1 if one in axes else size for one, size in enumerate(values.shape))
    mean = summed(comm, kind, values.sum(axes)) / number
    off = values - mean.reshape(kept)
    return mean, summed(comm, kind, (off * off).sum(axes)) / number, number


def checked_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes, counted from the first one."""
    found = []
    for one in axis if isinstance(axis, (tuple, list)) else (axis,):
        number = whole_number("axis", one)
        if not -ndim <= number < ndim:
            raise ValueError(f"axis {number} is none of the {ndim} axes of values; the first one is 0")
        if number % ndim in found:
            raise ValueError(f"axis has {number} twice: {axis}")
        found.append(number % ndim)
    return tuple(found)


def summed(comm: Communicator, kind: kinds.Kind, array: Any) -> Any:
    """The sum over all ranks, as a new array."""
    if kind.name == "torch":
        from .torch_functions import SumOverRanks

        return SumOverRanks.apply(array, comm)
    result = kind.dense_copy(kind.xp.asarray(array)).reshape(-1)  # what was summed along an axis need not be in C order
    stream = kind.stream(kind.place(array))
    comm.all_reduce(result, stream=stream)
    settle(comm, stream)
    return result.reshape(array.shape)
