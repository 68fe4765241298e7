"""Send and receive of the CPU library: pairs, rings, all at once, order, self, sizes of every path, calls that do not fit together."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_USAGE, raised
from helpers.order import Flag
from helpers.ranks import run

SIZES = (1, 33, 8192, 8193, 20_001, 100_003)  # float32: up to 8192 travel in one slot, then pieces
MEMORY = ("plain", "arena", "arena on even ranks")


class Mailbox:
    """Buffers of one rank; the content of a message follows from who sends it to whom, its size and its number."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.made = rank, {}
        self.pool = np.random.default_rng(9).standard_normal(300_000).astype(np.float32)

    def content(self, source: int, target: int, size: int, number: int) -> np.ndarray:
        start = (source * 1009 + target * 10_007 + number * 31 + size) % 150_000
        return self.pool[start : start + size]

    def buffer(self, memory: str, peer: int, use: str, size: int, number: int) -> np.ndarray:
        """One array per message of a group; the same one again later."""
        arena = memory == "arena" or (memory == "arena on even ranks" and self.rank % 2 == 0)
        key = (arena, peer, use, size, number)
        if key not in self.made:
            self.made[key] = host_c.empty(size, np.float32) if arena else np.empty(size, np.float32)
        return self.made[key]

    def outgoing(self, memory: str, peer: int, size: int, number: int = 0) -> np.ndarray:
        buffer = self.buffer(memory, peer, "send", size, number)
        buffer[:] = self.content(self.rank, peer, size, number)
        return buffer

    def incoming(self, memory: str, peer: int, size: int, number: int = 0) -> np.ndarray:
        buffer = self.buffer(memory, peer, "recv", size, number)
        buffer[:] = -1
        return buffer

    def check(self, buffer: np.ndarray, peer: int, number: int = 0) -> None:
        if not (buffer == self.content(peer, self.rank, buffer.size, number)).all():
            raise AssertionError(f"rank {self.rank}: wrong data from {peer}, {buffer.size} elements, message {number}")


def patterns(rank: int, nranks: int, unique_id: Any) -> None:
    comm, box = host_c.Comm(nranks, bytes(unique_id), rank), Mailbox(rank, nranks)
    for memory, size in itertools.product(MEMORY, SIZES):
        pairs_one_way(comm, box, memory, size)
        ring(comm, box, memory, size)
        if size < 100_000:
            all_at_once(comm, box, memory, size, 3)
    comm.barrier()
    comm.destroy()


def pairs_one_way(comm: host_c.Comm, box: Mailbox, memory: str, size: int) -> None:
    """Every rank to every other one, one pair after the other, without a group."""
    for source, target in itertools.permutations(range(comm.nranks), 2):
        if comm.rank == source:
            buffer = box.outgoing(memory, target, size)
            comm.send(buffer, target)
            assert (buffer == box.content(source, target, size, 0)).all()
        if comm.rank == target:
            buffer = box.incoming(memory, source, size)
            comm.recv(buffer, source)
            box.check(buffer, source)


def ring(comm: host_c.Comm, box: Mailbox, memory: str, size: int) -> None:
    """To the right, from the left, at once."""
    right, left = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    buffer = box.incoming(memory, left, size)
    with host_c.group():
        comm.send(box.outgoing(memory, right, size), right)
        comm.recv(buffer, left)
    box.check(buffer, left)


def all_at_once(comm: host_c.Comm, box: Mailbox, memory: str, size: int, messages: int) -> None:
    """Everybody to everybody, itself included, several messages each, in one group; sizes differ by message."""
    received = []
    with host_c.group():
        for peer, number in itertools.product(range(comm.nranks), range(messages)):
            comm.send(box.outgoing(memory, peer, size + number, number), peer)
            received.append((box.incoming(memory, peer, size + number, number), peer, number))
            comm.recv(received[-1][0], peer)
    for buffer, peer, number in received:
        box.check(buffer, peer, number)


@pytest.mark.parametrize(("kind", "n"), [("processes", 2), ("processes", 4), ("threads", 4), ("mixed", 4), ("threads", 1)])
def test_patterns(kind: str, n: int) -> None:
    """One way, in a ring and all to all at once, messages of every path and memory arrive whole, at the right receiver and in order."""
    run(n, patterns, kind=kind, make_comm=False, deadline=30)


