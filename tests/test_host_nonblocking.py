"""Non-blocking communicators of the CPU library: begun at once, polled, worked on in the background, ended at any time."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from ctypes import byref
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, TIMEOUT, raised
from helpers.host_more import IN_PROGRESS, Comm, polled
from helpers.host_structs import library
from helpers.order import SOON, Flag


@forks.nursery()
def test_init() -> None:
    """Init returns ncclInProgress with a handle; polling says so until the last rank has come, then ncclSuccess, and it works."""

    polls = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> int:
        if rank == 2:
            polls.wait(2)
        begun = time.monotonic()
        comm, states = Comm(nranks, ids[0], rank, polled()), 0
        assert comm.code == IN_PROGRESS and comm.handle
        while comm.query("CommGetAsyncError") == IN_PROGRESS:
            states += 1
            if states > 10:
                polls.set(rank)
            time.sleep(0.005)
            assert time.monotonic() - begun < 8
        assert comm.query("CommGetAsyncError") == SUCCESS
        assert (comm.query("CommCount"), comm.query("CommUserRank")) == (nranks, rank)
        comm.barrier()
        comm.destroy()
        return states

    states = [end.returned() for end in forks.fork(3, rank_main)]
    assert min(states[:2]) > 10


def everything(comm: Comm) -> dict[str, Callable[[], Any]]:
    """Every call on a communicator but the three that are allowed while it is in progress, and destroying it, which waits."""
    one, two, number, handle = np.ones(1, np.float32), np.ones(2, np.float32), ctypes.c_uint64(), ctypes.c_void_p()
    properties = (ctypes.c_uint8 * 256)()
    ctypes.c_uint.from_buffer(properties, 8).value, ctypes.c_uint.from_buffer(properties, 12).value = 0xCAFEBEEF, 23203
    lib = library()
    return {
        "AllReduce": lambda: comm.all_reduce(one, one),
        "AllReduce of nothing": lambda: comm.all_reduce(one, one, count=0),
        "Bcast": lambda: comm.bcast(one),
        "AllGather": lambda: comm.all_gather(one, two),
        "Send": lambda: comm.send(one, 1 - comm.rank),
        "Recv": lambda: comm.recv(one, 1 - comm.rank),
        "Signal": lambda: comm.signal(1 - comm.rank),
        "WaitSignal": lambda: comm.wait_signal((1, 1 - comm.rank)),
        "CommSplit": lambda: comm.split(0),
        "CommShrink": lambda: comm.shrink([1 - comm.rank]),
        "CommGrow": lambda: comm.grow(3),
        "CommGetUniqueId": comm.unique_id,
        "CommFinalize": comm.finalize,
        "CommSuspend": lambda: comm.on("CommSuspend", 1),
        "CommResume": lambda: comm.on("CommResume"),
        "CommMemStats": lambda: comm.on("CommMemStats", 3, byref(number)),
        "CommCount": lambda: comm.query("CommCount"),
        "CommUserRank": lambda: comm.query("CommUserRank"),
        "CommCuDevice": lambda: comm.query("CommCuDevice"),
        "CommQueryProperties": lambda: comm.on("CommQueryProperties", properties),
        "CommRegister": lambda: comm.on("CommRegister", one.ctypes.data, 4, byref(handle)),
        "CommWindowRegister": lambda: comm.window(1 << 16, 4096),
        "RedOpCreatePreMulSum": lambda: comm.pre_mul_sum(one),
        "RedOpDestroy": lambda: host_c.check(lib.ncclRedOpDestroy(7, comm.handle)),
    }


@pytest.mark.parametrize("doing", ["init", "call"])
@forks.nursery()
def test_calls_while_in_progress(doing: str) -> None:
    """While a communicator is in progress every call on it is ncclInvalidArgument, at once and without a trace, but asking for the state,
    aborting and revoking."""

    tried = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> list[str]:
        value, wrong = np.ones(1, np.float32), []
        comm = Comm(nranks, ids[0], rank, polled()) if rank == 0 or doing == "call" else None
        if comm is None:
            tried.wait()
            comm = Comm(nranks, ids[0], rank, polled())
        if doing == "call":
            comm.wait()
        if rank == 0:
            if doing == "call":
                comm.all_reduce(value, value)
            for name, call in everything(comm).items():
                try:
                    call()
                    wrong.append(f"{name} was done")
                except host_c.HostError as error:
                    if error.code != INVALID_ARGUMENT or "progress" not in error.text:
                        wrong.append(f"{name}: {error}")
                assert comm.query("CommGetAsyncError") == IN_PROGRESS, name
            tried.set()
        elif doing == "call":
            tried.wait()
            comm.all_reduce(value, value)
        comm.wait()
        assert value[0] == (2 if doing == "call" else 1)
        comm.barrier()
        comm.destroy()
        return wrong

    for end in forks.fork(2, rank_main):
        assert not end.returned()


@forks.nursery()
def test_polling_without_a_pause() -> None:
    """Whoever is told that a call is over can make the next one at once, and polling without a pause does not starve the thread that does
    the work: 2,000 calls of three ranks, and of one, are over in seconds."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, value, state = Comm.ready(nranks, ids[0], rank), np.ones(1, np.int64), ctypes.c_int()
        call, ask, pointer, place = library().ncclAllReduce, library().ncclCommGetAsyncError, value.ctypes.data, byref(state)
        for round in range(2000):
            code = call(pointer, pointer, 1, 4, 2, comm.handle, None)
            assert code == IN_PROGRESS, (round, code, library().ncclGetLastError(comm.handle))
            state.value = IN_PROGRESS
            while state.value == IN_PROGRESS:
                ask(comm.handle, place)
            assert state.value == SUCCESS
        comm.destroy()

    for nranks in (1, 3):
        forks.values(forks.fork(nranks, rank_main))  # by their deadline of 10 s: three ranks that starve take 24


