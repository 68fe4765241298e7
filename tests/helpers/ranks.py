"""Run a function on n ranks, each in a fresh interpreter or thread, and never hang: survivors are killed before anything is reported."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import cloudpickle

CHILD = Path(__file__).with_name("rank_main.py")
TESTS = Path(__file__).resolve().parent.parent
GRACE = 2.0  # seconds that the other ranks of `run` have, after the first failure, to tell their own story


@dataclass
class Outcome:
    """How one rank ended: `status` is "returned", "raised", "ended" (its process died first) or "killed" (at the deadline)."""

    rank: int
    status: str = "ended"
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    returncode: int | None = None
    output: str = ""

    @property
    def ok(self) -> bool:
        """Whether the function returned and the process ended well after it."""
        return self.status == "returned" and self.returncode == 0

    def __str__(self) -> str:
        what = {
            "returned": f"returned {self.value!r:.200}",
            "raised": f"raised:\n{self.traceback.rstrip()}",
            "ended": f"ended before it returned: {how_it_ended(self.returncode)}",
            "killed": "did not end in time and was killed",
        }[self.status]
        if self.status == "returned" and self.returncode != 0:
            what += f", but its process then ended with {how_it_ended(self.returncode)}"
        output = f"\n  its output:\n{self.output.rstrip()}" if self.output.strip() and not self.ok else ""
        return f"rank {self.rank} {what}{output}".replace("\n", "\n  ")


class RankError(AssertionError):
    """At least one rank did not return; the text shows what became of every one, and `outcomes` holds it."""

    def __init__(self, outcomes: list[Outcome], how: str) -> None:
        self.outcomes = outcomes
        failed = sum(not outcome.ok for outcome in outcomes)
        super().__init__("\n".join([f"{failed} of {len(outcomes)} ranks failed ({how}):", *map(str, outcomes)]))


def run(
    nranks: int,
    function: Callable[..., Any],
    *args: Any,
    deadline: float = 10.0,
    kind: str = "processes",
    library: str | None = None,
    make_comm: bool = True,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """What `function` returned on each rank; RankError if any rank did not return.

    Each rank calls `function(comm, *args)` with a ready Communicator, or, with make_comm=False,
    `function(rank, nranks, unique_id, *args)`. The id is made by rank 0's process. A function may come from a
    test module: it travels by value.
    """
    ends = outcomes(
        nranks, function, *args, deadline=deadline, kind=kind, library=library, make_comm=make_comm, env=env, grace=GRACE
    )
    if not all(end.ok for end in ends):
        raise RankError(ends, f"{kind}, deadline {deadline:g} s")
    return [end.value for end in ends]


def outcomes(
    nranks: int,
    function: Callable[..., Any],
    *args: Any,
    deadline: float = 10.0,
    kind: str = "processes",
    library: str | None = None,
    make_comm: bool = True,
    env: Mapping[str, str] | None = None,
    grace: float | None = None,
) -> list[Outcome]:
    """How each rank ended, for tests in which some are meant to fail; raises nothing about the ranks."""
    by_value(function)
    task = cloudpickle.dumps((function, args))
    with tempfile.TemporaryDirectory() as folder:
        processes: list[Process] = []
        try:
            for ranks in placement(nranks, kind):
                header = (ranks, nranks, make_comm, sys.path)
                processes.append(Process(header, task, environment(library, deadline, env), Path(folder)))
            collect(processes, deadline, grace)
        finally:
            for process in processes:
                process.end()
    found = {outcome.rank: outcome for process in processes for outcome in process.outcomes.values()}
    return [found[rank] for rank in range(nranks)]


def placement(nranks: int, kind: str) -> list[list[int]]:
    """Which ranks share a process."""
    ranks = list(range(nranks))
    if kind == "processes":
        return [[rank] for rank in ranks]
    if kind == "threads":
        return [ranks]
    if kind == "mixed":
        return [part for part in (ranks[::2], ranks[1::2]) if part]
    raise ValueError(f"kind must be 'processes', 'threads' or 'mixed', not {kind!r}")


def environment(library: str | None, deadline: float, extra: Mapping[str, str] | None) -> dict[str, str]:
    """The children's environment: the library by name, and a deadline of its own, so that it can say who is missing before we kill."""
    env = {**os.environ, "PYNICKEL_LIBRARY": library or "host", "PYTHONUNBUFFERED": "1"}
    env.setdefault("NICKEL_TIMEOUT", str(max(1, int(deadline * 0.8))))
    return {**env, **(extra or {})}


