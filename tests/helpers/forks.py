"""Ranks as children forked from one small fresh interpreter: cheap enough for hundreds of rounds in which some are killed."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import gc
import mmap
import os
import pickle
import resource
import selectors
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from helpers import host_c
from helpers.host_c import HostError
from helpers.ranks import by_value, run

Test = TypeVar("Test", bound=Callable[..., None])
SILENT = "ended without a word"
_say: int | None = None  # in a forked rank: the pipe to the nursery


def nursery(deadline: float = 20.0) -> Callable[[Test], Test]:
    """Run the test's body in a fresh interpreter of one thread, which may fork ranks; it and they are killed at the deadline."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def in_nursery(**given: Any) -> None:
            by_value(test)
            run(1, call, test, given, make_comm=False, deadline=deadline)

        return in_nursery  # type: ignore[return-value]

    return decorate


def call(rank: int, nranks: int, unique_id: Any, test: Callable[..., None], given: dict[str, Any]) -> None:
    """What helpers.ranks calls in the nursery."""
    test(**given)


@dataclass
class End:
    """How a rank ended: a value, an error of the library, a signal, or (`late`) not at all before the deadline, and after how long."""

    rank: int
    value: Any = None
    error: HostError | None = None
    trace: str = ""
    signal: int = 0
    late: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        what = (
            "was still running" if self.late else f"signal {self.signal}" if self.signal else self.error or self.trace or repr(self.value)
        )
        return f"rank {self.rank} after {self.seconds:.2f} s: {what}"

    def failed(self, code: int, kind: str, *words: str, ranks: Iterable[int] | None = None) -> End:
        """Make sure that the library gave this error, with these words in its text, and named these ranks."""
        error = self.error
        if error is None or (error.code, error.kind) != (code, kind) or any(word not in error.text for word in words):
            raise AssertionError(f"expected code {code}, kind {kind!r}, {words}:\n{self}")
        if ranks is not None and sorted(error.ranks) != sorted(ranks):
            raise AssertionError(f"expected an error about ranks {list(ranks)}:\n{self}")
        return self

    def returned(self) -> Any:
        """The value, if there is one and nothing else."""
        if self.error or self.trace or self.signal or self.late:
            raise AssertionError(f"expected a value:\n{self}")
        return self.value


class Forked:
    """n ranks, each a forked child that calls function(rank, n, ids, *args), with `ids` unique ids that rank 0 made."""

    def __init__(self, nranks: int, function: Callable[..., Any], *args: Any, ids: int = 1) -> None:
        self.begun = time.monotonic()
        self.heard: list[str] = []
        self.pids: list[int] = []
        self.pipes: list[int] = []
        id_pipe = os.pipe()
        board = mmap.mmap(-1, max(128 * ids, 1))

        def call(rank: int) -> Any:
            return function(rank, nranks, share(rank, nranks, ids, board, *id_pipe), *args)

        for rank in range(nranks):
            reader, writer = os.pipe()
            sys.stdout.flush()  # or each rank would write again what is waiting here
            pid = os.fork()
            if pid == 0:
                become_rank(writer, [reader, *self.pipes], functools.partial(call, rank))
            os.close(writer)
            self.pipes.append(reader)
            self.pids.append(pid)
        for pipe in id_pipe:
            os.close(pipe)
        self.buffers = [bytearray() for _ in self.pids]
        self.result = [End(rank, trace=SILENT) for rank in range(nranks)]
        self.open = set(range(nranks))

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for rank in sorted(self.open):
            self.close(rank, late=True)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank."""
        os.kill(self.pids[rank], number)

    def stop(self, rank: int) -> None:
        """Stop a rank where it is; it has stopped when this returns."""
        self.kill(rank, signal.SIGSTOP)
        os.waitpid(self.pids[rank], os.WUNTRACED)

    def wait_for(self, word: str, times: int = 1, deadline: float = 5.0) -> None:
        """Wait until ranks have said the word so often."""
        until = time.monotonic() + deadline
        while self.heard.count(word) < times:
            if time.monotonic() > until or not self.open:
                raise AssertionError(f"{word!r} was not said {times} times: {self.heard}\n" + "\n".join(map(str, self.result)))
            self.listen(0.05)

    def ends(self, deadline: float = 10.0) -> list[End]:
        """Wait for all; who is late is killed."""
        until = time.monotonic() + deadline
        while self.open and (left := until - time.monotonic()) > 0:
            self.listen(left)
        self.__exit__(None, None, None)
        return self.result

    def listen(self, seconds: float) -> None:
        """Take in what ranks say, and their ends."""
        with selectors.DefaultSelector() as selector:
            for rank in self.open:
                selector.register(self.pipes[rank], selectors.EVENT_READ, rank)
            ready = [key.data for key, _ in selector.select(seconds)]
        for rank in ready:
            chunk = os.read(self.pipes[rank], 1 << 16)
            self.buffers[rank] += chunk
            self.parse(rank)
            if not chunk:
                self.close(rank, late=False)

    def parse(self, rank: int) -> None:
        buffer = self.buffers[rank]
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack_from("<I", buffer)[0]):
            message = pickle.loads(bytes(buffer[4 : 4 + size]))
            del buffer[: 4 + size]
            if isinstance(message, str):
                self.heard.append(message)
            else:
                value, error, trace, at = message
                self.result[rank] = End(rank, value, error, trace, seconds=at - self.begun)

    def close(self, rank: int, late: bool) -> None:
        """Reap a rank; one that has closed its pipe is about to end, or has become another program."""
        end = self.result[rank]
        end.seconds = end.seconds or time.monotonic() - self.begun  # unless it has said so itself
        until = time.monotonic() + (0.0 if late else 0.5)
        while (status := os.waitpid(self.pids[rank], os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.001)
        if status == (0, 0):
            end.late = late and end.trace == SILENT
            os.kill(self.pids[rank], signal.SIGKILL)
            os.waitpid(self.pids[rank], 0)
        elif os.WIFSIGNALED(status[1]):
            end.signal = os.WTERMSIG(status[1])
        os.close(self.pipes[rank])
        self.open.discard(rank)


def fork(nranks: int, function: Callable[..., Any], *args: Any, ids: int = 1, deadline: float = 10.0) -> list[End]:
    """How n forked ranks ended."""
    with Forked(nranks, function, *args, ids=ids) as ranks:
        return ranks.ends(deadline)


def values(ends: list[End]) -> list[Any]:
    """What ranks returned; if one did not, how all of them ended."""
    if any(end.error or end.trace or end.signal or end.late for end in ends):
        raise AssertionError("\n".join(["expected values:", *map(str, ends)]))
    return [end.value for end in ends]


def say(word: str) -> None:
    """In a forked rank: let the nursery know where it is."""
    if _say is None:
        raise RuntimeError("say() is for forked ranks")
    data = pickle.dumps(word)
    os.write(_say, struct.pack("<I", len(data)) + data)


def become_rank(writer: int, others: list[int], function: Callable[[], Any]) -> None:
    """The forked child: close what belongs to others, call, report, end without the interpreter's farewells."""
    global _say
    _say = writer
    for pipe in others:
        os.close(pipe)
    data = pickle.dumps((*outcome(function), time.monotonic()))
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(writer, data) :]
    sys.stdout.flush()
    os._exit(0)


