"""What the CPU library needs of a machine: many communicators at once, few descriptors, little /dev/shm, memory that is not there."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.c import ROOT, shared_library
from helpers.host_c import INVALID_ARGUMENT, SUCCESS, SYSTEM_ERROR, TIMEOUT, raised
from helpers.order import SOON, Flag, communicators, until

MANY = 64
# A kernel that has no page left for files in memory from the n-th request on; the count of what was asked for stands in `asked`.
NO_PAGES = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
int pages_after = 1 << 30, asked;
int fallocate(int fd, int mode, off_t offset, off_t length)
{
  if (++asked > pages_after) return errno = ENOSPC, -1;
  return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}
"""
LARGE_SUM = """
import sys, time
import numpy as np
sys.path[:0] = ["tests"]
from helpers import forks, host_c

COUNT = (256 << 20) // 4

def rank_main(rank, nranks, ids):
    comm = host_c.Comm(nranks, ids[0], rank)
    buffer = host_c.empty(COUNT, np.float32)
    buffer[:] = rank
    comm.all_reduce(buffer, buffer)
    assert buffer[0] == buffer[COUNT // 2 + 1] == buffer[-1] == 120 and (buffer[::4099] == 120).all()

forks.values(forks.fork(16, rank_main, deadline=90))
print("right")
"""


@forks.nursery(deadline=30)
def test_many_communicators_at_once() -> None:
    """64 communicators of the same three processes live at once, each with its own state, used in random order, by all in one group, and
    ended in another order; then nothing is held."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        before = forks.holds()
        comms = [host_c.Comm(nranks, id_, (rank + turn) % nranks) for turn, id_ in enumerate(ids)]
        assert forks.holds()["memfds"] == MANY
        numbers, order = np.zeros((MANY, 5000)), random.Random(7)
        for turn in order.choices(range(MANY), k=300):
            numbers[turn] = turn
            comms[turn].all_reduce(numbers[turn], numbers[turn], count=order.choice((1, 5000)))
            assert numbers[turn, 0] == turn * nranks
        numbers[:] = np.arange(MANY)[:, None]
        with host_c.group():
            for turn in order.sample(range(MANY), MANY):
                comms[turn].all_reduce(numbers[turn], numbers[turn])
        assert (numbers == nranks * np.arange(MANY)[:, None]).all()
        for turn in order.sample(range(MANY), MANY):
            comms[turn].destroy()
        after = forks.holds(before)
        assert after["memfds"] == after["mappings"] == 0 and after["descriptors"] <= before["descriptors"], (before, after)

    forks.values(forks.fork(3, rank_main, ids=MANY, deadline=25))


@forks.nursery(deadline=30)
def test_ranks_of_a_test_have_the_same_ids() -> None:
    """However many ids a test asks for, all its ranks have the same in the same order."""
    for _ in range(5):
        first, *others = forks.values(forks.fork(8, lambda rank, nranks, ids: ids, ids=MANY))
        assert len(set(first)) == MANY and all(other == first for other in others)


@forks.nursery(deadline=30)
def test_64_open_files() -> None:
    """With a limit of 64 open files communicators can be made until it is reached; the error says so, with the number and what to do; a
    peer is told at its deadline whose part it was, since that one cannot reach it; and those that were made go on."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> tuple[int, host_c.HostError]:
        host_c.set_timeout(3)
        host_c.library()
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        comms: list[host_c.Comm] = []
        while True:
            try:
                comms.append(host_c.Comm(nranks, ids[len(comms)], rank))
            except host_c.HostError as error:
                one = np.ones(1, np.float32)
                for comm in comms:
                    comm.set_timeout(10)
                    comm.all_reduce(one, one)
                return len(comms), error

    (made, told), (_, error) = forks.values(forks.fork(2, rank_main, ids=70))
    assert 40 < made < 64
    assert (error.code, error.kind) == (SYSTEM_ERROR, "memory"), error
    assert "limit of 64 open files" in error.text and "ulimit -n" in error.text and "every communicator takes one" in error.text, error
    assert told.code == TIMEOUT and told.ranks == (1,), told


