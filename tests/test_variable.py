"""The variable-count collectives, against what NumPy says, for even, uneven and empty parts."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder
from helpers.threads import together

import pynickel
from pynickel import Communicator, OverlapError, group

COUNTS = [[3, 3, 3], [0, 5, 2], [4, 0, 0], [0, 0, 0], [1, 100_000, 7]]


def part(rank: int, counts: list[int]) -> Any:
    """What rank contributes."""
    return np.arange(counts[rank], dtype="f8") + 1000 * rank


def slots(counts: list[int]) -> list[slice]:
    """Where the ranks' parts are."""
    ends = np.cumsum(counts)
    return [slice(end - n, end) for end, n in zip(ends, counts, strict=True)]


def forms(body: Callable[[Communicator, Any, Any], None]) -> Callable[[Communicator], None]:
    """A rank's program that runs with arrays and with addresses."""

    def program(comm: Communicator) -> None:
        body(comm, lambda array: array, {})
        body(comm, lambda array: array.ctypes.data, {"dtype": "float64"})
        assert comm.all_reduce(np.ones(1))[0] == comm.nranks

    return program


@pytest.mark.parametrize("counts", COUNTS)
def test_all_gather_v(counts: list[int]) -> None:
    """Every rank has all parts in rank order, also in place."""
    expected = np.concatenate([part(r, counts) for r in range(3)])

    def body(comm: Communicator, form: Any, options: Any) -> None:
        recv = np.zeros(sum(counts))
        send = part(comm.rank, counts)
        received = form(recv)
        assert comm.all_gather_v(form(send), received, counts, **options) is received
        assert (recv == expected).all()
        recv[:] = 0
        own = recv[slots(counts)[comm.rank]]
        own[:] = send
        comm.all_gather_v(form(own), received, counts, **options)
        assert (recv == expected).all()

    together(3, forms(body))


@pytest.mark.parametrize("counts", COUNTS)
def test_reduce_scatter_v(counts: list[int]) -> None:
    """Rank r has its part of the reduction, also in place."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        mine = slots(counts)[comm.rank]
        whole = np.arange(sum(counts), dtype="f8")
        send, recv = whole * (comm.rank + 1), np.zeros(counts[comm.rank])
        comm.reduce_scatter_v(form(send), form(recv), counts, **options)
        assert (recv == 6 * whole[mine]).all()
        comm.reduce_scatter_v(form(send), form(send[mine]), counts, "max", **options)
        assert (send[mine] == 3 * whole[mine]).all()

    together(3, forms(body))


@pytest.mark.parametrize("counts", COUNTS)
def test_gather_v_and_scatter_v(counts: list[int]) -> None:
    """The root has all parts, and gives them back, for every root, also in place."""
    expected = np.concatenate([part(r, counts) for r in range(3)])

    def body(comm: Communicator, form: Any, options: Any) -> None:
        for root in range(3):
            at_root = comm.rank == root
            recv, back = np.zeros(sum(counts)), np.zeros(counts[comm.rank])
            own = recv[slots(counts)[root]] if at_root else part(comm.rank, counts)
            mine = part(comm.rank, counts)  # an address does not keep its array alive
            own[:] = mine
            comm.gather_v(form(own), form(recv) if at_root else None, counts, root, **options)
            assert not at_root or (recv == expected).all()
            comm.gather_v(form(mine), form(recv) if at_root else None, counts, root, **options)
            comm.scatter_v(form(recv) if at_root else None, form(back), counts, root, **options)
            assert (back == part(comm.rank, counts)).all()
            comm.scatter_v(form(recv) if at_root else None, form(own if at_root else back), counts, root, **options)
            assert not at_root or (recv == expected).all()

    together(3, forms(body))


@pytest.mark.parametrize("table", [[[1, 2, 3], [0, 1, 0], [5, 0, 2]], [[0] * 3] * 3, [[2] * 3] * 3])
def test_all_to_all_v(table: list[list[int]]) -> None:
    """Row r of the table is what rank r sends to each; column r is what it receives."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        send_counts, recv_counts = table[comm.rank], [row[comm.rank] for row in table]
        pieces = [[np.full(table[a][b], 10.0 * a + b) for b in range(3)] for a in range(3)]
        send, recv = np.concatenate(pieces[comm.rank]), np.zeros(sum(recv_counts))
        comm.all_to_all_v(form(send), form(recv), send_counts, recv_counts, **options)
        assert (recv == np.concatenate([pieces[a][comm.rank] for a in range(3)])).all()

    together(3, forms(body))


