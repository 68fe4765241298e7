"""Small cases of ids, ends, threads and families, each under its number: by C symbols and through the Python layer on the same ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import raw
from helpers.order import SOON, in_call

import pynickel
from pynickel import Communicator, group
from pynickel.testing import run


def used_ids(comm: Any) -> None:
    one_id = raw.new_id(comm)

    def refused(nranks: int) -> None:
        begun = time.monotonic()
        with pytest.raises(pynickel.RendezvousError, match="used"):
            Communicator(nranks, one_id, comm.rank % nranks)
        assert time.monotonic() - begun < SOON

    first = Communicator(2, one_id, comm.rank)
    comm.barrier()
    refused(2)
    raw.works(first)
    comm.barrier()
    first.close()
    comm.barrier()
    refused(2)
    refused(1)


def ended_in_a_call(comm: Any) -> None:
    one, told = np.ones(1), []

    def ends(end: Callable[[Any], None], error: type[Exception]) -> None:
        waiting = raw.another(comm)
        if comm.rank == 0:

            def call() -> None:
                try:
                    waiting.all_reduce(one)
                except pynickel.NCCLError as caught:
                    told.append(caught)

            thread = threading.Thread(target=call)
            thread.start()
            in_call()
            begun = time.monotonic()
            end(waiting)
            thread.join(5)
            assert not thread.is_alive() and time.monotonic() - begun < SOON and isinstance(told.pop(), error)
        comm.barrier()
        waiting.abort()

    ends(lambda c: c.abort(), pynickel.AbortedError)
    ends(lambda c: c.close(timeout=0.3), pynickel.AbortedError)

    def busy(c: Any) -> None:
        assert raw.lib.ncclCommDestroy(raw.handle(c)) == 5 and raw.lib.nickelErrorKind(raw.NULL) == 6  # nickelKindBusy; the call goes on
        c.abort()

    ends(busy, pynickel.AbortedError)


def non_blocking(comm: Any) -> None:
    one_id = raw.new_id(comm)
    if comm.rank == 1:
        comm.barrier()  # until the other one has seen that it is in progress
    polled = Communicator(2, one_id, comm.rank, config=pynickel.Config(blocking=False))
    state, x = raw.ffi.new("ncclResult_t *"), np.ones(1, np.float32)
    if comm.rank == 0:
        assert raw.lib.ncclCommGetAsyncError(raw.handle(polled), state) == 0 and state[0] == 7  # ncclInProgress
        assert raw.call("AllReduce", polled, x, x, 1, raw.F32, 0) == 4
        comm.barrier()
    polled.wait(timeout=5)
    polled.all_reduce(x)
    polled.wait(timeout=5)
    assert x[0] == 2
    with pytest.raises(pynickel.NCCLError, match="blocking"), group():
        polled.all_reduce(x)
        comm.all_reduce(x)
    raw.works(comm)
    comm.barrier()
    if comm.rank == 0:
        polled.all_reduce(x)  # its peer does not come
    polled.abort()


def two_that_end(comm: Any) -> None:
    for scenario in (used_ids, ended_in_a_call, non_blocking):
        scenario(comm)


def test_ids_ends_and_non_blocking() -> None:
    """Scenario 30: an id that was used is refused at once, while its communicator lives and later, for fewer ranks too. Scenario 44: abort
    ends the call of another thread; close and destroy find it busy. Scenario 67: a non-blocking communicator is polled, refuses what comes
    too early, can be aborted in progress and is not mixed with a blocking one."""
    run(2, two_that_end, timeout=25)


def split(comm: Any) -> None:
    rank, out = comm.rank, raw.ffi.new("ncclComm_t *")
    colors = (0, 0, 1, None, 1)
    for keys in ((0, 0, 0, 0, 0), (4, 3, 2, 1, 0)):
        part = comm.split(colors[rank], keys[rank])
        assert raw.lib.ncclCommSplit(raw.handle(comm), -1 if rank == 3 else colors[rank], keys[rank], out, raw.NULL) == 0
        if rank == 3:
            assert part is None and out[0] == raw.NULL
            continue
        place = {0: 0, 1: 1, 2: 0, 4: 1}[rank] ^ (keys[rank] > 0 or keys != (0,) * 5)
        number = raw.ffi.new("int *")
        assert raw.lib.ncclCommUserRank(out[0], number) == 0 and number[0] == part.rank == place and part.nranks == 2
        again = part.split(0)
        part.close()
        raw.works(again)
        again.close()
        assert raw.lib.ncclCommDestroy(out[0]) == 0
    assert raw.lib.ncclCommSplit(raw.handle(comm), -2, 0, out, raw.NULL) == 4
    with pytest.raises(ValueError):
        comm.split(-2)
    raw.works(comm)


def test_split() -> None:
    """Scenario 66: colours and keys give the parts and their order, no colour gives none, a negative one is refused; parts, and parts of
    parts, work in any order of closing."""
    run(5, split)


def threads(comm: Any) -> None:
    for turn in range(100):
        assert comm.all_reduce(np.full(10, turn))[0] == 4 * turn


def test_ranks_as_threads() -> None:
    """Scenario 63: four ranks as threads of one process make 100 all-reduces and close; the interpreter is free while they wait."""
    run(4, threads, ranks="threads")
