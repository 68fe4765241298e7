"""Small cases of calls and groups, each under its number: by C symbols and through the Python layer on the same ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from helpers import raw

import pynickel
from pynickel import group
from pynickel.testing import run


def zero_counts(comm: Any) -> None:
    n = comm.nranks
    for s, r in ((np.ones(8, np.float32), np.full(8, 5, np.float32)), (None, None)):
        calls = [
            raw.call("AllReduce", comm, s, r, 0, raw.F32, 0), raw.call("Reduce", comm, s, r, 0, raw.F32, 0, 0),
            raw.call("Broadcast", comm, s, r, 0, raw.F32, 1), raw.call("AllGather", comm, s, r, 0, raw.F32),
            raw.call("ReduceScatter", comm, s, r, 0, raw.F32, 0), raw.call("AlltoAll", comm, s, r, 0, raw.F32),
            raw.call("Gather", comm, s, r, 0, raw.F32, 2), raw.call("Scatter", comm, s, r, 0, raw.F32, 2), raw.lib.ncclGroupStart(),
            raw.call("Send", comm, s, 0, raw.F32, (comm.rank + 1) % n), raw.call("Recv", comm, r, 0, raw.F32, (comm.rank - 1) % n),
            raw.lib.ncclGroupEnd(),
        ]  # fmt: skip
        assert calls == [0] * 12 and (r is None or (r == 5).all())
    empty = np.zeros(0, np.float32)
    for call in (comm.all_reduce, comm.bcast, comm.reduce):
        call(empty)
    for call in (comm.all_gather, comm.reduce_scatter, comm.all_to_all, comm.gather, comm.scatter):
        call(empty, empty.copy())
    raw.works(comm)


def in_place_all_gather(comm: Any) -> None:
    k, rank = 4, comm.rank
    apart, base = np.zeros(3 * k, np.float32), np.zeros(3 * k, np.float32)
    mine = base[rank * k : rank * k + k]
    mine[:] = np.arange(k) + 10 * rank
    comm.all_gather(mine.copy(), apart)
    for wrong in (0 if rank else k, k // 2):
        assert raw.call("AllGather", comm, raw.at(base, wrong), base, k, raw.F32) == 4
        assert hex(base.ctypes.data + rank * k * 4) in raw.last_error()
        with pytest.raises(pynickel.OverlapError):
            comm.all_gather(base[wrong : wrong + k], base)
    assert raw.call("AllGather", comm, raw.at(base, rank * k), base, k, raw.F32) == 0
    assert (base == apart).all()
    assert (comm.all_gather(mine, base) == apart).all()
    both = np.zeros(6, np.float32)
    assert raw.call("AlltoAll", comm, both, both, 1, raw.F32) == 4  # has no in-place form
    raw.works(comm)


def in_place_gather(comm: Any) -> None:
    k, rank = 3, comm.rank
    for root in range(comm.nranks):
        own, apart = np.arange(k, dtype=np.float32) + 10 * rank, np.zeros(k * comm.nranks, np.float32)
        whole = np.zeros_like(apart)
        comm.gather(own, apart, root)
        part = whole[root * k : root * k + k]
        part[:] = own
        send, recv = (raw.at(part), raw.at(whole)) if rank == root else (raw.at(own), raw.NULL)
        assert raw.call("Gather", comm, send, recv, k, raw.F32, root) == 0
        assert rank != root or (whole == apart).all()
        comm.gather(part if rank == root else own, whole if rank == root else None, root)
        assert rank != root or (whole == apart).all()
    raw.works(comm)


def three(comm: Any) -> None:
    for scenario in (zero_counts, in_place_all_gather, in_place_gather):
        scenario(comm)


def test_counts_and_places() -> None:
    """Scenario 04: count 0 succeeds in every call, with pointers and without, and touches nothing. Scenario 14: all-gather in place works
    at the rank's own slice and is refused elsewhere with the right address. Scenario 16: gather in place works at every root."""
    run(3, three)


def bad_roots(comm: Any) -> None:
    x, out = np.ones(2, np.float32), np.zeros(4, np.float32)
    for root in (-1, 2, 5):
        codes = [
            raw.call("Broadcast", comm, x, x, 2, raw.F32, root), raw.call("Reduce", comm, x, x, 2, raw.F32, 0, root),
            raw.call("Gather", comm, x, out, 2, raw.F32, root), raw.call("Scatter", comm, out, x, 2, raw.F32, root),
            raw.call("Send", comm, x, 2, raw.F32, root), raw.call("Recv", comm, x, 2, raw.F32, root),
        ]  # fmt: skip
        assert codes == [4] * 6 and "0 to 1" in raw.last_error()
        for call in (comm.bcast, comm.reduce, comm.broadcast):
            with pytest.raises(ValueError, match="0.*1"):
                call(x, root=root)
    raw.works(comm)


