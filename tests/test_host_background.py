"""What non-blocking communicators of the CPU library do in the background: collectives, groups, families."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, raised
from helpers.host_more import ABORT, GARBAGE, IN_PROGRESS, NO_COLOR, Comm, group_end, grow, polled
from helpers.host_structs import Config, library
from helpers.order import SOON, Flag, in_call


@forks.nursery()
def test_collectives() -> None:
    """A call returns ncclInProgress, its data is there when polling says ncclSuccess; the same values come out as of a blocking one, in
    groups and one after the other, on all paths of the data."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm.ready(nranks, ids[0], rank)
        for size, arena in ((1, False), (3000, False), (70_000, False), (70_000, True)):
            value, all_values = (host_c.empty(size * n, np.int64) if arena else np.empty(size * n, np.int64) for n in (1, 3))
            for round in range(6):
                value[:] = np.arange(size) + rank * round
                comm.all_reduce(value, value)
                assert comm.code == IN_PROGRESS
                comm.wait()
                assert (value == 3 * np.arange(size) + 3 * round).all()
                value[:] = rank
                host_c.group_start()
                comm.all_gather(value, all_values)
                comm.all_reduce(value, value, "max")
                comm.send(all_values[:1], (rank + 1) % nranks)
                comm.recv(all_values[-1:], (rank - 1) % nranks)
                assert group_end() == IN_PROGRESS
                comm.wait()
                assert (value == 2).all() and (all_values[size : 2 * size - 1] == 1).all()
            comm.all_reduce(value, value, count=0)
            comm.wait()
        comm.finalize()
        comm.wait()
        comm.destroy()

    forks.values(forks.fork(3, rank_main))


@forks.nursery()
def test_mismatch_in_a_group() -> None:
    """Of a group over two communicators each says how its own part ended: the one that mismatched its text, the other success."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        good, bad = (Comm.ready(nranks, one, rank) for one in ids)
        one, many = np.ones(1, np.float32), np.ones(5, np.float32)
        for first, second in ((good, bad), (bad, good)):
            with_count = {good: 5, bad: 4 + rank}
            host_c.group_start()
            for comm in (first, second):
                comm.all_reduce(many, many, "max", count=with_count[comm])
            assert group_end() == IN_PROGRESS
            assert good.poll() == SUCCESS
            assert bad.poll() == INVALID_USAGE
            assert "4" in library().ncclGetLastError(bad.handle).decode() and library().nickelErrorKind(bad.handle) == 1
            for comm in (good, bad):
                comm.all_reduce(one, one, "max")
                comm.wait()

    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_mixed_with_blocking() -> None:
    """Blocking and non-blocking communicators in one group are ncclInvalidArgument, whichever comes first; nothing is launched, and both
    can be used; inits cannot be mixed either."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        first, second = Comm(nranks, ids[0], rank), Comm.ready(nranks, ids[1], rank)
        one = np.ones(1, np.float32)
        for comms in ((first, second), (second, first)):
            host_c.group_start()
            for comm in comms:
                comm.all_reduce(one, one)
            error = raised(host_c.group_end)
            assert error.code == INVALID_ARGUMENT and "blocking" in error.text and one[0] == 1, error
            for comm in comms:
                assert comm.query("CommGetAsyncError") == SUCCESS
                comm.barrier()
        host_c.group_start()
        made = [Comm(nranks, ids[2], rank, config) for config in (None, polled())]
        assert raised(host_c.group_end).code == INVALID_ARGUMENT
        assert made[0].handle is None

    forks.values(forks.fork(2, rank_main, ids=3))


