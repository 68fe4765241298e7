"""One rank of a benchmark: connects to the script that started it, does what that says, tells how long each call took."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import faulthandler
import gc
import json
import os
import socket
import sys
import time
from typing import Any

import numpy as np
from backends import BACKENDS, Array

PATIENCE = 120.0  # seconds without a word from the script, or for one job, after which a rank ends by itself


def main() -> None:
    """Serve one script; the arguments are the kind of library, the script's socket, and, unless MPI tells them, rank and ranks."""
    kind, path, rank, nranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    lines = connection.makefile("rw")

    def tell(**words: Any) -> None:
        lines.write(json.dumps(words) + "\n")
        lines.flush()

    def exchange(made: bytes | None) -> bytes:
        tell(unique_id=made.hex() if made else "")
        return bytes.fromhex(json.loads(lines.readline())["unique_id"])

    backend = BACKENDS[kind](rank, nranks, exchange)
    tell(rank=backend.rank, version=backend.version, apis=backend.apis)
    while line := lines.readline():
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        job = json.loads(line)
        if job["operation"] == "close":
            break
        try:
            begun = time.monotonic()
            times = measure(backend, **job)
            tell(times=times, seconds=time.monotonic() - begun)
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            tell(error=f"{type(error).__name__}: {error}")
    backend.close()
    lines.close()
    os._exit(0)  # nothing of any library has to happen at exit


def measure(backend: Any, operation: str, count: int, memory: str, api: str, calls: int, warm: int) -> list[int]:
    """Nanoseconds of each call. Before each one every rank writes all of its buffers, and all wait for each other."""
    work = Work(backend, operation, count, memory)
    call, barrier, clock = backend.call(operation, work.send, work.recv, api), backend.barrier, time.perf_counter_ns
    times = []
    gc.disable()
    for turn in range(warm + calls):
        work.write(turn)
        barrier()
        begun = clock()
        code = call()
        ended = clock()
        if type(code) is int and code:
            raise RuntimeError(f"{operation} returned {code}")
        work.check(turn, every=turn < warm or turn == warm + calls - 1)
        if turn >= warm:
            times.append(ended - begun)
    gc.enable()
    return times


class Work:
    """The buffers of one rank for one operation, what is written into them, and what must come out."""

    def __init__(self, backend: Any, operation: str, count: int, memory: str) -> None:
        self.operation, self.rank, self.nranks = operation, backend.rank, backend.nranks
        self.part = count // backend.nranks
        self.send: Array = backend.buffer(self.part if operation == "all_gather" else count, memory)
        self.recv = self.send
        if operation == "all_gather":
            self.recv = backend.buffer(count, memory)
        elif operation == "reduce_scatter":
            self.recv = backend.buffer(self.part, memory)

    def write(self, turn: int) -> None:
        """New values, different in each turn and on each rank; small, so that sums are exact."""
        if self.recv is not self.send:
            self.recv.fill(-1)
        self.send.fill(turn % 50 + self.rank)

    def check(self, turn: int, every: bool) -> None:
        """Every element, or one here and there, is as it must be."""
        step = 1 if every else max(1, self.recv.size // 3)
        first = turn % self.nranks
        for rank in range(self.nranks) if self.operation == "all_gather" else [first]:
            part = self.recv[rank * self.part : (rank + 1) * self.part] if self.operation == "all_gather" else self.recv
            if not np.all(part[::step] == self.expected(turn, rank)):
                raise RuntimeError(f"{self.operation} of {self.recv.size} on rank {self.rank}: wrong result, {part[:4]} ...")

    def expected(self, turn: int, part: int) -> float:
        """What all elements of the receive buffer are (of its part, for an all-gather)."""
        value = turn % 50
        if self.operation in ("all_reduce", "reduce_scatter"):
            return value * self.nranks + self.nranks * (self.nranks - 1) / 2
        if self.operation == "broadcast":
            return value
        return value + (part if self.operation == "all_gather" else self.rank & ~1)


if __name__ == "__main__":
    main()