def test_is_one_group(recording: Recorder) -> None:
    """Each is one group of NCCL's own calls, without calls for empty parts, and takes part in an open group."""
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    counts, options = [2, 0, 3, 1], {"dtype": "int8"}
    calls: dict[str, tuple[Callable[[], Any], list[str]]] = {
        "all_gather_v": (lambda: comm.all_gather_v(None, 0x9000, counts, **options), ["ncclBroadcast"] * 3),
        "reduce_scatter_v": (lambda: comm.reduce_scatter_v(0x9000, None, counts, **options), ["ncclReduce"] * 3),
        "gather_v": (lambda: comm.gather_v(None, 0x9000, counts, 1, **options), ["ncclRecv"] * 3),
        "all_to_all_v": (
            lambda: comm.all_to_all_v(0x9000, 0x8000, [1, 0, 2, 0], counts, **options),
            ["ncclSend", "ncclRecv"] * 2 + ["ncclRecv"],
        ),
    }
    for call, names in calls.values():
        recording.forget()
        call()
        assert recording.names == ["ncclGroupStart", *names, "ncclGroupEnd"]
    recording.forget()
    with group():
        comm.all_gather_v(None, 0x9000, counts, **options)
        comm.broadcast(bytearray(1))
    assert recording.names == ["ncclGroupStart", *["ncclBroadcast"] * 4, "ncclGroupEnd"]
    recording.forget()
    comm.all_gather_v(None, None, [0] * 4, **options)
    assert recording.names == []
    comm.abort()


@pytest.mark.parametrize(
    ("counts", "error", "words"),
    [
        ([1], ValueError, "1 counts, but one for each of 2"),
        ([1, -1], ValueError, "count must be at least 0"),
        ([1, 1.5], TypeError, "count must be an int"),
        (2, TypeError, "list of 2 counts"),
        ("12", TypeError, "list of 2 counts"),
        ([2, 2], ValueError, "recv has 3 elements of float64, but the counts say 4"),
    ],
)
def test_bad_counts(counts: Any, error: type[Exception], words: str) -> None:
    """Counts are one per rank and fit the buffers, or are refused by name with nothing sent."""

    def program(comm: Communicator) -> None:
        send = np.zeros(2)
        with pytest.raises(error, match=words):
            comm.all_gather_v(send, np.zeros(3), counts)
        assert comm.all_reduce(np.ones(1))[0] == 2

    together(2, program)


def test_bad_buffers() -> None:
    """Strides, other types, NULL and overlaps that are not the in-place form are refused."""

    def program(comm: Communicator) -> None:
        counts, box = [2, 2], np.zeros(8)
        own = slice(2 * comm.rank, 2 * comm.rank + 2)
        with pytest.raises(pynickel.NonContiguousError):
            comm.all_gather_v(box[::4], np.zeros(4), counts)
        with pytest.raises(ValueError, match="float32"):
            comm.all_gather_v(np.zeros(2, "f4"), np.zeros(4), counts)
        with pytest.raises(ValueError, match="recv is 0"):
            comm.all_gather_v(box[:2], 0, counts)
        with pytest.raises(TypeError, match="recv must be a buffer"):
            comm.all_gather_v(box[:2], None, counts)
        with pytest.raises(OverlapError, match="would start at"):
            comm.all_gather_v(box[1:3], box[:4], counts)
        with pytest.raises(OverlapError, match="would start at"):
            comm.reduce_scatter_v(box[:4], box[1:3], counts)
        with pytest.raises(OverlapError, match="no in-place form"):
            comm.all_to_all_v(box[:4], box[:4], counts, counts)
        with pytest.raises(ValueError, match="sends to itself"):
            comm.all_to_all_v(box[:4], np.zeros(3), counts, [1, 2] if comm.rank == 0 else [2, 1])
        comm.all_gather_v(box[own], box[:4], counts)

    together(2, program)