def by_value(function: Callable[..., Any]) -> None:
    """Let a function of a test module travel by value, so that children import neither the test nor pytest."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    folder = Path(path).resolve().parent if path else None
    if module is not None and folder is not None and (folder == TESTS or TESTS in folder.parents) and folder != CHILD.parent:
        cloudpickle.register_pickle_by_value(module)


class Process:
    """One fresh interpreter with one or more ranks, its two pipes and its output file."""

    def __init__(self, header: tuple[Any, ...], task: bytes, env: dict[str, str], folder: Path) -> None:
        self.outcomes = {rank: Outcome(rank) for rank in header[0]}
        self.received = bytearray()
        self.log: IO[bytes] = open(folder / f"output-{header[0][0]}", "w+b")
        from_child, child_writes = os.pipe()
        child_reads, to_child = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, str(CHILD), str(child_reads), str(child_writes), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=subprocess.STDOUT,
                pass_fds=(child_reads, child_writes),
                env=env,
                start_new_session=True,
            )
        finally:
            os.close(child_writes)
            os.close(child_reads)
        self.reader = open(from_child, "rb", buffering=0)
        self.writer = open(to_child, "wb", buffering=0)
        self.tell(pickle.dumps(header), task)

    def tell(self, *messages: bytes) -> None:
        """Send framed messages; a child that is gone already is found by its exit status."""
        try:
            for message in messages:
                self.writer.write(struct.pack("<Q", len(message)) + message)
        except BrokenPipeError:
            return

    def messages(self) -> list[Any] | None:
        """What has come in since the last time; None at the end of the stream."""
        chunk = self.reader.read(1 << 20)
        self.received += chunk
        found = []
        while len(self.received) >= 8:
            (size,) = struct.unpack_from("<Q", self.received)
            if len(self.received) < 8 + size:
                break
            found.append(pickle.loads(bytes(self.received[8 : 8 + size])))
            del self.received[: 8 + size]
        return found if found or chunk else None

    def end(self, stack: bool = False) -> None:
        """Kill what is left of the process and of everything it started, reap it, and note how it ended. Twice is harmless."""
        if self.log.closed:
            return
        if stack and self.popen.poll() is None:
            os.kill(self.popen.pid, signal.SIGABRT)  # its fault handler writes every thread's stack
            wait_for_exit(self.popen.pid, 1.0)
        kill_group(self.popen.pid)
        returncode = self.popen.wait()
        self.log.seek(0)
        output = self.log.read().decode(errors="replace")
        for outcome in self.outcomes.values():
            outcome.returncode = returncode
            outcome.output = output
        for file in (self.log, self.reader, self.writer):
            file.close()


def collect(processes: list[Process], deadline: float, grace: float | None) -> None:
    """Take in every rank's outcome until all processes have ended, the deadline has passed, or `grace` after a failure."""
    until = time.monotonic() + deadline
    failed = False
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.reader, selectors.EVENT_READ, process)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                process = key.data
                messages = process.messages()
                if messages is None:
                    selector.unregister(process.reader)
                    wait_for_exit(process.popen.pid, until - time.monotonic())
                    process.end()
                for name, *content in messages or []:
                    if name == "id":
                        for other in processes:
                            other.tell(content[0])
                    else:
                        take_in(process.outcomes[content[0]], name, content[1:])
                if grace is not None and not failed and any_failed(process, messages is None):
                    failed, until = True, min(until, time.monotonic() + grace)
        late = [key.data for key in selector.get_map().values()]
    for process in late:
        for outcome in process.outcomes.values():
            if outcome.status == "ended":
                outcome.status = "killed"
        process.end(stack=True)


def take_in(outcome: Outcome, status: str, content: list[Any]) -> None:
    """Note a rank's own report."""
    outcome.status = status
    try:
        if status == "returned":
            outcome.value = pickle.loads(content[0])
        else:
            outcome.traceback = content[1]
            outcome.error = pickle.loads(content[0]) if content[0] else None
    except Exception as error:  # a value that cannot be rebuilt here must not hide what the other ranks did
        outcome.status, outcome.error = "raised", error
        outcome.traceback = outcome.traceback or f"(what the rank sent cannot be read: {error!r})"


def any_failed(process: Process, ended: bool) -> bool:
    """Whether a rank of this process has reported or shown a failure."""
    return any(outcome.status == "raised" or (ended and not outcome.ok) for outcome in process.outcomes.values())


def wait_for_exit(pid: int, seconds: float) -> None:
    """Wait until the child is a zombie, without reaping it: its process group keeps its number until then."""
    until = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < until:
        time.sleep(0.005)


def kill_group(pid: int) -> None:
    """Kill the child's process group: itself and what it forked."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def how_it_ended(returncode: int | None) -> str:
    """An exit status in words."""
    if returncode is not None and returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"