@forks.nursery()
def test_mismatch_is_told_once() -> None:
    """A mismatch comes out of ncclCommGetAsyncError once, with its table as the last error and its kind; until it has been asked for calls
    return it; then the communicator can be used again."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], ask: str) -> None:
        comm, one, two = Comm.ready(nranks, ids[0], rank), np.ones(1, np.float32), np.ones(2, np.float32)
        for _ in range(3):
            comm.all_reduce(one if rank else two, one if rank else two)
            if ask == "polling":
                assert comm.poll() == INVALID_USAGE
                lib = library()
                text, kind = lib.ncclGetLastError(comm.handle).decode(), host_c.KINDS[lib.nickelErrorKind(comm.handle)]
                assert "ncclAllReduce" in text and "rank" in text and ("1*" in text or "2*" in text), text
                assert kind == "mismatch"
            else:
                while (error := raised(comm.bcast, one)).code == INVALID_ARGUMENT and "progress" in error.text:
                    time.sleep(0.01)
                assert (error.code, error.kind) == (INVALID_USAGE, "mismatch") and "ncclAllReduce" in error.text, error
                assert comm.poll() == INVALID_USAGE
            assert comm.query("CommGetAsyncError") == SUCCESS
            comm.barrier()
            assert one[0] == 1 and two[0] == 1
        comm.destroy()

    for ask in ("polling", "calling"):
        forks.values(forks.fork(2, rank_main, ask))


@forks.nursery()
def test_final_errors() -> None:
    """A peer's death and a deadline come out of ncclCommGetAsyncError as often as it is asked, with a text that names the rank; calls
    return the same; aborting works."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, told: Flag) -> None:
        host_c.set_timeout(20)
        comm, one = Comm.ready(nranks, ids[0], rank), np.ones(1, np.float32)
        if rank == 1:
            time.sleep(0.3) if how == "death" else told.wait()
            os._exit(0)
        comm.set_timeout(0.5 if how == "deadline" else 20)
        comm.all_reduce(one, one)
        code = TIMEOUT if how == "deadline" else REMOTE_ERROR
        for _ in range(3):
            assert comm.poll() == code
            assert "rank 1" in library().ncclGetLastError(comm.handle).decode()
            assert host_c.KINDS[library().nickelErrorKind(comm.handle)] == ("timeout" if how == "deadline" else "remote")
            error = raised(comm.all_reduce, one, one)
            assert error.code == code and "rank 1" in error.text, error
        told.set()
        comm.abort()

    for how in ("death", "deadline"):
        forks.fork(2, rank_main, how, Flag())[0].returned()


