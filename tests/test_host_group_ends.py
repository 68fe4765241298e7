"""Groups of the CPU library that end badly: the communicator is gone, another thread is in it, the process forks or ends."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, raised
from helpers.host_more import Comm, group_end
from helpers.order import SOON, Flag, in_call


@forks.nursery()
def test_ended_communicator_in_a_group() -> None:
    """A group that has work of a communicator which was destroyed or aborted meanwhile fails at its end, without a crash."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str) -> None:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        host_c.group_start()
        comm.all_reduce(one, one)
        getattr(comm, how)()
        error = raised(host_c.group_end)
        assert error.code in (INVALID_ARGUMENT, INVALID_USAGE) and one[0] == 1, error
        host_c.Comm(1, host_c.unique_id(), 0).barrier()

    for how in ("destroy", "abort"):
        forks.values(forks.fork(2, rank_main, how))


@forks.nursery()
def test_two_threads_in_one_group() -> None:
    """A communicator that one thread waits in, inside a group, is busy for another thread's group, at once, and the first one's call ends
    well."""
    refused_now = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> str:
        comm, one, other = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32), np.ones(1, np.float32)
        if rank == 1:
            refused_now.wait()
            comm.all_reduce(one, one)
            return ""

        def grouped(rank: int, nranks: int, ids: list[bytes]) -> None:
            if rank == 1:
                in_call()
            try:
                begin(rank)
            finally:
                if rank == 1:
                    refused_now.set()

        def begin(rank: int) -> None:
            with host_c.group():
                buffer = other if rank else one
                comm.all_reduce(buffer, buffer)

        waits, refused = forks.threads(2, grouped)
        waits.returned()
        refused.failed(INVALID_USAGE, "busy")
        assert one[0] == 2 and other[0] == 1
        comm.destroy()
        return ""

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_fork_in_an_open_group() -> None:
    """A child that is forked inside a group has no part in it: it can make its own communicator, and its ncclGroupEnd does not touch the
    parent's; the parent's group is right."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        host_c.group_start()
        comm.all_reduce(one, one)
        child = os.fork()
        if child == 0:
            host_c.library().ncclGroupEnd()
            host_c.Comm(1, host_c.unique_id(), 0).barrier()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        host_c.group_end()
        assert one[0] == nranks
        comm.destroy()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_exit_with_an_open_group() -> None:
    """A process that ends with an open group ends at once; its peers learn that it is gone."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        if rank == 0:
            host_c.group_start()
            comm.all_reduce(one, one)
            sys.exit(0)
        comm.all_reduce(one, one)

    ends = forks.fork(2, rank_main)
    assert "SystemExit" in ends[0].trace and ends[0].seconds < SOON
    ends[1].failed(host_c.REMOTE_ERROR, "remote", ranks=[0])
    assert ends[1].seconds < SOON


@forks.nursery()
def test_two_failures_in_one_group() -> None:
    """When two communicators of a group fail for different reasons the peers of each are told its own reason, though the group's is the
    first one."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> list[host_c.HostError]:
        host_c.set_timeout(5)
        first, second = (host_c.Comm(nranks, id_, rank) for id_ in ids)
        small, large = np.ones(2, np.float32), host_c.empty(50_000, np.float32)
        first.barrier()
        if rank == 1:
            forks.no_more_descriptors()
        host_c.group_start()
        first.all_reduce(small, small, count=1 + rank)
        second.all_reduce(large, large)
        of_group = raised(host_c.group_end)
        return [of_group, raised(second.barrier)]

    for of_group, later in forks.values(forks.fork(2, rank_main, ids=2)):
        assert of_group.kind == "mismatch", of_group
        assert (later.code, later.kind) == (host_c.SYSTEM_ERROR, "memory") and "rank 1" in later.text, later


@pytest.mark.parametrize("blocking", [True, False])
@forks.nursery()
def test_first_call_that_fails_last(blocking: bool) -> None:
    """Of the calls of a group that fail the first one's error is told, code and text, though a later one has failed before it: by the group
    of a blocking communicator, and to who asks a non-blocking one."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], told: Flag) -> host_c.HostError:
        host_c.set_timeout(8)
        comm = Comm(nranks, ids[0], rank) if blocking else Comm.ready(nranks, ids[0], rank)
        pair = [np.zeros(2, np.float32) for _ in range(nranks)]
        if rank == 0:
            host_c.group_start()
            comm.recv(pair[1], 1, count=1)
            comm.recv(pair[2], 2, count=1)
            if blocking:
                return raised(host_c.group_end)
            group_end()
            return raised(comm.wait)
        if rank == 1:
            told.wait()
        error = raised(lambda: (comm.send(pair[0], 0), comm.wait()))
        told.set(rank)
        return error

    ends = forks.values(forks.fork(3, rank_main, Flag()))
    assert [(end.code, end.kind) for end in ends] == [(host_c.INVALID_USAGE, "mismatch")] * 3, ends
    assert ends[0].ranks == (1,), ends[0]
