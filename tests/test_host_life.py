"""The stations in the life of a communicator of the CPU library: finalized, revoked, suspended; and what it tells of itself."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, TIMEOUT, raised
from helpers.host_more import Comm, both_ways
from helpers.host_structs import MAGIC, VERSION, library
from helpers.order import SOON, Flag, in_call

PROPERTIES = {22902: 40, 22907: 56, 23102: 144, 23203: 152}  # bytes of ncclCommProperties_t by the release that made it longer


def refused(comm: Comm, code: int, but: tuple[str, ...] = ()) -> None:
    """Everything that needs a communicator in use is refused with this code, at once."""
    one, two = np.ones(1, np.float32), np.ones(2, np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: comm.all_reduce(one, one),
        "bcast": lambda: comm.bcast(one),
        "all_gather": lambda: comm.all_gather(one, two),
        "send": lambda: comm.send(one, 1 - comm.rank),
        "recv": lambda: comm.recv(one, 1 - comm.rank),
        "split": lambda: comm.split(0),
        "grow": lambda: comm.grow(3),
        "shrink": lambda: comm.shrink([1 - comm.rank]),
        "window": lambda: comm.window(4096 * 16, 4096),
        "pre_mul_sum": lambda: comm.pre_mul_sum(one),
        "signal": lambda: comm.signal(1 - comm.rank),
        "wait_signal": lambda: comm.wait_signal((1, 1 - comm.rank)),
        "suspend": lambda: comm.on("CommSuspend", 1),
        "unique_id": comm.unique_id,
        "finalize": comm.finalize,
    }
    for name, call in calls.items():
        if name not in but:
            error = raised(call)
            assert error.code == code, (name, error)


@forks.nursery()
def test_finalize() -> None:
    """Finalizing waits for all ranks; afterwards every call but the end is ncclInvalidArgument, finalizing and revoking too; NULL
    succeeds."""

    late = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        if rank == 1:
            time.sleep(0.3)
            late.set()
        comm.finalize()
        assert late.is_set()
        refused(comm, INVALID_ARGUMENT)
        assert raised(comm.revoke).code == INVALID_ARGUMENT
        assert comm.query("CommCount") == nranks and comm.query("CommGetAsyncError") == 0
        comm.destroy()
        assert library().ncclCommFinalize(None) == 0
        alone = Comm(1, host_c.unique_id(), 0)
        alone.finalize()
        assert raised(alone.finalize).code == INVALID_ARGUMENT
        alone.destroy()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_finalize_on_one_rank() -> None:
    """A rank that finalizes alone is told at the deadline who did not; against another call it is a mismatch, and both can go on; a peer
    that closes instead is named at once."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, told: Flag) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.set_timeout(20)
        comm.barrier()
        if how == "call":
            error = raised(comm.finalize) if rank == 0 else raised(comm.all_reduce, one, one)
            assert (error.code, error.kind) == (INVALID_USAGE, "mismatch") and "ncclCommFinalize" in error.text, error
            comm.barrier()
            return comm.finalize()
        if rank == 0:
            comm.set_timeout(0.4 if how == "absent" else 20)
            try:
                return comm.finalize()
            finally:
                told.set()
        if how == "absent":
            told.wait()
        time.sleep(0.1)
        comm.destroy()
        told.wait()

    forks.fork(2, rank_main, "absent", Flag())[0].failed(TIMEOUT, "timeout", "ncclCommFinalize", "rank 1", ranks=[1])
    closed = forks.fork(2, rank_main, "closes", Flag())[0].failed(REMOTE_ERROR, "remote", "ncclCommFinalize", "closed", ranks=[1])
    assert closed.seconds < SOON
    forks.values(forks.fork(2, rank_main, "call", Flag()))


@forks.nursery()
def test_revoke_arguments() -> None:
    """Flags other than 0, a second time and a finalized communicator are ncclInvalidArgument; NULL succeeds whatever the flags."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, final = (Comm(nranks, one, rank) for one in ids)
        for flags in (1, -1, 2**30):
            error = both_ways(lambda flags=flags: comm.revoke(flags))
            assert error.code == INVALID_ARGUMENT and "flags" in error.text, error
            assert library().ncclCommRevoke(None, flags) == 0
        assert library().ncclCommRevoke(None, 0) == 0
        comm.barrier()
        comm.revoke()
        assert raised(comm.revoke).code == INVALID_ARGUMENT
        final.finalize()
        assert raised(final.revoke).code == INVALID_ARGUMENT
        comm.destroy()
        final.abort()
        assert raised(comm.revoke).code == INVALID_ARGUMENT

    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_revoked() -> None:
    """What was running on a revoked communicator stops, in another thread of the rank and on its peers; afterwards calls are
    ncclInvalidUsage, finalizing is ncclInvalidArgument; closing works."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], blocked_in: str, stopped: Flag) -> None:
        host_c.set_timeout(20)
        comm, buffer, ends = Comm(nranks, ids[0], rank), np.ones(50_000, np.float32), []
        comm.barrier()
        if rank == 2:
            stopped.wait(2)  # the one that the others wait for
            error = raised(comm.all_reduce, buffer, buffer)
            assert error.code == REMOTE_ERROR and "revoked" in error.text and error.ranks == (0,), error
            comm.revoke()
            return comm.destroy()
        wait = (lambda: comm.all_reduce(buffer, buffer)) if blocked_in == "collective" else (lambda: comm.recv(buffer, 2))
        if rank == 1:
            error = raised(wait)
            assert error.code == REMOTE_ERROR and error.ranks == (0,) and "revoked" in error.text, error
            stopped.set(rank)
            return comm.destroy()
        worker = threading.Thread(target=lambda: ends.append(raised(wait)), daemon=True)
        worker.start()
        in_call()
        comm.revoke()
        worker.join(5)
        stopped.set(rank)
        assert ends and ends[0].code == INVALID_USAGE and "ncclCommRevoke" in ends[0].text, ends
        refused(comm, INVALID_USAGE, ("split", "shrink", "finalize"))
        assert raised(comm.finalize).code == INVALID_ARGUMENT
        assert comm.query("CommCount") == nranks
        comm.destroy()

    for blocked_in in ("collective", "recv"):
        forks.values(forks.fork(3, rank_main, blocked_in, Flag()))