@forks.nursery()
def test_init_that_fails() -> None:
    """An init that fails in the background says why as often as it is asked, never ncclInProgress again or ncclSuccess; the handle can be
    aborted or destroyed."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, end: str) -> None:
        host_c.set_timeout(0.3 if how == "deadline" else 8)
        if rank == 1 and how == "deadline":
            return
        number, size = (0 if how == "duplicate" else rank), (nranks + rank if how == "size" else nranks)
        id = bytes(128) if how == "zero" else b"\x01" * 128 if how == "foreign" else ids[0]
        comm, codes = Comm(size, id, number, polled()), set()
        for _ in range(4):
            codes.add(comm.poll())
            text = library().ncclGetLastError(comm.handle).decode()
            assert text and "no error" not in text, text
            error = raised(comm.barrier)
            assert error.code in codes, (codes, error)
        expected = {"deadline": {TIMEOUT}, "zero": {INVALID_ARGUMENT}, "foreign": {INVALID_ARGUMENT}}.get(how, {INVALID_USAGE})
        assert codes == expected, (codes, text)
        getattr(comm, end)()
        assert raised(comm.query, "CommGetAsyncError").code == INVALID_ARGUMENT
        time.sleep(0.1)

    for how in ("deadline", "duplicate", "size", "zero", "foreign"):
        for way in ("abort", "destroy"):
            for end in forks.fork(2, rank_main, how, way):
                try:
                    end.returned()
                except AssertionError as error:
                    raise AssertionError(f"{how}, {way}: {error}") from error


@pytest.mark.parametrize("doing", ["init", "call", "split", "finalize"])
@forks.nursery()
def test_abort_in_progress(doing: str) -> None:
    """Aborting ends what is in progress, within a second, and leaves neither a thread nor memory; the peer is told."""

    aborted, told = Flag(), Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        before = forks.holds()
        host_c.set_timeout(20)
        value = np.ones(50_000, np.float32)
        if rank == 1 and doing == "init":
            return aborted.wait()
        comm = Comm(nranks, ids[0], rank, polled())
        if doing != "init":
            comm.wait()
        if rank == 1:
            aborted.wait()
            try:
                comm.barrier() if comm.poll() == SUCCESS else comm.wait()
                comm.wait()
            finally:
                told.set()
        begin = {"init": lambda: None, "call": lambda: comm.all_reduce(value, value), "split": lambda: comm.split(0)}
        begin.get(doing, comm.finalize)()
        time.sleep(0.2)
        assert comm.query("CommGetAsyncError") == IN_PROGRESS
        begun = time.monotonic()
        comm.abort()
        assert time.monotonic() - begun < SOON
        assert raised(comm.query, "CommGetAsyncError").code == INVALID_ARGUMENT
        aborted.set()
        held = forks.holds(before)
        assert held["threads"] == before["threads"] and held["memfds"] == held["mappings"] == 0, held
        if doing != "init":
            told.wait()

    ends = forks.fork(2, rank_main)
    ends[0].returned()
    if doing != "init":
        ends[1].failed(REMOTE_ERROR, "remote", "rank 0", "aborted")


@forks.nursery()
def test_destroy_in_progress() -> None:
    """Destroying a communicator that is in progress lets its work finish first: the peers' results are right, and nothing is left."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        before = forks.holds()
        for one in ids:
            comm, value = Comm.ready(nranks, one, rank), np.full(40_000, rank + 1, np.int32)
            if rank == 1:
                time.sleep(0.1)
            comm.all_reduce(value, value)
            comm.destroy()
            assert (value == 3).all()
        held = forks.holds(before)
        assert held["threads"] == before["threads"] and held["memfds"] == held["mappings"] == 0, held

    forks.values(forks.fork(2, rank_main, ids=4))
