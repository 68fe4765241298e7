"""What a rank's process runs: makes its communicators, calls the function once per rank, and reports each rank by a pipe."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def main() -> None:
    """Read the task, give rank 0's id to all, run this process's ranks."""
    reader, writer, parent = map(int, sys.argv[1:4])
    die_with_parent(parent)
    for pipe in (reader, writer):
        os.set_inheritable(pipe, False)  # what the function starts shall not keep them open
    faulthandler.enable(os.dup(2))  # which stays where it is when the function puts something else in the place of stderr
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    report = Report(writer)
    ranks = list(map(int, sys.argv[5:]))
    try:
        with open(sys.argv[4], "rb") as task:
            nranks, communicator, sys.path[:] = pickle.load(task)
            sys.argv[1:] = []
            function, args = pickle.load(task)
        import pynickel

        if 0 in ranks:
            report.send("id", bytes(pynickel.UniqueId.create()))
        unique_id = pynickel.UniqueId(read(reader, 128))
    except BaseException as error:
        for rank in ranks:
            report.raised(rank, error)
        return

    def one_rank(rank: int) -> None:
        report.outcome(rank, lambda: with_comm(rank) if communicator else function(rank, nranks, unique_id, *args))

    def with_comm(rank: int) -> Any:
        with pynickel.Communicator(nranks, unique_id, rank) as comm, report.failures(rank):
            return function(comm, *args)

    run_ranks(ranks, one_rank)


def run_ranks(ranks: list[int], one_rank: Callable[[int], None]) -> None:
    """A lone rank has the main thread, so that signals reach it; several have a thread each."""
    if len(ranks) == 1:
        return one_rank(ranks[0])
    threads = [threading.Thread(target=one_rank, args=(rank,), name=f"rank {rank}") for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Report:
    """The pipe to the parent: framed messages, whole even when several threads write."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.lock = threading.Lock()
        self.failed_at: dict[int, float] = {}

    def send(self, *message: Any) -> None:
        """Write one message."""
        data = memoryview(pickle.dumps(message))
        with self.lock:
            os.write(self.pipe, struct.pack("<Q", len(data)))
            while data:
                data = data[os.write(self.pipe, data) :]

    @contextmanager
    def failures(self, rank: int) -> Iterator[None]:
        """Note when the body fails: before its communicator is aborted, which makes the others fail."""
        try:
            yield
        except BaseException:
            self.failed_at[rank] = time.monotonic()
            raise

    def outcome(self, rank: int, call: Callable[[], Any]) -> None:
        """Call and report what came of it."""
        import cloudpickle  # type: ignore[import-untyped]

        try:
            value = call()
            try:
                pickled = cloudpickle.dumps(value)
            except Exception as error:
                raise TypeError(f"what the function returned, a {type(value).__name__}, cannot be pickled: {error}") from error
        except BaseException as error:
            self.raised(rank, error)
        else:
            self.send("returned", rank, pickled, "", 0.0)

    def raised(self, rank: int, error: BaseException) -> None:
        """Report an exception: itself where it can be pickled, its traceback always."""
        try:
            import cloudpickle

            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # an error with a handle inside, or one that cannot be rebuilt: its text is enough
            pickled = b""
        self.send("raised", rank, pickled, text_of(error), self.failed_at.get(rank) or time.monotonic())


def text_of(error: BaseException) -> str:
    """The traceback from the function on; the frames of this folder say nothing to its author."""
    trace = error.__traceback__
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except Exception as failure:  # its own __str__ raised
        return f"{type(error).__name__} (its text cannot be had: {failure!r})"


def read(pipe: int, size: int) -> bytes:
    """That many bytes from the parent; the end of the stream means that it is gone."""
    data = b""
    while len(data) < size:
        chunk = os.read(pipe, size - len(data))
        if not chunk:
            sys.exit("the parent of this rank is gone")
        data += chunk
    return data


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the one that waits for it ends, however it ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent of this rank is gone")


if __name__ == "__main__":
    main()