def self_send(comm: Any) -> None:
    me = comm.rank
    if me == 0:
        a, b, x, y = (np.full(2, value, np.float32) for value in (1, 2, 0, 0))
        assert raw.lib.ncclGroupStart() == 0
        for array in (a, b):
            assert raw.call("Send", comm, array, 2, raw.F32, 0) == 0
        for array in (x, y):
            assert raw.call("Recv", comm, array, 2, raw.F32, 0) == 0
        assert raw.lib.ncclGroupEnd() == 0 and (x == a).all() and (y == b).all()
        with group():
            comm.send(b, 0)
            comm.recv(x, 0)
        assert (x == b).all()
        assert raw.call("Send", comm, a, 2, raw.F32, 0) == 5
        assert [raw.lib.ncclGroupStart(), raw.call("Recv", comm, a, 2, raw.F32, 0), raw.lib.ncclGroupEnd()] == [0, 0, 5]
        with pytest.raises(pynickel.InvalidUsageError):
            comm.recv(x, 0)
    raw.works(comm)


def unbalanced_groups(comm: Any) -> None:
    x, codes = np.full(1, comm.rank, np.float32), []
    assert raw.lib.ncclGroupEnd() == 5 and "ncclGroupStart" in raw.last_error()
    assert raw.lib.ncclGroupStart() == 0
    thread = threading.Thread(target=lambda: codes.append(raw.lib.ncclGroupEnd()))
    thread.start()
    thread.join()
    assert codes == [5]
    assert [raw.lib.ncclGroupStart(), raw.lib.ncclGroupStart(), raw.call("AllReduce", comm, x, x, 1, raw.F32, 0)] == [0, 0, 0]
    assert [raw.lib.ncclGroupEnd(), raw.lib.ncclGroupEnd()] == [0, 0] and x[0] == comm.rank
    assert raw.lib.ncclGroupEnd() == 0 and x[0] == 1
    raw.works(comm)


def exceptions_in_groups(comm: Any) -> None:
    other, x = raw.another(comm), np.ones(1)
    for raising in ((0, 1), (0,)):
        try:
            with group():
                comm.all_reduce(x)
                if comm.rank in raising:
                    raise ValueError("of the body")
        except ValueError:
            assert comm.rank in raising and x[0] == 1  # nothing was launched
        except pynickel.CollectiveMismatchError as error:
            assert comm.rank not in raising and "ncclBroadcast" in str(error)
        else:
            raise AssertionError("nobody said anything")
        if len(raising) == 1 and comm.rank == 0:
            with pytest.raises(pynickel.CollectiveMismatchError):
                comm.bcast(x)  # what the other rank meets
        assert raw.lib.ncclGroupEnd() == 5  # the depth is 0
        raw.works(other)
        raw.works(comm)
    other.close()


def cycle(comm: Any) -> None:
    for count in (1, 1 << 20):
        x, y = np.full(count, comm.rank, np.float32), np.empty(count, np.float32)
        first, second, third = (raw.another(comm) for _ in range(3))
        assert raw.call("Send", first, x, count, raw.F32, 1 - comm.rank) == 5
        assert raw.lib.nickelErrorKind(raw.handle(first)) == 2  # nickelKindDeadlock
        with pytest.raises(pynickel.DeadlockError, match="rank 0.*rank 1|rank 1.*rank 0"):
            second.send(x, 1 - comm.rank)
        with group():
            third.send(x, 1 - comm.rank)
            third.recv(y, 1 - comm.rank)
        assert (y == 1 - comm.rank).all()
        for made in (first, second, third):
            made.abort()


def two(comm: Any) -> None:
    for scenario in (bad_roots, self_send, unbalanced_groups, exceptions_in_groups, cycle):
        scenario(comm)


def test_roots_groups_and_cycles() -> None:
    """Scenario 08: roots and peers that there are not are refused with the range. Scenario 54: an exception in a group launches nothing and
    both communicators go on. Scenario 55: groups end where and as often as they began. Scenario 58: sends in a cycle are a deadlock, small
    ones too, and right in a group. Scenario 60: a send to oneself works in a group, in order, and is refused alone."""
    run(2, two, timeout=25)
