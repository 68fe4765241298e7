"""What the CPU library's calls accept and refuse: counts of 0, types that are only copied, bad arguments; and its arithmetic by hand."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import raised
from helpers.host_more import Comm
from helpers.ranks import run

F32 = host_c.TYPES.index("float32")


def zero_counts(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    buffer = np.arange(4, dtype=np.float32)
    for send, recv in ((None, None), (buffer, buffer), (buffer, None)):
        for call in (comm.all_reduce, comm.reduce_scatter, comm.all_gather, comm.all_to_all):
            call(send, recv, count=0, type="float32")
        for call, root in itertools.product((comm.reduce, comm.broadcast, comm.gather, comm.scatter), range(nranks)):
            call(send, recv, root=root, count=0, type="float32")
        comm.barrier()
    assert buffer.tolist() == [0, 1, 2, 3]
    with host_c.group():
        comm.send(None, (rank + 1) % nranks, count=0)
        comm.recv(None, (rank - 1) % nranks, count=0)
        comm.all_reduce(None, None, count=0)
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("kind", ["processes", "threads", "mixed"])
def test_zero_counts(kind: str) -> None:
    """Count 0 on all ranks succeeds with and without pointers, touches nothing, and the calls after it are right."""
    run(3, zero_counts, kind=kind, make_comm=False)


ONE_TWO_THREE = {
    "float16": (0x3C00, 0x4000, 0x4200),
    "bfloat16": (0x3F80, 0x4000, 0x4040),
    "float8e4m3": (0x38, 0x40, 0x44),
    "float8e5m2": (0x3C, 0x40, 0x42),
}


def other_types(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    for name, numbers in ONE_TWO_THREE.items():
        size = host_c.SIZES[host_c.TYPES.index(name)]
        for count in (1, 301, 70_001):
            every = np.random.default_rng(count).integers(0, 256, (nranks, count * size), np.uint8)
            mine, alike, gathered = every[rank].copy(), every[1].copy(), np.zeros(every.size, np.uint8)
            buffer = mine.copy()
            comm.bcast(buffer, 1, count, name)
            assert (buffer == alike).all()
            comm.all_gather(mine, gathered, count, name)
            assert (gathered == every.ravel()).all()
            part = np.zeros_like(mine)
            comm.scatter(gathered, part, 0, count, name)
            assert (part == mine).all()
            number = np.full(count, numbers[rank], f"uint{8 * size}")
            try:
                comm.all_reduce(number, number, count=count, type=name)
            except host_c.HostError as error:
                assert error.code == host_c.INVALID_ARGUMENT and name in error.text, error
            else:
                assert (number == numbers[2]).all(), (name, number)
    comm.barrier()
    comm.destroy()


def test_other_types() -> None:
    """Half, bfloat16 and 8-bit floats travel unchanged; 1 + 2 is 3 in each, or its reduction is refused by name on all ranks."""
    run(2, other_types, make_comm=False)


def refused(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    one, other = np.ones(4 * nranks, np.float32), (rank + 1) % nranks
    for bad in (-1, nranks, 1 << 20):
        for call in (comm.reduce, comm.broadcast, comm.gather, comm.scatter):
            expect(f"0 to {nranks - 1}", call, one, one, root=bad, count=1)
        expect(f"0 to {nranks - 1}", comm.send, one, bad)
        expect(f"0 to {nranks - 1}", comm.recv, one, bad)
    for bad in (-1, 12, 99):
        expect("type", comm.all_reduce, one, one, type=bad)
        expect("type", comm.send, one, 0, type=bad)
    for bad in (-1, 5, 99):
        expect("operation", comm.all_reduce, one, one, op=bad)
    for call in (comm.all_reduce, comm.all_gather, comm.reduce_scatter, comm.all_to_all):
        expect("send", call, None, one, count=1)
        expect("receive", call, one, None, count=1)
        expect("count", call, one, one, count=1 << 62)
    for call in (comm.reduce, comm.gather):
        expect("receive", call, one, None, root=rank, count=1)
        expect("send", call, None, one, root=other, count=1)
    for call in (comm.broadcast, comm.scatter):
        expect("send", call, None, one, root=rank, count=1)
        expect("receive", call, one, None, root=other, count=1)
    expect("send", comm.send, None, other, count=1)
    expect("receive", comm.recv, None, other, count=1)
    assert (one == 1).all()
    comm.barrier()
    comm.destroy()


def expect(word: str, call: Any, *args: Any, **named: Any) -> None:
    """The call is an invalid argument, and the text has the word."""
    error = raised(call, *args, **named)
    assert error.code == host_c.INVALID_ARGUMENT and word in error.text, error


def test_bad_arguments() -> None:
    """Roots, peers, types, operations, counts and null pointers that cannot be are refused with their name and the valid range at once, on
    the rank that passed them alone; its communicator goes on as if nothing had been."""
    run(2, refused, make_comm=False)


def scenario_arithmetic(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)

    def reduced(dtype: str, op: str, *values: Any) -> Any:
        return [one_number(np.array([values[rank]] * n, dtype), op) for n in (1, 5, 3000)]

    def one_number(array: np.ndarray, op: str) -> Any:
        comm.all_reduce(array, array, op)
        assert (array == array[0]).all() or array[0] != array[0]
        return array[0].item()

    with np.errstate(all="ignore"):
        assert reduced("int32", "avg", 1, 2) == [1, 1, 1]
        assert reduced("int32", "avg", -1, -2) == [-1, -1, -1]
        assert reduced("int8", "avg", 127, 127) == [-1, -1, -1]
        assert reduced("int8", "sum", 120, 100) == [-36, -36, -36]
        assert reduced("uint8", "sum", 200, 100) == [44, 44, 44]
        assert reduced("int64", "sum", 2**63 - 1, 1) == [-(2**63)] * 3
        assert reduced("uint64", "max", 2**64 - 1, 1) == [2**64 - 1] * 3
        assert reduced("int64", "min", -(2**63), 1) == [-(2**63)] * 3
        assert reduced("float32", "max", np.nan, 1) == reduced("float32", "max", 1, np.nan) == [1, 1, 1]
        assert reduced("float64", "min", np.nan, 1) == reduced("float64", "min", 1, np.nan) == [1, 1, 1]
        assert np.isnan(reduced("float64", "sum", np.nan, 1)).all() and np.isnan(reduced("float64", "max", np.nan, np.nan)).all()
    comm.destroy()


def test_arithmetic_by_hand() -> None:
    """Integers wrap, their average truncates toward zero after the wrapped sum, a number wins against a NaN in max and min."""
    run(2, scenario_arithmetic, make_comm=False)


@pytest.mark.parametrize(("n", "dtype"), [(128, "int8"), (130, "int8"), (256, "uint8"), (257, "uint8")])
def test_average_of_many_ranks(n: int, dtype: str) -> None:
    """The average of small integers is right where the number of ranks does not fit into their type."""
    (got,) = run(1, averages, n, dtype, make_comm=False)
    total = np.array([3 * n], np.int64).astype(dtype).astype(np.int64)[0]
    assert got == [int(abs(total) // n * np.sign(total))] * n


def averages(rank: int, nranks: int, unique_id: Any, n: int, dtype: str) -> list[int]:
    comms = host_c.init_all(n)
    arrays = [np.array([3], dtype) for _ in comms]
    with host_c.group():
        for comm, array in zip(comms, arrays, strict=True):
            comm.all_reduce(array, array, "avg")
    for comm in comms:
        comm.destroy()
    return [int(array[0]) for array in arrays]


@forks.nursery()
def test_order_of_checks() -> None:
    """Of several faults NCCL's first one is told: communicator, revoked, root, type, operation, all of which count 0 does not excuse; then
    count 0 succeeds, also with an operation of one's own for another type, which is an error with elements only."""
    comm, x = Comm(1, host_c.unique_id(), 0), np.ones(2, np.float32)
    own = comm.pre_mul_sum(np.ones(1, np.float64))

    def told(word: str, code: int, count: int, type_: int, op: int, root: int, of: Any = None) -> None:
        error = raised((of or comm).call, "Reduce", x.ctypes.data, x.ctypes.data, count, type_, op, root)
        assert error.code == code and word in error.text, error

    for count in (2, 0):
        told("NULL", host_c.INVALID_ARGUMENT, count, 99, 99, 9, of=host_c.Comm.of(None, 1, 0))
        told("root", host_c.INVALID_ARGUMENT, count, 99, 99, 9)
        told("type", host_c.INVALID_ARGUMENT, count, 99, 99, 0)
        told("operation", host_c.INVALID_ARGUMENT, count, F32, 99, 0)
    told("float64", host_c.INVALID_ARGUMENT, 2, F32, own, 0)
    comm.call("Reduce", None, None, 0, F32, own, 0)
    comm.revoke()
    told("revoked", host_c.INVALID_USAGE, 0, 99, 99, 9)


