"""`pynickel trace`: a NICKEL_TRACE file becomes a timeline, and a summary that names the slowest rank and the first difference."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pynickel import Communicator, InvalidUsageError, testing
from pynickel.tools.cli import main
from pynickel.tools.trace import records, summary


def line(rank: int, call: int, start: float, end: float, operation: str = "ncclAllReduce", **other: Any) -> str:
    """A line as the CPU library writes it."""
    fields = {
        "start": start, "end": end, "pid": 10 + rank, "tid": 20 + rank, "comm": "aa", "rank": rank, "nranks": 2, "call": call,
        "operation": operation, "count": 8, "type": "float32", "op": "sum", "root": -1, "bytes": 32, "path": "inline", "result": 0, **other,
    }  # fmt: skip
    return json.dumps(fields) + "\n"


def work(comm: Communicator) -> None:
    """Three all-reduces and a broadcast, then a call in which the ranks differ."""
    data = np.ones(1000, np.float32)
    for _ in range(3):
        comm.all_reduce(data)
    comm.broadcast(data)
    with pytest.raises(InvalidUsageError):
        comm.all_reduce(data, op="max" if comm.rank else "min")


def test_a_real_run(tmp_path: Path) -> None:
    """What two processes traced is shown whole: counts and bytes of each operation, and the call in which they differed, by rank."""
    file = tmp_path / "calls.jsonl"
    testing.run(2, work, env={"NICKEL_TRACE": str(file)})
    ended = CliRunner().invoke(main, ["trace", str(file)])
    assert ended.exit_code == 1, ended.output
    rows = {words[0]: words[1:] for words in map(str.split, ended.output.splitlines()) if words and words[0].startswith("nccl")}
    assert "of 4," in " ".join(rows["ncclAllReduce"]) and "of 1," in " ".join(rows["ncclBroadcast"])  # rounds, joining not counted
    assert rows["ncclAllReduce"][:2] == ["8", "32000"] and rows["ncclBroadcast"][:2] == ["2", "8000"]
    assert "ranks differ first in call 5" in ended.output
    assert "rank 0: ncclAllReduce of 1000 float32, op min" in ended.output
    assert "rank 1: ncclAllReduce of 1000 float32, op max" in ended.output
    events = json.loads((tmp_path / "calls.jsonl.timeline.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert {event["name"] for event in calls} >= {"ncclCommInitRank", "ncclAllReduce", "ncclBroadcast"}
    assert sorted(names) == ["rank 0", "rank 1"] and min(event["ts"] for event in calls) == 0


def test_the_slowest_rank(tmp_path: Path) -> None:
    """The rank for which the others waited longest is named, with how long; a cut last line is told and left out."""
    file = tmp_path / "t"
    file.write_text(
        line(0, 1, 1.0, 1.5) + line(1, 1, 1.4, 1.5) + line(0, 2, 2.0, 2.2) + line(1, 2, 2.1, 2.2) + line(0, 3, 3.2, 3.3)
        + line(1, 3, 3.0, 3.3) + '{"start": 4.0, "end'
    )  # fmt: skip
    found, bad = records.read(file)
    (all_reduce,) = summary.lines(found)
    assert bad == [7] and all_reduce.slowest == 1 and all_reduce.late == {1: 2, 0: 1}
    assert all_reduce.late_seconds[1] == pytest.approx(0.5) and all_reduce.waited == pytest.approx(0.7)
    ended = CliRunner().invoke(main, ["trace", str(file), "--json", "-o", str(tmp_path / "out")])
    content = json.loads(ended.output)
    assert ended.exit_code == 0 and content["operations"][0]["slowest_rank"] == 1 and content["bad_lines"] == [7]
    assert os.path.exists(tmp_path / "out")


def test_a_rank_without_the_call(tmp_path: Path) -> None:
    """A rank that never made a call is named as the first difference; messages between two ranks are numbered apart."""
    file = tmp_path / "t"
    file.write_text(line(0, 1, 1.0, 1.5) + line(1, 1, 1.4, 1.5) + line(0, 2, 2.0, 9.0, result=8) + line(0, 5, 1.0, 1.1, "ncclSend"))
    ended = CliRunner().invoke(main, ["trace", str(file)])
    assert ended.exit_code == 1 and "ranks differ first in call 2" in ended.output and "rank 1: no such call" in ended.output


def test_no_trace(tmp_path: Path) -> None:
    """A file without records says how to make one."""
    file = tmp_path / "t"
    file.write_text("hello\n")
    ended = CliRunner().invoke(main, ["trace", str(file)])
    assert ended.exit_code == 1 and f"NICKEL_TRACE={file}" in ended.output


def test_the_trace_is_not_overwritten(tmp_path: Path) -> None:
    """A timeline is not written over the trace, under whatever name, nor where nothing can be written."""
    file = tmp_path / "t"
    file.write_text(line(0, 1, 1.0, 1.5))
    (tmp_path / "link").symlink_to(file)
    own = "the trace itself"
    for place, said in ((file, own), (tmp_path / "link", own), (tmp_path / "none" / "x", "cannot be written")):
        ended = CliRunner().invoke(main, ["trace", str(file), "-o", str(place)])
        assert ended.exit_code == 1 and said in ended.output
    assert file.read_text() == line(0, 1, 1.0, 1.5)
