"""The same parameters on every rank: bring them in step, and measure how far they are from it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..batch import group
from . import kinds
from .kinds import Kind, check_side, check_writable, real_size
from .settling import check_comm, settle
from .shares import whole_number

if TYPE_CHECKING:
    from ..communicator import Communicator


SMALLEST = sys.float_info.min


def broadcast_parameters(comm: Communicator, arrays: Any, root: int = 0) -> None:
    """Every rank ends up with the root's values, to the bit, in place.

    `arrays`: a torch module (its parameters and buffers), an array, or a list or dict of arrays, of any type; all ranks pass
    the same shapes in the same order.
    """
    check_comm(comm, "broadcast_parameters()")
    root = whole_number("root", root)
    if not 0 <= root < comm.nranks:
        raise ValueError(f"root must be a rank of the communicator, 0..{comm.nranks - 1}, not {root}")
    if kinds.is_torch(arrays, "Module"):
        found = [*arrays.parameters(), *arrays.buffers()]
    else:
        found = kinds.listed(arrays)
    kind = kinds.of(found)
    found = [array for array in found if kind.size(array)]
    for array in found:
        check_side(comm, kind, array)
    if comm.rank != root:
        check_writable(kind, found)
    dense = [array if kind.is_dense(array) else kind.dense_copy(array) for array in found]
    with group():
        for array in dense:
            comm.broadcast(kind.as_bytes(array), root=root, stream=kind.stream(kind.place(array)))
    settle(comm, kind.stream(kind.place(dense[0])) if dense else None)
    for array, copied in zip(found, dense, strict=True):
        if copied is not array:
            kind.copy(array, copied)


def parameter_error(comm: Communicator, arrays: Any) -> float:
    """How far the ranks' parameters are apart: 0 means that all are the same; the number is the same on every rank.

    It is the mean square difference from the mean of all ranks, averaged over the elements of each array, then over the
    arrays, then over the ranks; NaN if a parameter is not finite, and where squares are too small for a float the smallest
    one, which is not 0. Numbers are compared as float64, which tells integers apart up to 2**53. `arrays` as in
    broadcast_parameters, but of a module only the parameters: buffers, such as running statistics, may differ.
    """
    check_comm(comm, "parameter_error()")
    found = list(arrays.parameters()) if kinds.is_torch(arrays, "Module") else kinds.listed(arrays)
    kind = kinds.of(found)
    found = [array for array in found if kind.size(array)]
    if not found:
        return 0.0
    for array in found:
        check_side(comm, kind, array)
    stream = kind.stream(kind.place(found[0]))
    mine = kind.doubles(found)
    # Relative to rank 0's values equal ones are exactly 0, whatever the number of ranks; a mean of equal values need not be.
    first = kind.dense_copy(mine)
    comm.broadcast(first, stream=stream)
    settle(comm, stream)
    with kind.silent():
        mine -= first
        differ = (mine != 0).any().reshape(1)
        mean = kind.dense_copy(mine)
        comm.all_reduce(mean, stream=stream)
        settle(comm, stream)
        mine -= mean / comm.nranks
        told = kind.doubles([array_means(kind, mine * mine, found), differ])
    comm.all_reduce(told, stream=stream)
    settle(comm, stream)
    error, differing = told.tolist()
    return float(error / comm.nranks or (SMALLEST if differing else 0.0))


def array_means(kind: Kind, squares: Any, arrays: list[Any]) -> Any:
    """The mean over the arrays of the means over their elements, as a vector of one."""
    total, start = squares[:0].sum().reshape(1), 0
    for array in arrays:
        count = real_size(kind, array)
        total += squares[start : start + count].mean()
        start += count
    return total / len(arrays)