@forks.nursery()
def test_overlapping_buffers() -> None:
    """Send and receive buffers are apart or in the one place that is in place; elsewhere, half an element off, a slice off or all to all in
    place, the call is ncclInvalidArgument of the kind "overlap" with the right address, on that rank at once and without a trace."""
    comms, n, k = host_c.init_all(2), 2, 8
    x = np.zeros(4 * n * k, np.float32)
    base, size = x.ctypes.data, 4

    def refused(name: str, send: int, recv: int, right: int | None, *rest: int) -> None:
        error = raised(comms[1].call, name, base + send * size, base + recv * size, k, F32, *rest)
        assert (error.code, error.kind) == (host_c.INVALID_ARGUMENT, "overlap"), error
        assert right is None or hex(base + right * size) in error.text, error

    for off in (1, k - 1):
        refused("AllReduce", 0, off, None, 0)
        refused("AllReduce", off, 0, None, 0)
        refused("Reduce", off, 0, None, 0, 1)
        refused("Broadcast", 0, off, None, 1)
        refused("AllGather", off, 0, k)
        refused("ReduceScatter", 0, off, k, 0)
        refused("Gather", off, 0, k, 1)
        refused("Scatter", 0, off, k, 1)
        refused("AlltoAll", 0, off, None)
    refused("AllGather", 0, 0, k)
    refused("ReduceScatter", 0, 0, k, 0)
    refused("AlltoAll", 0, 0, None)
    refused("AllGather", n * k - 1, 0, k)
    with host_c.group():  # beside each other, in place, and where one buffer is not looked at
        for comm in comms:
            own = base + comm.rank * 2 * n * k * size
            comm.call("AllReduce", own, own + k * size, k, F32, 0)
            comm.call("AllGather", own + comm.rank * k * size, own, k, F32)
            comm.call("Reduce", own, own + size if comm.rank else own, k, F32, 0, 0)
            comm.call("Scatter", own, own + k * size if comm.rank else own, k, F32, 0)
