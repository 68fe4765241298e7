"""Fresh interpreters with one or more ranks each: started, listened to, and killed with all that they have started."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .outcome import KILLED, RAISED, RETURNED, Outcome

CHILD = Path(__file__).with_name("child.py")
MOST_OUTPUT = 1 << 16  # bytes of a process's output that are kept, from its end
LOOK = 0.05  # seconds between looks for processes that have ended although somebody holds their pipe open


class Process:
    """One fresh interpreter, the pipe on which its ranks report, the pipe on which they get the id, and its output file."""

    def __init__(self, ranks: list[int], folder: Path, env: dict[str, str]) -> None:
        self.outcomes = {rank: Outcome(rank) for rank in ranks}
        self.received = bytearray()
        self.ended = False
        self.output = folder / f"output-{ranks[0]}"
        self.reader, child_writes = os.pipe()
        child_reads, self.writer = os.pipe()
        command = [sys.executable, str(CHILD), str(child_reads), str(child_writes), str(os.getpid()), str(folder / "task")]
        try:
            with open(self.output, "wb") as output:
                self.popen = subprocess.Popen(
                    [*command, *map(str, ranks)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(child_reads, child_writes),
                    env=env,
                    start_new_session=True,
                )
        except BaseException:
            os.close(self.reader)
            os.close(self.writer)
            raise
        finally:
            os.close(child_writes)
            os.close(child_reads)
        os.set_blocking(self.reader, False)

    def tell(self, message: bytes) -> None:
        """Send the id; it fits any pipe, and a child that is gone already is found by its exit status."""
        if not self.ended:  # else the pipe is closed, and its number may be another file's
            with contextlib.suppress(BrokenPipeError):
                os.write(self.writer, message)

    def messages(self) -> tuple[list[Any], bool]:
        """What has come in since the last time, and whether more may come."""
        more = True
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.reader, 1 << 20):
                self.received += chunk
            more = False
        return list(self.framed()), more

    def framed(self) -> Iterator[Any]:
        """The whole messages among the bytes that are there."""
        at = 0
        while len(self.received) >= at + 8:
            (size,) = struct.unpack_from("<Q", self.received, at)
            if len(self.received) < at + 8 + size:
                break
            yield pickle.loads(bytes(self.received[at + 8 : at + 8 + size]))
            at += 8 + size
        del self.received[:at]

    def has_ended(self) -> bool:
        """Whether it has, without reaping it: its process group keeps its number until then."""
        return self.ended or os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def wait(self, until: float) -> None:
        """Return when it has ended, or then."""
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.002)

    def abort(self) -> None:
        """Let its fault handler write every thread's stack to the output, and end it by that."""
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.popen.pid, signal.SIGABRT)

    def kill(self) -> None:
        """Kill its process group: itself and what it forked."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill and reap what is left of it, and note how it ended. Twice is harmless."""
        if self.ended:
            return
        self.kill()
        returncode = self.popen.wait()
        self.ended = True
        text = tail(self.output)
        for outcome in self.outcomes.values():
            outcome.returncode, outcome.output = returncode, text
        os.close(self.reader)
        os.close(self.writer)


def tail(file: Path) -> str:
    """The end of a file."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        opened.seek(max(0, size - MOST_OUTPUT))
        text = opened.read().decode(errors="replace")
    return text if size <= MOST_OUTPUT else f"(the first {size - MOST_OUTPUT} bytes are left out)\n{text}"


def collect(processes: list[Process], timeout: float, grace: float | None) -> None:
    """Take in every rank's outcome until all processes have ended, the timeout has passed, or `grace` after a failure."""
    until = time.monotonic() + timeout
    running = list(processes)
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.reader, selectors.EVENT_READ, process)
        while running and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(min(left, LOOK)):
                if not listen(key.data, processes):
                    selector.unregister(key.fd)
                    key.data.wait(time.monotonic() + LOOK)  # its pipe closes when it ends
            for process in list(running):
                if process.has_ended():
                    listen(process, processes)
                    running.remove(process)
                    if process.reader in selector.get_map():
                        selector.unregister(process.reader)
                    process.end()
                if has_failed(process) and grace is not None:
                    until, grace = min(until, time.monotonic() + grace), None
    end_late(running)


def listen(process: Process, everyone: list[Process]) -> bool:
    """Take in what it has said; False if it will say no more."""
    messages, more = process.messages()
    for name, *content in messages:
        if name == "id":
            for other in everyone:
                other.tell(content[0])
        else:
            take_in(process.outcomes[content[0]], name, content[1:])
    return more


def end_late(processes: list[Process]) -> None:
    """Kill those that are still there, after they have shown where they were."""
    for process in processes:
        for outcome in process.outcomes.values():
            outcome.late = True
            if outcome.status not in (RETURNED, RAISED):
                outcome.status = KILLED
        process.abort()
    until = time.monotonic() + 1
    for process in processes:
        process.wait(until)
    for process in processes:
        process.end()


def take_in(outcome: Outcome, status: str, content: list[Any]) -> None:
    """Note a rank's own report."""
    outcome.status = status
    pickled, outcome.traceback, outcome.when = content
    try:
        thing = pickle.loads(pickled) if pickled else None
    except Exception as error:  # what cannot be rebuilt here must not hide what the other ranks did
        if status == RETURNED:
            outcome.status, outcome.error = RAISED, error
            outcome.traceback = f"(what the function returned cannot be read by the caller: {type(error).__name__}: {error})"
        return
    if status == RETURNED:
        outcome.value = thing
    else:
        outcome.error = thing if isinstance(thing, BaseException) else None


def has_failed(process: Process) -> bool:
    """Whether one of its ranks has; one that ended without a word did so now."""
    failed = False
    for outcome in process.outcomes.values():
        if outcome.status == RAISED or (process.ended and not outcome.ok):
            failed = True
            outcome.when = outcome.when or time.monotonic()
    return failed
