"""Unique ids of the CPU library: foreign, damaged, used before, stale, made by a process that is no rank."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import random
import sys
import time

from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, raised
from helpers.order import SOON, Flag, comes

NVIDIA_LIKE = bytes.fromhex("02000000c0a80002" + "00" * 120)  # an address family, a port and an address, as NVIDIA's bootstrap writes them


def join(rank: int, nranks: int, ids: list[bytes], timeout: float = 5.0) -> host_c.Comm:
    """Init with a deadline, and one all-reduce."""
    host_c.set_timeout(timeout)
    comm = host_c.Comm(nranks, ids[0], rank)
    comm.barrier()
    return comm


@forks.nursery()
def test_ids_that_are_none() -> None:
    """An id of zero bytes, of another library, or of random bytes is refused at once as such."""
    foreign = (NVIDIA_LIKE, random.Random(1).randbytes(128))
    for id_, word in ((bytes(128), "zero"), *((id_, "CPU library") for id_ in foreign)):
        begun = time.monotonic()
        error = raised(host_c.Comm, 2, id_, 0)
        assert (error.code, error.kind) == (INVALID_ARGUMENT, "id invalid") and word in error.text, error
        assert time.monotonic() - begun < SOON


@forks.nursery()
def test_damaged_ids() -> None:
    """An id that was cut off, or of which any byte was changed, is refused at once as damaged; it says nothing wrong about hosts,
    processes or versions, and the true id still works."""
    id_ = host_c.unique_id()
    damaged = [id_[:cut].ljust(128, b"\0") for cut in (id_.index(0), 16, 40, 63, 64, 72, 80, 90, 98)]
    damaged += [id_[:at] + bytes([id_[at] ^ 0x55]) + id_[at + 1 :] for at in (8, 12, 17, 33, 67, 70, 74, 81, 90, 97)]
    for bad in damaged:
        error = raised(host_c.Comm, 1, bad, 0)
        assert error.code in (INVALID_ARGUMENT, INVALID_USAGE) and error.kind == "id invalid", error
        assert not any(word in error.text for word in ("has ended", "another host", "namespace", "has been used", "made by version")), error
    host_c.Comm(1, id_, 0).barrier()


def sealed(content: bytes) -> bytes:
    """These 120 bytes with the checksum that makes them an id: FNV-1a."""
    total = 0xCBF29CE484222325
    for byte in content:
        total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return content + total.to_bytes(8, sys.byteorder)


@forks.nursery()
def test_ids_from_elsewhere() -> None:
    """An id that is whole but of another layout or version, from another host or boot, from another pid namespace, or of a process that
    has given its number to this one, is refused at once with what it is and what to do; the true id still works."""
    id_ = host_c.unique_id()
    assert sealed(id_[:120]) == id_
    for place, kind, words in (
        (8, "version", "use one version on all ranks"),
        (12, "version", "use one version on all ranks"),
        (40, "id stale", "made on another host, or before this one was booted"),
        (80, "id stale", "another pid namespace: run all ranks in one container"),
        (72, "id stale", "has ended: it must live until all ranks have joined"),
    ):
        begun = time.monotonic()
        error = raised(host_c.Comm, 2, sealed(id_[:place] + bytes([id_[place] ^ 1]) + id_[place + 1 : 120]), 0)
        assert (error.code, error.kind) == (INVALID_USAGE, kind) and words in error.text, (place, error)
        assert time.monotonic() - begun < SOON
    host_c.Comm(1, id_, 0).barrier()


@forks.nursery()
def test_id_used_again() -> None:
    """An id that has made a communicator is refused within a second: while that one lives, after it was destroyed, by its maker and by
    others, with the same number of ranks and with another; the communicator is not disturbed."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = join(rank, nranks, ids)
        for n in (nranks, nranks + 1, 1):
            again(n, ids[0], min(rank, n - 1))
        comm.barrier()
        comm.destroy()
        for n in (nranks, nranks + 1, 1):
            again(n, ids[0], min(rank, n - 1))
        join(rank, nranks, ids[1:])

    def again(nranks: int, id_: bytes, rank: int) -> None:
        begun = time.monotonic()
        error = raised(host_c.Comm, nranks, id_, rank)
        assert (error.code, error.kind) == (INVALID_USAGE, "id reused"), error
        assert time.monotonic() - begun < SOON

    forks.values(forks.fork(3, rank_main, ids=2))


@forks.nursery()
def test_id_of_a_failed_init() -> None:
    """An id whose init has failed is used up: with fewer ranks, or with all, every rank is refused within a second, and the maker need not
    be one of them."""
    maker = os.getpid()

    def rank_main(rank: int, nranks: int, ids: list[bytes], id_: bytes, failed: Flag) -> None:
        if rank == 0:
            comes(1, maker)  # or it would be late for this one's deadline
        host_c.set_timeout(0.4 if rank == 0 else 20)
        assert raised(host_c.Comm, nranks + 1, id_, rank).kind == "timeout"
        failed.set(rank)
        failed.wait(nranks)
        for n in (nranks, nranks + 1):
            begun = time.monotonic()
            error = raised(host_c.Comm, n, id_, rank)
            assert error.kind == "id reused" and time.monotonic() - begun < SOON, error

    forks.values(forks.fork(2, rank_main, host_c.unique_id(), Flag()))
    forks.values(forks.threads(2, rank_main, host_c.unique_id(), Flag()))


@forks.nursery()
def test_id_of_an_ended_maker() -> None:
    """An id whose maker has ended is refused at once, and the text says that the maker must live until all have joined."""

    def maker(rank: int, nranks: int, ids: list[bytes]) -> bytes:
        return host_c.unique_id()

    id_ = forks.fork(1, maker)[0].returned()
    error = raised(host_c.Comm, 2, id_, 0)
    assert (error.code, error.kind) == (INVALID_USAGE, "id stale") and "ended" in error.text and "live" in error.text, error


@forks.nursery()
def test_maker_that_is_no_rank() -> None:
    """The maker of an id need not take part; it can make many, and holds nothing of those that have been used."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], id_: bytes) -> None:
        join(rank, nranks, [id_]).destroy()

    for _ in range(10):
        forks.values(forks.fork(2, rank_main, host_c.unique_id()))
    host_c.Comm(1, host_c.unique_id(), 0).destroy()
    assert forks.holds()["memfds"] <= 1
