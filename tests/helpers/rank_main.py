"""The child of helpers.ranks: makes this process's communicators, calls the function once per rank and reports each rank by a pipe."""
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
import traceback
from collections.abc import Callable
from typing import IO, Any


def main() -> None:
    """Read the task, give rank 0's id to all, run this process's ranks."""
    reader = open(int(sys.argv[1]), "rb")
    writer = open(int(sys.argv[2]), "wb", buffering=0)
    die_with_parent(int(sys.argv[3]))
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ranks, nranks, make_comm, sys.path = pickle.loads(read(reader))
    report = Report(writer)
    try:
        import cloudpickle  # noqa: F401  (functions that come by value need it)

        function, args = pickle.loads(read(reader))
        import pynickel

        if 0 in ranks:
            report.send("id", bytes(pynickel.UniqueId.create()))
        unique_id = pynickel.UniqueId(read(reader))
    except BaseException as error:
        for rank in ranks:
            report.raised(rank, error)
        return

    def one_rank(rank: int) -> None:
        report.outcome(rank, lambda: with_comm(rank) if make_comm else function(rank, nranks, unique_id, *args))

    def with_comm(rank: int) -> Any:
        with pynickel.Communicator(nranks, unique_id, rank) as comm:
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

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.lock = threading.Lock()

    def send(self, *message: Any) -> None:
        """Write one message."""
        data = pickle.dumps(message)
        data = struct.pack("<Q", len(data)) + data
        with self.lock:
            while data:
                data = data[self.file.write(data) or 0 :]

    def outcome(self, rank: int, call: Callable[[], Any]) -> None:
        """Call and report what came of it."""
        import cloudpickle

        try:
            value = cloudpickle.dumps(call())
        except BaseException as error:
            self.raised(rank, error)
        else:
            self.send("returned", rank, value)

    def raised(self, rank: int, error: BaseException) -> None:
        """Report an exception: itself where it can be pickled, its traceback always."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            pickled = pickle.dumps(error)
        except Exception:  # an error with a local class or a handle inside: its text is enough
            pickled = b""
        self.send("raised", rank, pickled, text)


def read(file: IO[bytes]) -> bytes:
    """One framed message from the parent; the end of the stream means that it is gone."""
    header = file.read(8)
    if len(header) < 8:
        sys.exit("the parent of this rank is gone")
    return file.read(struct.unpack("<Q", header)[0])


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the test process ends, however it ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent of this rank is gone")


if __name__ == "__main__":
    main()
