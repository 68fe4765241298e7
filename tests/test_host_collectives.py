"""Every collective of the CPU library against NumPy: types, reductions, roots, places, memory, sizes, processes and threads."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import host_c
from helpers.ranks import run

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
COLLECTIVES = (*REDUCING, "broadcast", "bcast", "all_gather", "all_to_all", "gather", "scatter")
MEMORY = ("plain", "arena", "some ranks arena", "send arena", "recv arena")
# A call's own cache line, its inline slot, one piece, several pieces for each slot: 16 KiB and 128 KiB are where paths change.
SMALL, LARGE = (1, 3, 7, 8, 33, 301, 1023), (1025, 5003, 8193, 100_003)
GUARD, PATTERN, LARGEST = 64, 0xA5, LARGE[-1]
KINDS = ("processes", "threads", "mixed")


class Case(NamedTuple):
    """One call, the same on all ranks; `number` chooses the values."""

    number: int
    name: str
    dtype: str
    op: str
    root: int
    in_place: bool
    memory: str
    count: int


def cases(nranks: int, full: bool) -> Iterator[Case]:
    """All of name x type x op x root x place; with `full` also x memory x size, where the roots of more than 3 ranks share the sizes;
    without it these two take turns."""
    numbers = itertools.count()
    memory, small, large, turn = (itertools.cycle(values) for values in (MEMORY, SMALL, LARGE, range(7)))
    for name, dtype in itertools.product(COLLECTIVES, TYPES):
        ops = host_c.OPS if name in REDUCING else ("sum",)
        roots = range(nranks) if name in (*ROOTED, "bcast") else (0,)
        places = (True,) if name == "bcast" else (False,) if name == "all_to_all" else (False, True)
        for op, root, in_place in itertools.product(ops, roots, places):
            if full:
                sizes = (*SMALL[::2], *LARGE)
                for where, count in itertools.product(MEMORY, sizes if nranks < 4 or len(roots) == 1 else sizes[root % 2 :: 2]):
                    yield Case(next(numbers), name, dtype, op, root, in_place, where, count)
            else:
                yield Case(next(numbers), name, dtype, op, root, in_place, next(memory), next(small))
                if next(turn) % 3 == 0 or root == nranks - 1:
                    yield Case(next(numbers), name, dtype, op, root, in_place, next(memory), next(large))


class Values:
    """The same random numbers in every process; the elements of a case are a window into them."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.pool = {dtype: self.make(random, np.dtype(dtype)) for dtype in TYPES}

    @staticmethod
    def make(random: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        size = 6 * LARGEST + 10_007
        if dtype.kind in "iu":
            values = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, size, dtype, endpoint=True)
            values[::5] = values[::5] % 7
            return values
        values = (random.standard_normal(size) * 2.0 ** random.integers(-20, 20, size)).astype(dtype)
        for step, special in ((1009, np.nan), (1013, np.inf), (1019, -np.inf), (1021, 0.0), (1031, -0.0), (1033, np.finfo(dtype).max)):
            values[step // 2 :: step] = special
        return values

    def of(self, case: Case, rank: int, count: int) -> np.ndarray:
        """What a rank sends: `count` elements, other ones for each rank and case."""
        pool = self.pool[case.dtype]
        start = (case.number * 61 + rank * 10_007 + rank * rank * 389) % (pool.size - count)
        return pool[start : start + count]


def fold(parts: list[np.ndarray], op: str) -> np.ndarray:
    """The left fold in rank order, rounded to the type after each step."""
    dtype, n = parts[0].dtype, len(parts)
    if op == "avg" and dtype.kind == "f":
        parts = [part * (dtype.type(1) / dtype.type(n)) for part in parts]
    binary = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.fmax, "min": np.fmin}[op]
    result = parts[0]
    for part in parts[1:]:
        result = binary(result, part)
    if op == "avg" and dtype.kind in "iu":  # truncates toward zero, where NumPy's // goes down
        down = result // dtype.type(n)
        result = down + ((result < 0) & (result % dtype.type(n) != 0)).astype(dtype)
    return result.astype(dtype)


class Memory:
    """A rank's buffers: views into large blocks, with guard bytes before and after, at changing multiples of the element size."""

    def __init__(self, nranks: int) -> None:
        nbytes = 8 * LARGEST * nranks + 4 * GUARD
        self.blocks = {(where, use): make(nbytes) for where, make in (("plain", plain), ("arena", arena)) for use in ("send", "recv")}

    def take(self, arena: bool, use: str, dtype: np.dtype, count: int, number: int) -> Guarded:
        start = GUARD + number % 8 * dtype.itemsize
        return Guarded(self.blocks["arena" if arena else "plain", use], start, dtype, count)


def plain(nbytes: int) -> np.ndarray:
    return np.empty(nbytes, np.uint8)


def arena(nbytes: int) -> np.ndarray:
    return host_c.empty(nbytes, np.uint8)


class Guarded:
    """An array inside a block."""

    def __init__(self, block: np.ndarray, start: int, dtype: np.dtype, count: int) -> None:
        end = start + count * dtype.itemsize
        self.before, self.after = block[start - GUARD : start], block[end : end + GUARD]
        self.before[:] = self.after[:] = PATTERN
        self.array = block[start:end].view(dtype)

    def whole(self) -> bool:
        """Whether nothing was written beside the array."""
        return bool((self.before == PATTERN).all() and (self.after == PATTERN).all())


