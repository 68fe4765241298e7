"""The trace of the CPU library: every call of every rank as a line of JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_USAGE, SUCCESS, TIMEOUT, raised
from helpers.host_more import Comm
from helpers.order import Flag

FIELDS = {
    "start": float, "end": float, "pid": int, "tid": int, "comm": str, "rank": int, "nranks": int, "call": int, "operation": str,
    "count": int, "type": str, "op": str, "root": int, "bytes": int, "path": str, "result": int,
}  # fmt: skip


def read_trace(path: str) -> list[dict[str, Any]]:
    """All lines of a trace, which must be whole and have all fields of their types."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for line in lines:
        assert {name: type(value) for name, value in line.items()} == FIELDS, line
        assert 0 < line["start"] <= line["end"] <= time.monotonic(), line
    return lines


def calls(lines: list[dict[str, Any]], rank: int) -> list[tuple[Any, ...]]:
    """What a rank did, in order."""
    mine = sorted((line for line in lines if line["rank"] == rank), key=lambda line: line["end"])
    return [(one["operation"], one["count"], one["type"], one["op"], one["root"], one["bytes"], one["path"], one["result"]) for one in mine]


@forks.nursery()
def test_trace(tmp_path: Path) -> None:
    """Every call of every rank is one line: what it was, which communicator's and rank's, how the data went, when, and what came of it."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> int:
        comm = Comm(nranks, ids[0], rank)
        small, large = np.ones(4, np.float32), np.ones(50_000, np.int64)
        arena = host_c.empty(50_000, np.int64)
        comm.all_reduce(small, small, "max")
        comm.broadcast(large, large, 1)
        comm.all_reduce(arena, arena, "avg")
        comm.all_reduce(small, small, count=0)
        with host_c.group():
            comm.send(small, 1 - rank)
            comm.recv(large[:2], 1 - rank, type="float32", count=4)
        raised(comm.all_reduce, small, small, "sum", 3 + rank)
        comm.reduce(large, large, comm.pre_mul_sum(np.array([1], np.int64)), 1)
        comm.finalize()
        comm.destroy()
        return os.getpid()

    os.environ["NICKEL_TRACE"] = path = str(tmp_path / "trace")
    pids = forks.values(forks.fork(2, rank_main))
    lines = read_trace(path)
    assert {line["pid"] for line in lines} == set(pids) and len({line["comm"] for line in lines}) == 1
    for rank, pid in enumerate(pids):
        assert {(line["pid"], line["tid"], line["nranks"]) for line in lines if line["rank"] == rank} == {(pid, pid, 2)}
        mine = calls(lines, rank)
        assert mine[0][0] == "ncclCommInitRank"
        assert mine[1:5] == [
            ("ncclAllReduce", 4, "float32", "max", -1, 16, "inline", SUCCESS),
            ("ncclBroadcast", 50_000, "int64", "-", 1, 400_000, "staged", SUCCESS),
            ("ncclAllReduce", 50_000, "int64", "avg", -1, 400_000, "direct", SUCCESS),
            ("ncclAllReduce", 0, "float32", "sum", -1, 0, "", SUCCESS),
        ]
        assert sorted(mine[5:7]) == [
            ("ncclRecv", 4, "float32", "-", 1 - rank, 16, "inline", SUCCESS),
            ("ncclSend", 4, "float32", "-", 1 - rank, 16, "inline", SUCCESS),
        ]
        assert mine[7] == ("ncclAllReduce", 3 + rank, "float32", "sum", -1, 12 + 4 * rank, "", INVALID_USAGE)
        assert mine[8][:5] == ("ncclReduce", 50_000, "int64", "premulsum", 1)
        assert mine[9][0] == "ncclCommFinalize" and len(mine) == 10
        numbers = [line["call"] for line in lines if line["rank"] == rank and "Reduce" in line["operation"]]
        assert sorted(numbers) == [1, 3, 4, 5, 6]


@forks.nursery()
def test_trace_of_the_rest(tmp_path: Path) -> None:
    """Splits, windows, puts, waits and messages to oneself are in the trace, with a start, too; so are calls in the background, and those
    that fail; ranks as threads have lines of their own."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], told: Flag) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(2, np.float32)
        child = comm.split(0).learn()
        memory = host_c.empty(8, np.float64)
        window = comm.window(memory)
        comm.put(memory, rank, window)
        comm.wait_signal((1, rank))
        with host_c.group():
            comm.send(one, rank)
            comm.recv(one[::-1].copy(), rank)
        child.shrink([1 - rank]).learn()
        polled = Comm.ready(nranks, ids[1], rank)
        polled.all_reduce(one, one)
        polled.wait()
        comm.set_timeout(0.3)
        if rank == 0:
            raised(comm.barrier)
            told.set()
        told.wait()

    os.environ["NICKEL_TRACE"] = path = str(tmp_path / "trace")
    forks.values(forks.fork(2, rank_main, Flag(), ids=2))
    lines = read_trace(path)
    Path(path).write_text("")
    forks.values(forks.threads(3, lambda rank, nranks, ids: Comm(nranks, ids[0], rank).barrier()))
    threads = read_trace(path)
    for rank in (0, 1):
        names = [one[0] for one in calls(lines, rank)]
        for name in ("CommSplit", "CommWindowRegister", "PutSignal", "WaitSignal", "Send", "Recv", "CommShrink", "AllReduce"):
            assert f"nccl{name}" in names, (name, names)
    failed = [one for one in calls(lines, 0) if one[-1] == TIMEOUT]
    assert [one[0] for one in failed] == ["ncclAllReduce"]
    assert len({line["tid"] for line in threads}) == 3 and {line["rank"] for line in threads} == {0, 1, 2}


@forks.nursery()
def test_trace_of_many_at_once(tmp_path: Path) -> None:
    """Lines of several processes in one file stay whole, and those of a rank are in the order of its calls; a group's calls begin when
    they are queued."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        for _ in range(500):
            comm.all_reduce(one, one, "max")
        host_c.group_start()
        comm.all_reduce(one, one, "max")
        time.sleep(0.2)
        host_c.group_end()

    os.environ["NICKEL_TRACE"] = path = str(tmp_path / "trace")
    forks.values(forks.fork(4, rank_main))
    lines = read_trace(path)
    for rank in range(4):
        mine = [line for line in lines if line["rank"] == rank and line["operation"] == "ncclAllReduce"]
        assert [line["call"] for line in mine] == list(range(1, 502))
        assert all(before["end"] <= after["start"] for before, after in zip(mine, mine[1:], strict=False))
        assert mine[-1]["end"] - mine[-1]["start"] > 0.15


@forks.nursery()
def test_trace_that_cannot_be_written() -> None:
    """A trace in a folder that is not there is one warning and nothing else."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> str:
        log = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
        os.dup2(log, 2)
        comm = Comm(nranks, ids[0], rank)
        comm.barrier()
        comm.barrier()
        return os.pread(log, 4096, 0).decode()

    os.environ["NICKEL_TRACE"] = "/nowhere/at all"
    for text in forks.values(forks.fork(2, rank_main)):
        assert text.count("NICKEL_TRACE") == 1 and "/nowhere/at all" in text and text.count("\n") == 1
