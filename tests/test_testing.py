"""pynickel.testing: values in rank order, every rank's story when one fails, and nothing left behind, whatever the ranks do."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes

from pynickel import testing
from pynickel.testing import RankError, outcomes, process, run


def whoami(comm: Any, extra: str) -> tuple[int, int, str, int]:
    return comm.rank, comm.nranks, extra, os.getpid()


@pytest.mark.parametrize(("ranks", "processes"), [("processes", 3), ("threads", 1), ("mixed", 2)])
def test_values_in_rank_order(ranks: str, processes: int) -> None:
    """Each rank has a communicator of its own and its value comes back at its place; `ranks` says how many processes there are."""
    values = run(3, whoami, "x", ranks=ranks)
    assert [value[:3] for value in values] == [(rank, 3, "x") for rank in range(3)]
    assert len({value[3] for value in values}) == processes
    assert os.getpid() not in {value[3] for value in values}


def without_comm(rank: int, n: int, unique_id: Any) -> tuple[int, int, int]:
    return rank, n, len(bytes(unique_id))


def test_without_communicator() -> None:
    """With communicator=False a rank gets its number, their number and an id."""
    assert run(2, without_comm, communicator=False) == [(0, 2, 128), (1, 2, 128)]


class Pair:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


def test_what_travels(capsys: pytest.CaptureFixture[str]) -> None:
    """Closures, lambdas and classes of a test file go to the ranks and come back as themselves; what ranks print is shown by rank."""
    scale = 3

    def closure(comm: Any, pair: Pair) -> tuple[Pair, Any, str | None]:
        print("from the rank")
        return Pair(comm.all_reduce(pair.array * scale)), lambda x: x * scale, os.environ.get("GONE")

    os.environ["GONE"] = "here"
    try:
        values = run(2, closure, Pair(np.ones(3)), env={"GONE": None})
    finally:
        del os.environ["GONE"]
    assert all(type(pair) is Pair and pair.array.tolist() == [6.0] * 3 and function(2) == 6 for pair, function, _ in values)
    assert [gone for *_, gone in values] == [None, None]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] from the rank", "[rank 1] from the rank"]
    assert run(1, lambda comm: comm.nranks) == [1]


class Unhappy(Exception):
    """Cannot be pickled, and needs two arguments."""

    def __init__(self, rank: int, lock: Any) -> None:
        super().__init__(f"rank {rank} is unhappy")
        self.lock = lock


def many_ends(rank: int, n: int, unique_id: Any) -> Any:
    if rank == 0:
        return "fine"
    if rank == 1:
        raise Unhappy(1, threading.Lock())
    if rank == 2:
        print("rank two says goodbye")
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        os._exit(7)
    if rank == 4:
        sys.exit("I leave")
    if rank == 5:
        return threading.Lock()
    raise KeyboardInterrupt


def test_failure_tells_every_rank() -> None:
    """A failure shows of each rank its value, traceback, exit status, signal, last words, and what of it cannot be pickled."""
    ends = outcomes(7, many_ends, communicator=False)
    text = str(RankError(ends, "here"))
    for part in (
        "6 of 7 ranks failed", "rank 0 returned 'fine'", "Unhappy: rank 1 is unhappy", "in many_ends", "raise Unhappy(1, threading.Lock())",
        "rank 2 ended before it returned: signal SIGKILL", "output of rank 2:\n  rank two says goodbye",
        "rank 3 ended before it returned: exit status 7", "SystemExit: I leave",
        "TypeError: what the function returned, a lock, cannot be pickled", "KeyboardInterrupt",
    ):  # fmt: skip
        assert part in text, part
    assert [end.status for end in ends] == ["returned", "raised", "ended", "ended", "raised", "raised", "raised"]
    assert (ends[0].ok, ends[1].error, ends[2].returncode, ends[3].returncode) == (True, None, -9, 7)
    assert isinstance(ends[4].error, SystemExit) and isinstance(ends[6].error, KeyboardInterrupt)
    assert [end.when > 0 for end in ends] == [False] + [True] * 6


def one_raises(comm: Any) -> None:
    if comm.rank == 1:
        raise ValueError("rank one is unhappy")
    comm.barrier()


@pytest.mark.parametrize("ranks", ["processes", "threads"])
def test_the_first_failure(ranks: str) -> None:
    """The error names the rank that failed first, whose exception is its cause; the others, who waited for it, say whom they lost."""
    with pytest.raises(RankError, match="3 of 3 ranks failed; rank 1 was the first") as caught:
        run(3, one_raises, ranks=ranks)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.first.rank == 1
    assert str(caught.value).count("RemoteError") >= 2


def hangs(rank: int, n: int, unique_id: Any, folder: str) -> None:
    grandchild = subprocess.Popen(["sleep", "60"])
    Path(folder, str(rank)).write_text(f"{os.getpid()} {grandchild.pid}")
    if rank == 0:
        time.sleep(60)
    ctypes.PyDLL(None).sleep(60)  # in C, with the GIL held


def test_timeout_kills_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the timeout the ranks and what they started are gone, and the error shows where each was, in Python or in C."""
    started = time.monotonic()

    class Clock:
        """The timeout passes when the ranks hang."""

        sleep = time.sleep

        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + 30 * have_written(tmp_path, "0", "1")

    monkeypatch.setattr(process, "time", Clock)
    ends = outcomes(2, hangs, str(tmp_path), communicator=False, timeout=30)
    assert time.monotonic() - started < 25
    assert [end.status for end in ends] == ["killed", "killed"]
    assert all("in hangs" in end.output for end in ends)
    pids = [int(pid) for rank in "01" for pid in (tmp_path / rank).read_text().split()]
    assert len(pids) == 4
    gone_soon(pids)