def uses_arena(case: Case, rank: int, use: str) -> bool:
    return {
        "plain": False,
        "arena": True,
        "some ranks arena": (rank + case.number) % 2 == 0,
        "send arena": use == "send",
        "recv arena": use == "recv",
    }[case.memory]


def parts_sent(case: Case, nranks: int) -> int:
    return nranks if case.name in ("reduce_scatter", "all_to_all", "scatter") else 1


def parts_received(case: Case, nranks: int) -> int:
    return nranks if case.name in ("all_gather", "all_to_all", "gather") else 1


def expected(case: Case, values: Values, rank: int, nranks: int) -> np.ndarray | None:
    """What is in the receive buffer afterwards; None where it is not used."""
    count = case.count
    if case.name in ("reduce", "gather") and rank != case.root:
        return None
    if case.name in ("broadcast", "bcast"):
        return values.of(case, case.root, count)
    if case.name == "scatter":
        return values.of(case, case.root, count * nranks)[rank * count : (rank + 1) * count]
    sent = [values.of(case, peer, count * parts_sent(case, nranks)) for peer in range(nranks)]
    if case.name in ("reduce_scatter", "all_to_all"):
        sent = [part[rank * count : (rank + 1) * count] for part in sent]
    return fold(sent, case.op) if case.name in REDUCING else np.concatenate(sent)


def call(comm: host_c.Comm, case: Case, send: Any, recv: Any) -> None:
    """The C function; NULL stands where this rank has no buffer."""
    if case.name == "bcast":
        comm.bcast(recv, case.root, case.count)
        return
    arguments: dict[str, Any] = {"count": case.count, "type": case.dtype}
    if case.name in REDUCING:
        arguments["op"] = case.op
    if case.name in ROOTED:
        arguments["root"] = case.root
    getattr(comm, case.name)(send, recv, **arguments)


def check_case(comm: host_c.Comm, case: Case, values: Values, memory: Memory) -> np.ndarray | None:
    """One call with everything around it; the received array."""
    rank, nranks, dtype, count = comm.rank, comm.nranks, np.dtype(case.dtype), case.count
    sends = rank == case.root if case.name in ("broadcast", "bcast", "scatter") else True
    want = expected(case, values, rank, nranks)
    mine = values.of(case, rank, count * parts_sent(case, nranks))
    send = memory.take(uses_arena(case, rank, "send"), "send", dtype, mine.size, case.number)
    recv = memory.take(uses_arena(case, rank, "recv"), "recv", dtype, count * parts_received(case, nranks), case.number // 3)
    send.array[:] = mine
    recv.array.view(np.uint8)[:] = PATTERN
    source, target = send.array, recv.array
    if case.in_place:
        at = slice(rank * count, (rank + 1) * count)
        if case.name in ("reduce_scatter", "scatter"):
            target = source[at] if sends else target
        else:
            source = target[at] if target.size > count else target
            source[:] = mine if sends else source
    call(comm, case, source if sends else None, target if want is not None else None)
    if want is not None:
        same(target, want, case, rank, "received")
    elif not case.in_place:
        same(recv.array.view(np.uint8), np.full(recv.array.nbytes, PATTERN, np.uint8), case, rank, "unused")
    if not case.in_place:
        same(send.array, mine, case, rank, "sent")
    elif case.name in ("reduce_scatter", "scatter") and sends:
        for part in (slice(0, at.start), slice(at.stop, None)):
            same(send.array[part], mine[part], case, rank, "sent")
    if not (send.whole() and recv.whole()):
        raise AssertionError(f"rank {rank} of {nranks}: bytes beside a buffer were written in {case}")
    return target if want is not None else None


def same(found: np.ndarray, wanted: np.ndarray, case: Case, rank: int, what: str) -> None:
    """Equal elements, a NaN for a NaN."""
    bad = (found != wanted) & ~((found != found) & (wanted != wanted))
    if bad.any():
        first = int(bad.argmax())
        raise AssertionError(
            f"rank {rank}, {what}: {int(bad.sum())} of {bad.size} differ, at {first} {found[first]!r} for {wanted[first]!r} in {case}"
        )


def all_cases(rank: int, nranks: int, unique_id: Any, full: bool) -> list[int]:
    """Run all cases on one communicator; a checksum over the bits of each all-reduce."""
    values, memory = Values(), Memory(nranks)
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    sums = []
    with np.errstate(all="ignore"):
        for case in cases(nranks, full):
            received = check_case(comm, case, values, memory)
            if case.name == "all_reduce":
                sums.append(zlib.crc32(received.view(np.uint8)))
    comm.barrier()
    comm.destroy()
    return sums


@pytest.mark.parametrize("n", range(1, 6))
def test_every_call(n: int) -> None:
    """Every collective gives the reference's values for each type, reduction, root and place, writes nothing else, and an all-reduce gives
    the same bits on every rank, whether ranks are processes, threads or both, and whatever the memory and the path."""
    kinds = KINDS if n > 2 else KINDS[:2]
    sums = [ranks for kind in kinds for ranks in run(n, all_cases, False, kind=kind, make_comm=False, deadline=50)]
    assert all(of_rank == sums[0] for of_rank in sums)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(("n", "kind"), [(2, "processes"), (3, "mixed"), (3, "threads"), (4, "processes"), (5, "mixed")])
def test_every_call_in_every_memory(n: int, kind: str) -> None:
    """The same for the whole product with memory kinds and sizes."""
    run(n, all_cases, True, kind=kind, make_comm=False, deadline=140)
