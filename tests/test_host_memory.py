"""Memory of the CPU library: nothing piles up, peers drop what was freed, foreign pointers are refused."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c, order
from helpers.host_c import INVALID_ARGUMENT, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, raised
from helpers.host_more import Comm
from helpers.order import Flag, in_call


def create_and_destroy(rounds: int) -> None:
    """Communicators of 2 processes, of 2 threads and of one thread, used by all paths and ended in all ways; then count what is held. Each
    process also looks whether it grows, once it has had all of them."""
    for memory in ("plain", "arena"):
        forks.values(forks.fork(2, live_and_die, memory, True, ids=rounds // 4, deadline=60))
    before = forks.holds()
    forks.values(forks.threads(2, live_and_die, "plain", False, ids=rounds // 4, deadline=60))
    assert forks.holds(before) == before
    one_by_one = [count_init_all(), forks.holds()]
    for _ in range(rounds // 4):
        one_by_one[1] = count_init_all()
    assert one_by_one[0] == one_by_one[1] and one_by_one[1]["memfds"] == one_by_one[1]["mappings"]


def live_and_die(rank: int, nranks: int, ids: list[bytes], memory: str, alone: bool) -> None:
    """One after the other; `alone`: what this process holds is this rank's."""
    before, resident = forks.holds(), []
    buffer = host_c.empty(20_000, np.float32) if memory == "arena" else np.ones(20_000, np.float32)
    for turn, id_ in enumerate(ids):
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
        use(turn, Comm.ready(nranks, id_, rank) if turn % 5 == 4 else Comm(nranks, id_, rank), buffer)
    after, own = forks.holds(before), int(memory == "arena")
    if not alone:
        return
    assert after["threads"] == before["threads"] and after["memfds"] == after["mappings"] == own, (before, after)
    assert after["descriptors"] == before["descriptors"] - before["memfds"] + own, (before, after)
    # A handle rests for 64 others before it is used again, with what it needs to say that it is gone.
    assert resident[-1] < max(resident[: len(ids) // 2]) + (2 << 20), resident


def use(turn: int, comm: Comm, buffer: Any) -> None:
    """All that belongs to a communicator, then one of its ends."""
    blocking, peer = comm.code == SUCCESS, 1 - comm.rank
    if blocking:
        for count in (1, 500, 20_000):
            comm.all_reduce(buffer, buffer, count=count)
        with host_c.group():
            comm.send(buffer, peer, count=10_000)
            comm.recv(buffer[10_000:], peer, count=10_000)
    if blocking and turn % 5 == 0:
        child = comm.split(0)
        child.learn().barrier()
        child.window(host_c.empty(1000, np.float32))
        child.pre_mul_sum(np.ones(1, np.float32))
        child.destroy()
    comm.barrier()
    if blocking and turn % 3 == 0:
        comm.finalize()
    (comm.abort if turn % 3 == 1 else comm.destroy)()


def count_init_all() -> dict[str, int]:
    """One round with two ranks in this thread."""
    comms, buffer = host_c.init_all(2), np.ones((2, 5000))
    with host_c.group():
        for comm in comms:
            comm.all_reduce(buffer[comm.rank], buffer[comm.rank])
    for comm in comms:
        comm.destroy()
    return forks.holds()


@forks.nursery(deadline=40)
def test_nothing_piles_up() -> None:
    """200 communicators that were created, used and ended leave no descriptor, no mapping and no thread."""
    create_and_destroy(200)


@pytest.mark.slow
@pytest.mark.timeout(130)
@forks.nursery(deadline=120)
def test_nothing_piles_up_1000() -> None:
    """1,000 rounds of creating, using and ending communicators, blocking and not, with splits, windows and operations, leave no file,
    descriptor, mapping, thread or memory."""
    files = {name for name in os.listdir("/dev/shm") if "nickel" in name or "nccl" in name}
    create_and_destroy(200)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    create_and_destroy(1000)
    assert int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() < before + (2 << 20)
    assert {name for name in os.listdir("/dev/shm") if "nickel" in name or "nccl" in name} == files


@forks.nursery()
def test_failed_inits_leave_nothing() -> None:
    """20 inits that fail, by a deadline, a mismatch or a used id, leave no descriptor, no mapping and no thread."""
    host_c.set_timeout(0.01)

    def attempts(turns: int) -> dict[str, int]:
        for turn in range(turns):
            id_ = host_c.unique_id()
            assert raised(host_c.Comm, 2, id_, 0).kind == "timeout"
            assert raised(host_c.Comm, 2 + turn % 2, id_, turn % 2).kind in ("timeout", "id reused")
        return forks.holds()

    assert attempts(2) == attempts(18)


@forks.nursery()
def test_freed_memory_is_dropped() -> None:
    """Memory from ncclMemAlloc can be allocated, used and freed in turn for ever: peers unmap what its owner has freed, at their next
    call, and all of it with their last communicator."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> list[int]:
        comm, held = host_c.Comm(nranks, ids[0], rank), []
        for turn in range(60):
            buffer = host_c.empty(20_000 + 1000 * (turn % 7), np.float32)
            buffer[:] = turn
            comm.all_reduce(buffer, buffer)
            assert (buffer == turn * nranks).all()
            del buffer
            held.append(forks.mappings())  # holds() would collect garbage first, which is most of the time here
        comm.destroy()
        return [*held, forks.holds()["mappings"]]

    for end in forks.fork(3, rank_main):
        *during, after = end.returned()
        assert max(during) <= 6 and after == 0, (during, after)


@forks.nursery()
def test_freed_while_a_peer_is_behind() -> None:
    """An owner may free its memory as soon as its own call has returned."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = host_c.Comm(nranks, ids[0], rank)
        for turn in range(200):
            buffer = host_c.empty(20_000, np.int32)
            buffer[:] = turn + rank
            if turn % 2:
                comm.all_reduce(buffer, buffer)
                assert (buffer == 2 * turn + 1).all()
            elif rank == 0:
                comm.send(buffer, 1)
            else:
                comm.recv(buffer, 0)
                assert (buffer == turn).all()
            del buffer

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_foreign_pointers() -> None:
    """Only what ncclMemAlloc gave can be freed, once, and at its start; NULL is fine; no size and no place for the pointer are refused."""
    address = host_c.mem_alloc(10_000)
    own = np.zeros(10)
    for foreign in (own.ctypes.data, address + 4096, address + 1, 8, 2**47):
        error = raised(host_c.mem_free, foreign)
        assert error.code == INVALID_ARGUMENT and "ncclMemAlloc" in error.text, error
    host_c.mem_free(address)
    assert raised(host_c.mem_free, address).code == INVALID_ARGUMENT
    host_c.mem_free(None)
    assert raised(host_c.mem_alloc, 0).code == INVALID_ARGUMENT
    assert host_c.library().ncclMemAlloc(None, 10) == INVALID_ARGUMENT


@forks.nursery()
def test_memory_is_whole_pages_and_zero() -> None:
    """Memory from ncclMemAlloc begins on a page, is zero, and can be written to its end."""
    for size in (1, 4096, 4097, 1_000_001):
        buffer = host_c.empty(size, np.uint8)
        assert buffer.ctypes.data % 4096 == 0 and not buffer.any()
        buffer[:] = 255


@forks.nursery()
def test_parts_of_memory() -> None:
    """Buffers may lie anywhere inside memory from ncclMemAlloc, several in one, and across its end only by being elsewhere."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, memory = host_c.Comm(nranks, ids[0], rank), host_c.empty(100_000, np.float32)
        memory[:] = np.arange(100_000) + rank
        for start in (0, 1, 3, 4097, 49_999):
            send, recv = memory[start : start + 40_000].copy(), memory[start : start + 40_000]
            comm.all_reduce(recv, recv)
            assert (recv == 2 * send + (1 if rank == 0 else -1)).all()
            recv[:] = send
        comm.all_reduce(memory[:30_000], memory[60_000:90_000], "max")
        assert (memory[60_000:90_000] == memory[:30_000] + (1 - rank)).all()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_killed_owner_of_memory() -> None:
    """A peer that is killed while the others have not looked into its ncclMemAlloc memory yet is a lost peer like any other."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], message: bool, killed: Flag) -> None:
        host_c.set_timeout(20)
        comm, buffer = host_c.Comm(nranks, ids[0], rank), host_c.empty(50_000, np.float32)
        comm.barrier()
        if rank == 0:
            killed.wait()
        forks.say(f"calls {rank}")
        if not message:
            comm.all_reduce(buffer, buffer)
        elif rank == 1:
            comm.send(buffer, 0)
        else:
            comm.recv(buffer, 1)

    for message in (False, True):
        killed = Flag()
        with forks.Forked(2, rank_main, message, killed) as ranks:
            ranks.wait_for("calls 1")
            time.sleep(0.15)
            ranks.kill(1)
            killed.set()
            ranks.ends()[0].failed(REMOTE_ERROR, "remote", "rank 1", ranks=[1])


@forks.nursery()
def test_memory_that_cannot_be_reached() -> None:
    """When one rank cannot map a peer's memory, no rank is told that the call succeeded, in a collective or for a message, whoever of the
    two comes later."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], message: bool) -> list[host_c.HostError]:
        host_c.set_timeout(5)
        errors, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)
        for turn, id_ in enumerate(ids):
            comm = host_c.Comm(nranks, id_, rank)
            comm.barrier()
            buffer = np.ones(50_000, np.float32) if message and rank == 1 else host_c.empty(50_000, np.float32)
            if rank == 1:
                forks.no_more_descriptors()
            time.sleep(0.0003 * (turn // 2) if turn % 2 == rank else 0)
            if not message:
                errors.append(raised(comm.all_reduce, buffer, buffer))
            else:
                errors.append(raised(comm.send if rank == 1 else comm.recv, buffer, 1 - rank))
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            comm.abort()
        return errors

    for message in (False, True):
        peer, fails = forks.values(forks.fork(2, rank_main, message, ids=16))
        for error in fails:
            assert (error.code, error.kind) == (SYSTEM_ERROR, "memory") and "open files" in error.text, error
        for error in peer:
            assert (error.code, error.kind) == (SYSTEM_ERROR, "memory") and "rank 1" in error.text, error


@pytest.mark.parametrize("then", ["ends", "aborts", "frees"])
@pytest.mark.parametrize("message", [False, True])
@forks.nursery()
def test_late_to_memory_of_a_failed_peer(message: bool, then: str) -> None:
    """A rank that comes to its peer's memory when that has failed in the same call, and has freed it, closed its communicator or ended
    since, is told why the peer failed, not that its memory or the peer is gone."""
    goes, ends = Flag(), Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> host_c.HostError:
        host_c.set_timeout(10)
        comm, buffer = host_c.Comm(nranks, ids[0], rank), host_c.empty(50_000, np.float32)
        comm.barrier()
        if rank == 0:
            threading.Thread(target=lambda: (in_call(), forks.say("waits")), daemon=True).start()
        else:
            forks.no_more_descriptors()
            goes.wait()
        error = raised(comm.all_reduce, buffer, buffer) if not message else raised(comm.send if rank else comm.recv, buffer, 1 - rank)
        if rank == 1 and then == "aborts":
            comm.abort()
        if rank == 1 and then != "ends":
            error.__traceback__ = None  # whose frames have the buffer
            del buffer
            forks.say("failed")
            ends.wait()
        return error

    with forks.Forked(2, rank_main) as ranks:
        ranks.wait_for("waits")
        ranks.stop(0)
        goes.set()
        if then == "ends":
            order.until(lambda: ranks.listen(0.01) or 1 not in ranks.open, "rank 1 did not end")
        else:
            ranks.wait_for("failed")
        ranks.kill(0, signal.SIGCONT)
        while 0 in ranks.open:
            ranks.listen(5)
        ends.set()
        peer, fails = forks.values(ranks.ends())
    assert (fails.code, fails.kind) == (SYSTEM_ERROR, "memory") and "open files" in fails.text, fails
    assert (peer.code, peer.kind, peer.ranks) == (SYSTEM_ERROR, "memory", (1,)) and "failed" in peer.text, peer


@forks.nursery()
def test_forked_children_write_for_themselves() -> None:
    """What forked children write to memory from ncclMemAlloc is their own, as with other memory; they find what their parent had there,
    can use it as buffers of their own communicator, and the parent's stays as it was."""
    buffers = [host_c.empty(size, np.float32) for size in (20_000, 10)]
    for buffer in buffers:
        buffer[:] = 5

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = host_c.Comm(nranks, ids[0], rank)
        for buffer in buffers:
            assert (buffer == 5).all()
            buffer += rank
            comm.all_reduce(buffer, buffer)
            assert (buffer == 11).all()
        comm.destroy()

    forks.values(forks.fork(2, rank_main))
    assert all((buffer == 5).all() for buffer in buffers)