def conversation(rank: int, nranks: int, unique_id: Any, rounds: int) -> None:
    comm, box = host_c.Comm(nranks, bytes(unique_id), rank), Mailbox(rank, nranks)
    random, other = np.random.default_rng(3), 1 - rank
    for _ in range(rounds):
        sizes = random.choice([0, 1, 7, 4000, 8192, 8193, 30_000, 70_001], 6)
        memory = MEMORY[random.integers(3)]
        order = random.permutation(12) if rank else random.permutation(12)[::-1]
        incoming = [box.incoming(memory, other, size, number) for number, size in enumerate(sizes)]
        outgoing = [box.outgoing(memory, other, size, number) for number, size in enumerate(sizes)]
        sent, received = iter(outgoing), iter(incoming)
        with host_c.group():
            for turn in order:
                comm.send(next(sent), other) if turn % 2 else comm.recv(next(received), other)
        for number, buffer in enumerate(incoming):
            box.check(buffer, other, number)
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_order(kind: str) -> None:
    """Messages between two ranks match in the order of their calls, in both directions at once, whatever their sizes and however sends and
    receives take turns in the group."""
    run(2, conversation, 100, kind=kind, make_comm=False, deadline=20)


@forks.nursery()
def test_ring_of_threads() -> None:
    """16 ranks as threads send to the right and receive from the left, 50 times."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> int:
        comm, token = host_c.Comm(nranks, ids[0], rank), np.array([rank], np.int64)
        for _ in range(50):
            arrived = np.empty_like(token)
            with host_c.group():
                comm.send(token, (rank + 1) % nranks)
                comm.recv(arrived, (rank - 1) % nranks)
            token = arrived
        comm.destroy()
        return int(token[0])

    assert forks.values(forks.threads(16, rank_main)) == [(rank - 50) % 16 for rank in range(16)]


def to_self(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    first, second, big = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.arange(50_000.0)
    got, also, large = np.zeros(2), np.zeros(2), np.zeros(50_000)
    with host_c.group():
        comm.send(first, rank)
        comm.send(second, rank)
        comm.recv(got, rank)
        comm.send(big, rank)
        comm.recv(also, rank)
        comm.recv(large, rank)
    assert (got == first).all() and (also == second).all() and (large == big).all()
    with host_c.group():
        comm.send(first, rank)
        comm.recv(first, rank)
    assert first.tolist() == [1, 2]
    for call in (comm.send, comm.recv):
        error = raised(call, first, rank)
        assert error.code == INVALID_USAGE and "group" in error.text, error
    for call in (comm.send, comm.recv):
        host_c.group_start()
        call(first, rank)
        error = raised(host_c.group_end)
        assert error.code == INVALID_USAGE and "partner" in error.text, error
    with host_c.group():
        comm.send(first, rank)
        comm.recv(got, rank)
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("n", [1, 2])
def test_self(n: int) -> None:
    """A send to oneself and its receive work in one group, in order; outside of a group, or without partner, they are refused and nothing
    waits."""
    run(n, to_self, make_comm=False)


def misfits(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    other = rank ^ 1
    for count, type_, partner_count, partner_type in (
        (5, "float32", 6, "float32"),
        (6, "float32", 5, "float32"),
        (4, "float32", 2, "float64"),
        (1, "float32", 100_000, "float32"),
        (100_000, "float32", 1, "float32"),
        (100_000, "float32", 50_000, "float64"),
        (0, "float32", 3, "float32"),
        (3, "float32", 0, "float32"),
    ):
        if rank > 1:
            break
        buffer = np.full(100_000, 7.0, np.float32)
        if rank == 0:
            error = raised(comm.send, buffer, other, count=count, type=type_)
        else:
            error = raised(comm.recv, buffer, other, count=partner_count, type=partner_type)
        assert (error.code, error.kind) == (INVALID_USAGE, "mismatch"), error
        for word in ("ncclSend", "ncclRecv", str(count), str(partner_count), type_, partner_type):
            assert word in error.text, error
        assert other in error.ranks and (buffer == 7).all(), error
        if rank == 0:
            comm.send(buffer, other)
        else:
            comm.recv(buffer, other)
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_misfits(kind: str) -> None:
    """A send and a receive of different count or type fail on both sides with a table of the two; nothing is received, the next message
    and the other ranks are not disturbed."""
    run(3, misfits, kind=kind, make_comm=False)


@forks.nursery()
def test_empty_messages() -> None:
    """A message of 0 elements needs no buffer but does need its partner."""
    told = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.array([rank], np.int32)
        if rank == 0:
            comm.send(None, 1, count=0)
            comm.send(one, 1)
        else:
            comm.recv(None, 0, count=0)
            comm.recv(one, 0)
            assert one[0] == 0
        comm.barrier()
        comm.set_timeout(0.3)
        if rank == 0:
            error = raised(comm.send, None, 1, count=0)
            assert error.kind == "timeout" and error.ranks == (1,), error
            told.set()
        else:
            told.wait()
        comm.abort()

    forks.values(forks.fork(2, rank_main))