def have_written(folder: Path, *names: str) -> bool:
    """Whether these files are there with what they say."""
    return all((folder / name).exists() and (folder / name).read_text() for name in names)


def unpleasant(rank: int, n: int, unique_id: Any, folder: Path) -> str:
    if rank == 0:
        (folder / "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 1 and (pid := os.fork()) == 0:
        time.sleep(60)
    if rank == 1:
        (folder / "fork").write_text(str(pid))
        while not have_written(folder, "stopped", "returns"):
            time.sleep(0.01)
        os._exit(3)
    threading.Thread(target=time.sleep, args=(60,)).start()
    (folder / "returns").write_text("at once")
    return "done"


def test_unpleasant_ends(tmp_path: Path) -> None:
    """A stopped rank is killed, one whose fork holds its pipe is not waited for, and a thread that keeps a process alive is told."""
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        run(3, unpleasant, tmp_path, communicator=False)
    ends = caught.value.outcomes
    assert time.monotonic() - started < 25
    assert [(end.status, end.ok, end.late) for end in ends] == [
        ("killed", False, True), ("ended", False, False), ("returned", False, True),
    ]  # fmt: skip
    assert ends[1].returncode == 3
    assert "rank 2 returned 'done', but its process did not end in time and was killed" in str(ends[2])
    gone_soon([int((tmp_path / name).read_text()) for name in ("stopped", "fork")])


def ends_while_loading(folder: Path) -> None:
    """Rank 1 ends before there is an id, and rank 0 makes that when the end has been noticed."""
    rank = Path("/proc/self/cmdline").read_text().split("\0")[-2]
    if rank == "1":
        (folder / "pid").write_text(str(os.getpid()))
        os._exit(3)
    while rank == "0" and not (have_written(folder, "pid") and not Path("/proc", (folder / "pid").read_text()).exists()):
        time.sleep(0.01)
    time.sleep(0.2)


class Loading:
    """An argument that takes its time where it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return ends_while_loading, (self.folder,)


def test_an_end_before_there_is_an_id(tmp_path: Path) -> None:
    """A rank whose process has ended is not told the id any more: its pipe is closed, and may be somebody else's file by now."""
    ends = outcomes(3, lambda rank, *given: rank, Loading(tmp_path), communicator=False)
    assert [(end.status, end.returncode, end.value) for end in ends] == [("returned", 0, 0), ("ended", 3, None), ("returned", 0, 2)]


def bad_endings(rank: int, n: int, unique_id: Any) -> None:
    import atexit

    print("x" * 200_000 + "the end")
    atexit.register(os._exit, 3)


def test_failure_after_the_value_counts() -> None:
    """A process that ends badly after its ranks have returned is a failure; of very long output the end is kept."""
    (end,) = outcomes(1, bad_endings, communicator=False)
    assert (end.status, end.returncode, end.ok) == ("returned", 3, False)
    assert len(end.output) < 70_000 and end.output.rstrip().endswith("xthe end")


def nested(comm: Any) -> list[int]:
    return [comm.all_reduce(np.ones(1))[0], *testing.run(2, lambda inner: inner.rank)]


def test_nested_and_from_threads() -> None:
    """A rank can run ranks of its own, and several threads can run ranks at the same time."""
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(run(2, nested)), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [[[2.0, 0, 1]] * 2] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"n": 0}, ValueError, "n must be at least 1 rank, not 0"),
        ({"n": True}, TypeError, "n must be an int"),
        ({"function": 3}, TypeError, "function must be callable"),
        ({"ranks": "fibres"}, ValueError, "'processes', 'threads' or 'mixed', not 'fibres'"),
        ({"timeout": 0}, ValueError, "above 0 seconds and finite"),
        ({"timeout": "1"}, TypeError, "number of seconds"),
        ({"function": threading.Lock().__enter__}, TypeError, "cannot be sent to the ranks"),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    """What cannot be run is refused in words before anything is started."""
    given = {"n": 1, "function": whoami, **arguments}
    with pytest.raises(error, match=words):
        run(given.pop("n"), given.pop("function"), **given)


SLEEPERS = """
import os, sys, threading, time
from pynickel.testing import run

path = sys.argv[1]

def body(comm):
    open(f"{path}{comm.rank}", "w").close()
    time.sleep(60)

def tell():
    while not all(os.path.exists(f"{path}{rank}") for rank in range(2)):
        time.sleep(0.02)
    print("both", flush=True)

threading.Thread(target=tell, daemon=True).start()
run(2, body)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_caller(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C ends the ranks before KeyboardInterrupt is seen, and a caller that is killed takes them along."""
    with processes.Script(SLEEPERS, str(tmp_path / "started")) as script:
        script.wait_for("both", 20)
        script.signal(number)
        result = script.finish()
    assert result.left == []
    assert ("KeyboardInterrupt" in result.stderr) == (number == signal.SIGINT)


def gone_soon(pids: list[int]) -> None:
    """Processes of a killed group end in their own time, and are reaped by init."""
    until = time.monotonic() + 15
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