@forks.nursery()
def test_limit_on_open_files() -> None:
    """Without a free descriptor, making an id, joining and allocating fail with a system error of the kind "memory" whose text names the
    limit; peers are told; with more descriptors the process can go on."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(8)
        host_c.library()
        if rank == 1:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            forks.no_more_descriptors()
            for call, arguments in ((host_c.unique_id, ()), (host_c.mem_alloc, (5000,)), (host_c.Comm, (nranks, ids[0], rank))):
                error = raised(call, *arguments)
                assert (error.code, error.kind) == (SYSTEM_ERROR, "memory") and "open files" in error.text, error
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        comm = host_c.Comm(nranks, ids[1], rank)
        comm.barrier()

    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_limit_on_address_space() -> None:
    """Memory that cannot be had is a system error that says how much was needed, in ncclMemAlloc and in init; smaller calls still work."""
    before = forks.holds()
    in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (100 << 20), resource.RLIM_INFINITY))
    error = raised(host_c.mem_alloc, 300 << 20)
    assert (error.code, error.kind) == (SYSTEM_ERROR, "memory") and str(300 << 20) in error.text, error
    error = raised(host_c.Comm, 2000, host_c.unique_id(), 0)
    assert (error.code, error.kind) == (SYSTEM_ERROR, "memory") and " bytes of address space for a communicator" in error.text, error
    assert forks.holds()["memfds"] <= before["memfds"] + 1
    host_c.mem_free(host_c.mem_alloc(1 << 20))
    host_c.Comm(1, host_c.unique_id(), 0).barrier()


@forks.nursery()
def test_more_than_the_machine_has() -> None:
    """ncclMemAlloc of more than all memory is refused at once, before pages are taken."""
    begun = time.monotonic()
    for size in (1 << 45, 1 << 62, (1 << 64) - 1):
        error = raised(host_c.mem_alloc, size)
        assert error.code in (SYSTEM_ERROR, INVALID_ARGUMENT) and str(size) in error.text, error
    assert time.monotonic() - begun < SOON


def test_pages_that_cannot_be_reserved(tmp_path: Path) -> None:
    """When the kernel has no page left for the segment of an id, for a rank, for a pair of ranks or for ncclMemAlloc, that is
    ncclSystemError with the number of bytes that were needed, on that rank at once and on its peers; nothing is left."""
    no_pages = shared_library(tmp_path / "no_pages.so", NO_PAGES)
    run_without_pages(path=str(no_pages))


def run_without_pages(path: str) -> None:
    """In a process with that library before all others."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = ['tests']; import test_host_limits as t; t.without_pages({path!r})"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": path},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def without_pages(path: str) -> None:
    """What happens there."""
    kernel = ctypes.CDLL(path)
    after = ctypes.c_int.in_dll(kernel, "pages_after")
    asked = ctypes.c_int.in_dll(kernel, "asked")

    def from_now_on(requests: int) -> None:
        after.value = asked.value + requests

    def tell_when_in_init(turn: int, joined: Flag) -> None:
        mine = "rank 0 did not come into its init"
        until(lambda: sum(bool(ranks) and ranks[0]["life"] == "joined" for ranks in communicators()) == 2, mine)
        joined.set(turn)

    def rank_main(rank: int, nranks: int, ids: list[bytes], joined: Flag) -> list[host_c.HostError]:
        host_c.set_timeout(8)
        errors, one, before = [], np.ones(1, np.float32), forks.holds()
        comm = host_c.Comm(nranks, ids[0], rank)
        if rank == 1:
            from_now_on(0)
            for call, arguments in ((host_c.unique_id, ()), (host_c.mem_alloc, (3 << 20,))):
                errors.append(raised(call, *arguments))
            assert str(3 << 20) in errors[-1].text and "4096" in errors[0].text, errors
        begun = time.monotonic()
        comm.barrier()
        errors.append(raised(comm.send, one, 1) if rank == 0 else raised(comm.recv, one, 0))
        for turn in range(1, 4):
            thread = threading.Thread(target=tell_when_in_init, args=(turn, joined))
            if rank == 0:
                thread.start()
            else:
                joined.wait(turn)  # who comes after a failed init is told that its id is used up
                from_now_on(turn - 1)
            errors.append(raised(host_c.Comm, nranks, ids[turn], rank))
            if rank == 0:
                thread.join()
        assert time.monotonic() - begun < 5
        from_now_on(1 << 20)
        comm.abort()
        host_c.Comm(nranks, ids[4], rank).barrier()
        after_all = forks.holds(before)
        assert after_all["threads"] == before["threads"] and after_all["descriptors"] <= before["descriptors"] + 1, (before, after_all)
        return errors

    peer, own = forks.values(forks.fork(2, rank_main, Flag(), ids=5, deadline=30))
    for error in own:
        assert (error.code, error.kind) == (SYSTEM_ERROR, "memory") and " bytes of shared memory" in error.text, error
    for error in peer:
        assert error.code == SYSTEM_ERROR and error.ranks == (1,) and "rank 1" in error.text, error


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_large_sum_with_a_small_dev_shm() -> None:
    """16 processes reduce 256 MiB each where /dev/shm has room for 8 MiB."""
    in_a_room = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*in_a_room, "true"], capture_output=True).returncode != SUCCESS:
        pytest.skip("this user may not mount a small /dev/shm: run it as root")
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 5 << 30:
        pytest.skip("16 buffers of 256 MiB need 5 GiB of free memory")
    done = subprocess.run([*in_a_room, sys.executable, "-c", LARGE_SUM], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "right\n", done.stdout + done.stderr
