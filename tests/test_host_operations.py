"""Reductions that callers of the CPU library make: PreMulSum on every path of the data, and the life of an operation."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from ctypes import byref, c_int
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, raised
from helpers.host_more import Comm, both_ways, group_end
from helpers.host_structs import library

SIZES = {"in the call": 2, "inline": 900, "staged": 40_000, "direct": 40_000}
BUILTIN = range(5)


def scaled_sum(inputs: list[np.ndarray], scalars: list[Any]) -> np.ndarray:
    """The definition: every input times its own scalar, then the sum in the order of the ranks, each step in the element type."""
    total = inputs[0] * scalars[0]
    for one, scalar in zip(inputs[1:], scalars[1:], strict=True):
        total = total + one * scalar
    return total


def inputs_of(nranks: int, count: int, dtype: Any) -> list[np.ndarray]:
    """What each rank brings, known to all."""
    made = []
    for rank in range(nranks):
        values = np.random.default_rng(rank).integers(-(2**31), 2**31, count)
        made.append((values if np.issubdtype(dtype, np.integer) else values / 2**27).astype(dtype))
    return made


def reductions(rank: int, nranks: int, ids: list[bytes], immediate: bool) -> None:
    """Of each type, on each path."""
    comm = Comm(nranks, ids[0], rank)
    for name in ("float32", "int32", "float64", "int64", "uint8"):
        for path, count in SIZES.items():
            reduce_all(comm, path, count, np.dtype(name), immediate)
    comm.destroy()


def reduce_all(comm: Comm, path: str, count: int, dtype: Any, immediate: bool) -> None:
    """All-reduce, reduce and reduce-scatter by an operation of its own, in and out of place."""
    nranks, rank = comm.nranks, comm.rank
    scalars = [np.array([value], dtype) for value in (3, 7, 101 if np.issubdtype(dtype, np.integer) else 0.1)][:nranks]
    sources = inputs_of(nranks, count * nranks, dtype)
    expected = scaled_sum(sources, [one[0] for one in scalars])
    mine = slice(rank * count, (rank + 1) * count)
    send, recv = (host_c.empty(expected.size, dtype) if path == "direct" else np.empty_like(expected) for _ in range(2))
    scalar = scalars[rank].copy()
    op = comm.pre_mul_sum(scalar, immediate)
    assert op >= len(BUILTIN)
    scalar[:] = 99 if immediate else scalars[rank]  # it has been read, or will be
    send[:] = sources[rank]
    recv[:] = 0
    comm.all_reduce(send, recv, op)
    assert recv.tobytes() == expected.tobytes(), (path, dtype)
    recv[:] = 0
    comm.reduce(send, recv, op, nranks - 1)
    assert recv.tobytes() == (expected if rank == nranks - 1 else np.zeros_like(expected)).tobytes(), (path, dtype)
    comm.reduce_scatter(send, recv[:count], op)
    assert recv[:count].tobytes() == expected[mine].tobytes(), (path, dtype)
    comm.reduce_scatter(send, send[mine], op)
    assert send[mine].tobytes() == expected[mine].tobytes(), (path, dtype)
    send[:] = sources[rank]
    comm.all_reduce(send, send, op)
    assert send.tobytes() == expected.tobytes(), (path, dtype)
    host_c.check(library().ncclRedOpDestroy(op, comm.handle))


@pytest.mark.parametrize("immediate", [True, False], ids=["immediate", "device"])
@forks.nursery()
def test_pre_mul_sum(immediate: bool) -> None:
    """Every rank's input is multiplied by that rank's own scalar and then summed, to the last bit, whether the scalar is read at once or
    when the call runs; as processes on each path and as threads."""
    forks.values(forks.fork(3, reductions, immediate, deadline=15))
    forks.values(forks.threads(3, reductions, immediate))
    forks.values(forks.fork(1, reductions, immediate))


@forks.nursery()
def test_device_scalar_in_a_group() -> None:
    """The scalar of a device operation is read when the group runs, an immediate one was read when the operation was made; an operation
    may be destroyed while the group is still open."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], blocking: bool) -> None:
        comm = Comm(nranks, ids[0], rank) if blocking else Comm.ready(nranks, ids[0], rank)
        value, other, scalar = np.ones(4, np.float32), np.ones(4, np.float32), np.array([5], np.float32)
        late, early = comm.pre_mul_sum(scalar, immediate=False), comm.pre_mul_sum(scalar)
        host_c.group_start()
        comm.all_reduce(value, value, late)
        comm.all_reduce(other, other, early)
        for op in (late, early):
            host_c.check(library().ncclRedOpDestroy(op, comm.handle))
        assert raised(comm.all_reduce, value, value, late).code == INVALID_ARGUMENT
        assert raised(group_end).code == INVALID_ARGUMENT
        late, early = comm.pre_mul_sum(scalar, immediate=False), comm.pre_mul_sum(scalar)
        host_c.group_start()
        comm.all_reduce(value, value, late)
        comm.all_reduce(other, other, early)
        for op in (late, early):
            host_c.check(library().ncclRedOpDestroy(op, comm.handle))
        scalar[:] = rank + 1
        group_end()
        comm.wait()
        assert (value == 3).all() and (other == 10).all(), (value, other)

    for blocking in (True, False):
        forks.values(forks.fork(2, rank_main, blocking))