@forks.nursery()
def test_several_in_one_group() -> None:
    """A group over several non-blocking communicators runs in the background; each can be polled, used and closed as soon as its own part
    is over, while another one still waits for its peer."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], first: int, end: str, used: Flag) -> None:
        host_c.set_timeout(20)
        comms = [Comm.ready(nranks, one, rank) for one in ids]
        values = [np.full(9000, rank + 1, np.int32) for _ in comms]
        late = comms[1 - first]
        if rank == 1:
            comms[first].all_reduce(values[first], values[first])
            comms[first].wait()
            comms[first].barrier() if end == "used" else comms[first].destroy()
            used.wait()  # or the other rank's use of the first would wait for its deadline
            late.all_reduce(values[1 - first], values[1 - first])
            late.wait()
        else:
            host_c.group_start()
            for comm, value in zip(comms, values, strict=True):
                comm.all_reduce(value, value)
            assert group_end() == IN_PROGRESS
            comms[first].wait()
            assert late.query("CommGetAsyncError") == IN_PROGRESS
            comms[first].barrier() if end == "used" else getattr(comms[first], end)()
            assert late.query("CommGetAsyncError") == IN_PROGRESS, "it waited for the other one"
            used.set()
            late.wait()
        assert all((value == 3).all() for value in values)
        late.barrier()

    for first in (0, 1):
        for way in ("used", "destroy", "abort"):
            for end in forks.fork(2, rank_main, first, way, Flag(), ids=2):
                try:
                    end.returned()
                except AssertionError as error:
                    raise AssertionError(f"{first}, {way}: {error}") from error


@forks.nursery()
def test_inits_in_one_group() -> None:
    """Several non-blocking inits in one group return ncclInProgress at its end and are polled one by one; ranks of one communicator can be
    in one thread."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        before = forks.holds()
        host_c.group_start()
        mine = [Comm(4, one, 2 * rank + i, polled()) for one in ids for i in (0, 1)]
        assert group_end() == IN_PROGRESS
        for comm in mine:
            comm.wait()
            assert comm.query("CommCount") == 4
        values = [np.ones(1, np.int32) for _ in mine]
        host_c.group_start()
        for comm, value in zip(mine, values, strict=True):
            comm.all_reduce(value, value)
        assert group_end() == IN_PROGRESS
        for comm in mine:
            comm.wait()
        assert [value[0] for value in values] == [4] * 4
        for comm in mine:
            comm.destroy()
        assert forks.holds(before)["threads"] == before["threads"]

    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_families() -> None:
    """Split, shrink, grow and window registration of a non-blocking communicator return ncclSuccess and go on in the background: the
    parent is polled, and then the new handle is there, which is non-blocking too unless its configuration says otherwise."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, buffer = Comm.ready(nranks, ids[0], rank), host_c.empty(4096, np.uint8)
        child = comm.split(0 if rank < 2 else NO_COLOR, -rank)
        assert child.code == SUCCESS
        comm.wait()
        if rank < 2:
            child.learn()
            assert (child.nranks, child.rank) == (2, 1 - rank)
            one = np.ones(1, np.float32)
            child.all_reduce(one, one)
            assert child.code == IN_PROGRESS
            child.wait()
        else:
            assert child.handle is None
        blocking = comm.split(0, 0, Config.new(blocking=1))
        comm.wait()
        blocking.learn().barrier()
        assert blocking.code == SUCCESS
        if rank < 2:
            pair = comm.shrink([2])
            assert pair.code == SUCCESS
            comm.wait()
            pair.learn().barrier()
        comm.barrier()
        bigger = comm.unique_id() if rank == 0 else bytes(128)
        comm.bcast(arrived := np.frombuffer(bytearray(bigger), np.uint8))
        comm.wait()
        if rank == 0:
            fourth = grow(None, 4, bytes(arrived), 3, polled())
        grown = comm.grow(4, bytes(arrived) if rank == 0 else None)
        assert grown.code == SUCCESS
        comm.wait()
        if rank == 0:
            fourth.wait()
        assert grown.learn().nranks == 4
        slot = ctypes.c_void_p(GARBAGE)
        code = library().ncclCommWindowRegister(comm.handle, host_c.address(buffer), 4096, byref(slot), 0)
        assert code == SUCCESS
        comm.wait()
        assert slot.value not in (None, GARBAGE)
        comm.destroy()

    forks.values(forks.fork(3, rank_main))


@forks.nursery()
def test_shrink_with_abort_in_progress() -> None:
    """The abort flag ends a call in progress that waits for a dead rank, and the survivors go on."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(6)
        comm, value = Comm.ready(nranks, ids[0], rank), np.ones(9000, np.float32)
        if rank == 2:
            time.sleep(1)
            return
        comm.all_reduce(value, value)
        time.sleep(0.2)
        child = comm.shrink([2], ABORT)
        comm.poll()
        assert child.handle
        child.learn().barrier()
        comm.abort()

    for end in forks.fork(3, rank_main)[:2]:
        end.returned()


@forks.nursery()
def test_environment() -> None:
    """NCCL_COMM_BLOCKING beats the configuration, in init and split, both ways."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank, polled())
        assert comm.code == SUCCESS
        comm.barrier()
        assert comm.code == SUCCESS
        os.environ["NCCL_COMM_BLOCKING"] = "0"
        other = Comm(nranks, ids[1], rank)
        assert other.code == IN_PROGRESS
        other.wait()
        child = comm.split(0, 0, Config.new(blocking=1)).learn()
        one = np.ones(1, np.float32)
        child.all_reduce(one, one)
        assert child.code == IN_PROGRESS
        child.wait()

    os.environ["NCCL_COMM_BLOCKING"] = "1"
    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_revoke_in_progress() -> None:
    """Revoking ends a call in progress; polling says so, the peers are told, and the communicator can still be split."""

    revoked = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(6)
        comm, value = Comm.ready(nranks, ids[0], rank), np.ones(1, np.float32)
        if rank == 1:
            revoked.wait()
            comm.all_reduce(value, value)
            assert comm.poll() == REMOTE_ERROR
            comm.revoke()
        else:
            comm.all_reduce(value, value)
            in_call()
            assert comm.query("CommGetAsyncError") == IN_PROGRESS
            begun = time.monotonic()
            comm.revoke()
            revoked.set()
            assert comm.poll() == INVALID_USAGE and time.monotonic() - begun < SOON
        assert raised(comm.all_reduce, value, value).code == INVALID_USAGE
        child = comm.split(0)
        assert comm.poll() in (SUCCESS, INVALID_USAGE, REMOTE_ERROR) and child.handle
        child.learn().barrier()
        comm.destroy()

    forks.values(forks.fork(2, rank_main))
