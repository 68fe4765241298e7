"""The nine collectives: which buffers they take, what they call, what must arrive, and how their bandwidth is counted."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...enums import DataType
from ...plan import Plan


@dataclass(frozen=True)
class Call:
    """One call: the rank that makes it, addresses of the two buffers, elements of one rank's part, and what else the collective needs."""

    rank: int
    nranks: int
    send: int
    recv: int
    count: int
    dtype: DataType
    op: Any
    root: int
    stream: Any


@dataclass(frozen=True)
class Expected:
    """A piece of the receive buffer: `count` elements at element `place` come from rank `source` (None: all ranks', reduced),
    from element `start` of what that rank sends."""

    place: int
    count: int
    source: int | None
    start: int


@dataclass(frozen=True)
class Collective:
    """`send_parts` and `recv_parts`: how many ranks' parts the buffers hold, as functions of the number of ranks."""

    name: str
    queue: Callable[[Plan, Call], None]
    expected: Callable[[int, int, int, int], list[Expected]]  # nranks, rank, root, count
    bus: Callable[[int], float]  # busbw / algbw
    many_send: bool = False  # the send buffer holds a part for each rank
    many_recv: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True

    @property
    def by_part(self) -> bool:
        """Whether the count is that of one rank's part of the operation's size."""
        return self.many_send or self.many_recv

    def count(self, nbytes: int, itemsize: int, nranks: int) -> int:
        """Elements of the call for that operation size; parts are cut to a multiple of 16 bytes, as nccl-tests does."""
        if not self.by_part:
            return nbytes // itemsize
        multiple = 16 // itemsize
        return nbytes // itemsize // nranks // multiple * multiple

    def elements(self, count: int, nranks: int) -> tuple[int, int]:
        """Elements of the send and of the receive buffer."""
        return count * (nranks if self.many_send else 1), count * (nranks if self.many_recv else 1)

    def bandwidth(self, nbytes: int, nranks: int, seconds: float) -> tuple[float, float]:
        """Algorithm and bus bandwidth in GB/s of an operation of so many bytes."""
        algorithm = nbytes / seconds / 1e9 if seconds > 0 else 0.0
        return algorithm, algorithm * self.bus(nranks)

    def shift(self, rank: int, count: int) -> tuple[int, int]:
        """In place: the element of the common buffer at which this rank's send and receive buffer begin."""
        return (rank * count if self.many_recv else 0), (rank * count if self.many_send else 0)


def gather_like(nranks: int) -> float:
    """Every rank's own part stays where it is."""
    return (nranks - 1) / nranks


def same(nranks: int) -> float:
    """Every byte crosses the wire once."""
    return 1.0


def reduced_everywhere(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """All of the reduction."""
    return [Expected(0, count, None, 0)]


def reduced_at_root(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """The reduction, at the root."""
    return [Expected(0, count, None, 0)] if rank == root else []


def reduced_part(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """This rank's part of the reduction."""
    return [Expected(0, count, None, rank * count)]


def from_root(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """The root's buffer."""
    return [Expected(0, count, root, 0)]


def part_from_root(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """This rank's part of the root's buffer."""
    return [Expected(0, count, root, rank * count)]


def from_all(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """Everybody's buffer, in rank order."""
    return [Expected(source * count, count, source, 0) for source in range(nranks)]


def from_all_at_root(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """Everybody's buffer, at the root."""
    return from_all(nranks, rank, root, count) if rank == root else []


def part_from_all(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """This rank's part of everybody's buffer."""
    return [Expected(source * count, count, source, rank * count) for source in range(nranks)]


def from_before(nranks: int, rank: int, root: int, count: int) -> list[Expected]:
    """The buffer of the rank before this one in the ring."""
    return [Expected(0, count, (rank - 1) % nranks, 0)]


def all_reduce(plan: Plan, c: Call) -> None:
    """Sum of all, everywhere."""
    plan.all_reduce(c.send, c.recv, c.op, count=c.count, dtype=c.dtype, stream=c.stream)


def all_gather(plan: Plan, c: Call) -> None:
    """All buffers, everywhere."""
    plan.all_gather(c.send, c.recv, count=c.count, dtype=c.dtype, stream=c.stream)


def alltoall(plan: Plan, c: Call) -> None:
    """A part from everybody to everybody."""
    plan.all_to_all(c.send, c.recv, count=c.count, dtype=c.dtype, stream=c.stream)


def broadcast(plan: Plan, c: Call) -> None:
    """The root's buffer, everywhere."""
    plan.broadcast(c.send, c.recv, c.root, count=c.count, dtype=c.dtype, stream=c.stream)


def gather(plan: Plan, c: Call) -> None:
    """All buffers, at the root."""
    recv = c.recv if c.rank == c.root else None
    plan.gather(c.send, recv, c.root, count=c.count, dtype=c.dtype, stream=c.stream)


def reduce(plan: Plan, c: Call) -> None:
    """Sum of all, at the root."""
    plan.reduce(c.send, c.recv, c.op, c.root, count=c.count, dtype=c.dtype, stream=c.stream)


def reduce_scatter(plan: Plan, c: Call) -> None:
    """Each rank its part of the sum."""
    plan.reduce_scatter(c.send, c.recv, c.op, count=c.count, dtype=c.dtype, stream=c.stream)


def scatter(plan: Plan, c: Call) -> None:
    """Each rank its part of the root's buffer."""
    send = c.send if c.rank == c.root else None
    plan.scatter(send, c.recv, c.root, count=c.count, dtype=c.dtype, stream=c.stream)


def sendrecv(plan: Plan, c: Call) -> None:
    """Around the ring, to the next rank."""
    plan.send(c.send, (c.rank + 1) % c.nranks, count=c.count, dtype=c.dtype, stream=c.stream)
    plan.recv(c.recv, (c.rank - 1) % c.nranks, count=c.count, dtype=c.dtype, stream=c.stream)


COLLECTIVES = {
    found.name: found
    for found in (
        Collective("all_gather", all_gather, from_all, gather_like, many_recv=True),
        Collective("all_reduce", all_reduce, reduced_everywhere, lambda n: 2 * (n - 1) / n, reduces=True),
        Collective("alltoall", alltoall, part_from_all, gather_like, many_send=True, many_recv=True, in_place=False),
        Collective("broadcast", broadcast, from_root, same, rooted=True),
        Collective("gather", gather, from_all_at_root, gather_like, many_recv=True, rooted=True),
        Collective("reduce", reduce, reduced_at_root, same, reduces=True, rooted=True),
        Collective("reduce_scatter", reduce_scatter, reduced_part, gather_like, many_send=True, reduces=True),
        Collective("scatter", scatter, part_from_root, gather_like, many_send=True, rooted=True),
        Collective("sendrecv", sendrecv, from_before, same, in_place=False),
    )
}