def outcome(function: Callable[[], Any]) -> tuple[Any, HostError | None, str]:
    """The value, the library's error, or the traceback of any other exception."""
    try:
        return function(), None, ""
    except HostError as error:
        return None, error, ""
    except BaseException:
        return None, None, traceback.format_exc()


def share(rank: int, nranks: int, count: int, board: mmap.mmap, reader: int, writer: int) -> list[bytes]:
    """Rank 0 makes the ids and shows them to the others, which need not take turns in reading; if it ends before, they get an exception."""
    if rank == 0:
        for start in range(0, 128 * count, 128):
            board[start : start + 128] = host_c.unique_id()
        os.write(writer, b"." * (nranks - 1))
    os.close(writer)
    if rank != 0 and not os.read(reader, 1):
        raise EOFError("rank 0 ended before it had made the ids")
    os.close(reader)
    return [board[start : start + 128] for start in range(0, 128 * count, 128)]


def threads(nranks: int, function: Callable[..., Any], *args: Any, ids: int = 1, deadline: float = 10.0) -> list[End]:
    """How n ranks ended that are threads of this process.

    Their kernel threads have ended, too: who forks while one of them is ending copies the locks of a sanitizer's allocator as they are.
    """
    before = len(os.listdir("/proc/self/task"))
    made = [host_c.unique_id() for _ in range(ids)]
    ends = [End(rank, late=True) for rank in range(nranks)]
    begun = time.monotonic()

    def one(rank: int) -> None:
        value, error, trace = outcome(lambda: function(rank, nranks, made, *args))
        ends[rank] = End(rank, value, error, trace, seconds=time.monotonic() - begun)

    workers = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(nranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, begun + deadline - time.monotonic()))
    if not any(worker.is_alive() for worker in workers):
        threads_left(before)
    return list(ends)


def mappings() -> int:
    """How often this process has mapped the library's shared memory."""
    return Path("/proc/self/maps").read_text().count("memfd:nickel")


def threads_left(most: int) -> int:
    """How many threads this process has, as soon as they are no more than `most`, or after five seconds: one that has been joined stands in
    the kernel's list a moment longer, and one that nobody joins ends in its own time."""
    until = time.monotonic() + 5
    while (number := len(os.listdir("/proc/self/task"))) > most and time.monotonic() < until:
        time.sleep(0.001)
    return number


def holds(before: dict[str, int] | None = None) -> dict[str, int]:
    """What this process holds: descriptors, the library's shared memory, threads; those that were not there `before` have time to end."""
    gc.collect()
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    return {
        "descriptors": len(links),
        "memfds": sum("memfd:nickel" in link for link in links),
        "mappings": mappings(),
        "threads": threads_left(before["threads"] if before else 1 << 20),
    }


def no_more_descriptors(but: int = 0) -> None:
    """Lower this process's limit so that it can open only so many files more."""
    opened = [os.dup(0) for _ in range(but + 1)]
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
