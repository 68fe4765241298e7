"""Calls of the CPU library that do not fit together: every rank gets the same table, nothing is written, the communicator goes on."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_USAGE, raised
from helpers.order import SOON
from helpers.ranks import run

COUNTS = (1, 100, 3000, 256_000)


def one_call(comm: host_c.Comm, buffer: np.ndarray, name: str, count: int, type: str = "float32", op: str = "sum", root: int = 0) -> None:
    """A collective by its C name, on one large enough buffer."""
    half = buffer[buffer.size // 2 :]
    if name in ("ncclAllReduce", "ncclReduceScatter"):
        call = comm.all_reduce if name == "ncclAllReduce" else comm.reduce_scatter
        call(buffer, half, op, count=count, type=type)
    elif name == "ncclReduce":
        comm.reduce(buffer, half, op, root, count=count, type=type)
    elif name in ("ncclAllGather", "ncclAlltoAll"):
        (comm.all_gather if name == "ncclAllGather" else comm.all_to_all)(buffer, half, count=count, type=type)
    else:
        call = {"ncclBroadcast": comm.broadcast, "ncclGather": comm.gather, "ncclScatter": comm.scatter}[name]
        call(buffer, half, root, count=count, type=type)


def columns() -> list[tuple[dict[str, Any], dict[str, Any], str, str]]:
    """What most ranks call, what one rank calls, and how the two cells of the table read."""
    found: list[tuple[dict[str, Any], dict[str, Any], str, str]] = []
    for count in COUNTS:
        usual = {"name": "ncclAllReduce", "count": count}
        found.append((usual, {**usual, "count": 2 * count}, str(count), str(2 * count)))
        found.append((usual, {**usual, "type": "int32"}, "float32", "int32"))
        found.append((usual, {**usual, "type": "float64", "count": max(count // 2, 1)}, "float32", "float64"))
        found.append((usual, {**usual, "op": "max"}, "sum", "max"))
        for name, other in itertools.permutations(("ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclAlltoAll"), 2):
            found.append(({**usual, "name": name}, {**usual, "name": other}, name, other))
        for name in ("ncclBroadcast", "ncclReduce", "ncclGather", "ncclScatter"):
            found.append(({**usual, "name": name, "root": 1}, {**usual, "name": name, "root": 2}, "1", "2"))
    return found


def all_columns(rank: int, nranks: int, unique_id: Any) -> list[str]:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    plain, arena = np.empty(4 * COUNTS[-1] * nranks, np.float32), host_c.empty(4 * COUNTS[-1] * nranks, np.float32)
    tables = []
    for turn, (usual, different, cell, other) in enumerate(columns()):
        odd, buffer = turn % nranks, arena if turn % 3 else plain
        buffer[: 2 * usual["count"] * nranks] = 7
        half = buffer[buffer.size // 2 :][: 2 * usual["count"] * nranks]
        half[:] = 7
        error = raised(one_call, comm, buffer, **(different if rank == odd else usual))
        assert (error.code, error.kind, error.ranks) == (INVALID_USAGE, "mismatch", (odd,)), error
        heading, *rows = error.text.splitlines()[1:]
        assert [int(row.split()[0]) for row in rows] == list(range(nranks)), error
        assert all((f"{other}*" in row) == (int(row.split()[0]) == odd) for row in rows), error
        assert all(cell in row for row in rows if int(row.split()[0]) != odd), error
        assert (half == 7).all() and (buffer[: 2 * usual["count"] * nranks] == 7).all()
        tables.append("\n".join([heading, *rows]))
        if turn % 5 == 0:
            comm.barrier()
    comm.barrier()
    comm.destroy()
    return tables


@pytest.mark.parametrize("kind", ["processes", "threads", "mixed"])
def test_every_column(kind: str) -> None:
    """Another operation, count, type, reduction or root on one rank gives the same error on all ranks, whatever the size and path: a table
    with a row per rank in which that rank's cell is marked; no receive buffer is touched, and the communicator goes on."""
    tables = run(3, all_columns, kind=kind, make_comm=False, deadline=30)
    assert tables[0] == tables[1] == tables[2]


def one_ahead(rank: int, nranks: int, unique_id: Any) -> None:
    comm, one = host_c.Comm(nranks, bytes(unique_id), rank), np.ones(2, np.float32)
    comm.barrier()
    errors = []
    for turn in range(2):
        if turn == 0 and rank == 2:
            continue
        try:
            (comm.all_gather if rank == 2 or turn else comm.all_reduce)(one[:1], np.zeros(4, np.float32), count=1)
        except host_c.HostError as error:
            errors.append(error)
    assert len(errors) == 1 or rank != 2, errors
    assert errors[0].kind == "mismatch" and "ncclAllGather" in errors[0].text and "ncclAllReduce" in errors[0].text
    comm.abort()


def test_one_call_ahead() -> None:
    """A rank that left out a call meets the others' call with its next one, and the table shows both."""
    run(4, one_ahead, make_comm=False, env={"NICKEL_TIMEOUT": "2"})


def finalize_against(rank: int, nranks: int, unique_id: Any) -> None:
    comm, one = host_c.Comm(nranks, bytes(unique_id), rank), np.ones(1, np.float32)
    error = raised(comm.finalize) if rank == 0 else raised(comm.all_reduce, one, one)
    assert error.kind == "mismatch" and "ncclCommFinalize" in error.text and "ncclAllReduce" in error.text, error
    comm.barrier()
    comm.finalize()
    after = raised(comm.all_reduce, one, one)
    assert (after.code, after.kind) == (host_c.INVALID_ARGUMENT, "closed") and "finalized" in after.text, after
    assert raised(comm.finalize).code == host_c.INVALID_ARGUMENT
    comm.destroy()


def test_finalize() -> None:
    """ncclCommFinalize is a call like others: against another call it is a mismatch; together it ends the communicator, whose later calls
    are refused."""
    run(2, finalize_against, make_comm=False)


@forks.nursery()
def test_zero_count_on_one_rank() -> None:
    """A rank that passes count 0 alone returns at once; the others are told at once which rank it was, and the communicator has failed on
    all ranks, even when that rank goes on with another call at once."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], size: int, pause: float) -> float:
        host_c.set_timeout(5)
        comm, buffer = host_c.Comm(nranks, ids[0], rank), np.ones(size, np.float32)
        comm.barrier()
        begun = time.monotonic()
        if rank == 1:
            comm.all_reduce(buffer, buffer, count=0)
            returned = time.monotonic() - begun
            time.sleep(pause)
        else:
            error = raised(comm.all_reduce, buffer, buffer)
            assert (error.code, error.kind) == (INVALID_USAGE, "mismatch") and 1 in error.ranks and "count 0" in error.text, error
            returned = time.monotonic() - begun
            assert (buffer == 1).all()
        for _ in range(3):
            error = raised(comm.all_reduce, buffer, buffer)
            assert error.code == INVALID_USAGE, error
        time.sleep(0.1)
        comm.abort()
        return returned

    for size in (1, 50_000):
        for pause in (0.0, 0.0, 0.0, 0.2):
            for end in forks.fork(3, rank_main, size, pause):
                assert end.returned() < SOON