@forks.nursery()
def test_operations_that_are_refused() -> None:
    """An operation used with another type, on another communicator, after it was destroyed, or one that never was, is ncclInvalidArgument,
    alone and in a group; nothing is written, and the communicator can be used."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, other = (Comm(nranks, one, rank) for one in ids)
        scalar, value = np.array([2], np.float32), np.ones(3, np.float32)
        op, gone, foreign = comm.pre_mul_sum(scalar), comm.pre_mul_sum(scalar), other.pre_mul_sum(scalar)
        assert len({op, gone, foreign}) == 3
        host_c.check(library().ncclRedOpDestroy(gone, comm.handle))
        for wrong in (gone, foreign, op + 1, op - 1, 5, 6, 1000, 2**31 - 1, -1, -(2**31)):
            assert both_ways(lambda wrong=wrong: comm.all_reduce(value, value, wrong)).code == INVALID_ARGUMENT, wrong
            assert raised(comm.reduce, value, value, wrong).code == INVALID_ARGUMENT
            assert raised(comm.reduce_scatter, value, value, wrong, 1).code == INVALID_ARGUMENT
            assert raised(comm.all_reduce, value, value, wrong, 0).code == INVALID_ARGUMENT
        for type in ("int32", "float64", "float16", "uint32"):
            error = raised(comm.all_reduce, value, value, op, 1, type)
            assert error.code == INVALID_ARGUMENT and "float32" in error.text and type in error.text, error
        for wrong in (*BUILTIN, -1, 5, gone, foreign, 2**31 - 1, -(2**31)):
            assert library().ncclRedOpDestroy(wrong, comm.handle) == INVALID_ARGUMENT, wrong
        assert library().ncclRedOpDestroy(op, None) == INVALID_ARGUMENT
        assert (value == 1).all()
        comm.all_reduce(value, value, op)
        assert (value == 4).all()
        comm.destroy()
        assert library().ncclRedOpDestroy(op, comm.handle) == INVALID_ARGUMENT
        other.all_reduce(value, value, foreign)
        other.destroy()

    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_creating_is_refused() -> None:
    """NULL pointers and an unknown type or residence are ncclInvalidArgument, alone and in a group."""
    comm, op, scalar = Comm(1, host_c.unique_id(), 0), c_int(), np.array([2], np.float32)
    create = library().ncclRedOpCreatePreMulSum
    pointer = scalar.ctypes.data
    wrong = (
        (None, pointer, 7, 1, comm.handle), (byref(op), None, 7, 1, comm.handle), (byref(op), None, 7, 0, comm.handle),
        (byref(op), pointer, 12, 1, comm.handle), (byref(op), pointer, -1, 1, comm.handle), (byref(op), pointer, 7, 2, comm.handle),
        (byref(op), pointer, 7, -1, comm.handle), (byref(op), pointer, 7, 1, None),
    )  # fmt: skip
    for arguments in wrong:
        assert both_ways(lambda arguments=arguments: host_c.check(create(*arguments))).code == INVALID_ARGUMENT, arguments
    comm.barrier()


@forks.nursery()
def test_different_operations_on_the_ranks() -> None:
    """Different scalars are no mismatch; an operation of one's own against a sum is, and the table says premulsum."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, value = Comm(nranks, ids[0], rank), np.ones(3, np.float32)
        op = comm.pre_mul_sum(np.array([2], np.float32))
        error = raised(comm.all_reduce, value, value, op if rank else "sum")
        assert (error.code, error.kind) == (INVALID_USAGE, "mismatch") and "premulsum" in error.text and "sum" in error.text, error
        comm.all_reduce(value, value, op)
        assert (value == 2 * nranks).all()

    forks.values(forks.fork(3, rank_main))


@forks.nursery()
def test_many_operations() -> None:
    """Hundreds of operations live at once, each with its own scalar; places are used again, and numbers of destroyed ones that were given
    out again are new operations."""
    comm, value = Comm(1, host_c.unique_id(), 0), np.ones(1, np.int64)
    for _ in range(3):
        ops = [comm.pre_mul_sum(np.array([n], np.int64)) for n in range(500)]
        assert len(set(ops)) == 500
        for n in (0, 1, 77, 499):
            value[:] = 1
            comm.all_reduce(value, value, ops[n])
            assert value[0] == n
        for op in ops:
            host_c.check(library().ncclRedOpDestroy(op, comm.handle))
    most = []
    while len(most) < 5000:
        try:
            most.append(comm.pre_mul_sum(np.array([1], np.int64)))
        except host_c.HostError as error:
            assert "1024" in error.text
            break
    assert len(set(most)) == len(most) >= 1000
    comm.destroy()


@forks.nursery()
def test_forked_child() -> None:
    """In a forked child the operations of its parent are refused with the communicator."""
    comm = Comm(1, host_c.unique_id(), 0)
    op = comm.pre_mul_sum(np.array([2], np.float32))
    child = os.fork()
    if child == 0:
        code = library().ncclRedOpDestroy(op, comm.handle)
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == INVALID_USAGE
    host_c.check(library().ncclRedOpDestroy(op, comm.handle))