@forks.nursery()
def test_suspend() -> None:
    """A suspended communicator refuses calls as ncclInvalidUsage until it is resumed; then it is as before. Unknown flags, and resuming
    what is not suspended, are refused."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, value = Comm(nranks, ids[0], rank), ctypes.c_uint64()
        for flags in (0, 2, -1):
            assert both_ways(lambda flags=flags: comm.on("CommSuspend", flags)).code == INVALID_ARGUMENT
        assert both_ways(lambda: comm.on("CommResume")).code == INVALID_USAGE
        for _ in range(2):
            comm.on("CommSuspend", 1)
            comm.on("CommMemStats", 1, ctypes.byref(value))
            assert value.value == 1
            refused(comm, INVALID_USAGE)
            comm.on("CommResume")
            comm.on("CommMemStats", 1, ctypes.byref(value))
            assert value.value == 0
            comm.barrier()
        comm.on("CommSuspend", 1)
        comm.destroy()
        assert library().ncclCommSuspend(None, 1) == library().ncclCommResume(None) == INVALID_ARGUMENT

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_memory_statistics() -> None:
    """The four statistics can be read, the total grows with the first message to a peer; others and NULL are ncclInvalidArgument."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, value, seen = Comm(nranks, ids[0], rank), ctypes.c_uint64(), []
        one = np.ones(1, np.float32)
        for _ in range(2):
            for stat in range(4):
                value.value = 2**60
                comm.on("CommMemStats", stat, ctypes.byref(value))
                seen.append(value.value)
            with host_c.group():
                comm.send(one, 1 - rank)
                comm.recv(one, 1 - rank)
        assert max(seen) < 2**30 and seen[3] < seen[7] and seen[1] == seen[5] == 0, seen
        for stat in (-1, 4, 2**30):
            assert raised(comm.on, "CommMemStats", stat, ctypes.byref(value)).code == INVALID_ARGUMENT
        assert raised(comm.on, "CommMemStats", 0, None).code == INVALID_ARGUMENT
        assert library().ncclCommMemStats(None, 0, ctypes.byref(value)) == INVALID_ARGUMENT

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_properties() -> None:
    """ncclCommQueryProperties writes exactly the fields that the struct's version has, whatever its size says."""
    comm = Comm(1, host_c.unique_id(), 0)
    for version, told in itertools.product((22902, 22903, 22907, 23003, 23007, 23101, 23102, 23203), (40, 0, 152, 4096)):
        size = max(n for since, n in PROPERTIES.items() if since <= version)
        raw = (ctypes.c_uint8 * 256)(*[0xAA] * 256)
        ctypes.c_size_t.from_buffer(raw).value = told
        ctypes.c_uint.from_buffer(raw, 8).value, ctypes.c_uint.from_buffer(raw, 12).value = MAGIC, version
        comm.on("CommQueryProperties", raw)
        assert bytes(raw[size:]) == b"\xaa" * (256 - size) and raw[size - 16 : size] != [0xAA] * 16
        assert ctypes.c_size_t.from_buffer(raw).value == told and ctypes.c_uint.from_buffer(raw, 12).value == version
        assert list((ctypes.c_int * 4).from_buffer(raw, 16)) == [0, 1, 0, 0]


@forks.nursery()
def test_properties_refused() -> None:
    """A struct of a newer release than the library's or an older one than 2.29.2, and another magic, are ncclInvalidUsage and written to
    nowhere; NULL is ncclInvalidArgument."""
    comm = Comm(1, host_c.unique_id(), 0)
    for magic, version in ((MAGIC, VERSION + 1), (MAGIC, 99999999), (MAGIC, 22901), (MAGIC, 0), (MAGIC + 1, VERSION), (0, VERSION)):
        raw = (ctypes.c_uint8 * 256)(*[0xAA] * 256)
        ctypes.c_uint.from_buffer(raw, 8).value, ctypes.c_uint.from_buffer(raw, 12).value = magic, version
        before = bytes(raw)
        assert raised(comm.on, "CommQueryProperties", raw).code == INVALID_USAGE, (magic, version)
        assert bytes(raw) == before
    assert raised(comm.on, "CommQueryProperties", None).code == INVALID_ARGUMENT
    assert library().ncclCommQueryProperties(None, raw) == INVALID_ARGUMENT


@forks.nursery()
def test_properties_of_a_rank() -> None:
    """All ranks of a communicator see one hash, another communicator has another; each sees its own rank."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> list[int]:
        hashes = []
        for one in ids:
            comm, raw = Comm(nranks, one, rank), (ctypes.c_uint8 * 256)()
            ctypes.c_uint.from_buffer(raw, 8).value, ctypes.c_uint.from_buffer(raw, 12).value = MAGIC, VERSION
            comm.on("CommQueryProperties", raw)
            assert list((ctypes.c_int * 2).from_buffer(raw, 16)) == [rank, nranks]
            hashes.append(ctypes.c_uint64.from_buffer(raw, 56).value)
        return hashes

    seen = [end.returned() for end in forks.fork(3, rank_main, ids=2)]
    assert seen[0] == seen[1] == seen[2] and seen[0][0] != seen[0][1]
