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

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")  # of Open MPI; of MPICH and Intel MPI
PATIENCE = 120.0  # seconds without a word from the script, or for one job, after which a rank ends by itself


def main() -> None:
    """Serve one script. Arguments: the kind of library, the script's socket, bind or free, and, unless MPI tells them, rank and ranks."""
    kind, path, rank, nranks = sys.argv[1], sys.argv[2], int(sys.argv[4]), int(sys.argv[5])
    if sys.argv[3] == "bind":
        bind(int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), rank)))
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


def bind(rank: int) -> None:
    """Stay on one core, the ranks in turns on all that there are."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def measure(backend: Any, operation: str, count: int, memory: str, api: str, calls: int, warm: int) -> list[int]:
    """Nanoseconds of each call. Before each one every rank writes all of its buffers, and all wait for each other.

    They do so after it, too: where ranks outnumber the cores, one that looked at its result would keep a core from one that is not done.
    """
    work = Work(backend, operation, count, memory)
    call, barrier, clock = backend.call(operation, work.send, work.recv, api), backend.barrier, time.perf_counter_ns
    times, last = [], warm + calls - 1
    gc.disable()
    for turn in range(warm + calls):
        work.write(turn)
        barrier()
        begun = clock()
        code = call()
        ended = clock()
        barrier()
        if backend.gives_codes and type(code) is int and code:
            raise RuntimeError(f"{operation} returned {code}")
        if turn < warm or turn == last:
            work.check_all(turn)
        else:
            work.check_one(turn)
        if turn >= warm:
            times.append(ended - begun)
    gc.enable()
    return times


class Work:
    """The buffers of one rank for one operation, what is written into them, and what must come out."""

    def __init__(self, backend: Any, operation: str, count: int, memory: str) -> None:
        self.operation, self.rank, self.nranks = operation, backend.rank, backend.nranks
        self.part = max(1, count // backend.nranks)
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

    def check_all(self, turn: int) -> None:
        """Every element is as it must be."""
        for part in range(self.recv.size // self.part if self.operation == "all_gather" else 1):
            got = self.recv[part * self.part : (part + 1) * self.part] if self.operation == "all_gather" else self.recv
            if not np.all(got == self.expected(turn, part)):
                raise RuntimeError(f"{self.operation} of {got.size} on rank {self.rank}: wrong result, {got[:4]} ...")

    def check_one(self, turn: int) -> None:
        """One element, another one in each turn; what other ranks of the same core wait for must not take long."""
        place = turn * 7919 % self.recv.size
        if self.recv.item(place) != self.expected(turn, place // self.part):
            raise RuntimeError(f"{self.operation} on rank {self.rank}: element {place} is {self.recv.item(place)}")

    def expected(self, turn: int, part: int) -> float:
        """What all elements of the receive buffer are (of its part, for an all-gather)."""
        value = turn % 50
        if self.operation in ("all_reduce", "reduce_scatter"):
            return float(value * self.nranks + self.nranks * (self.nranks - 1) / 2)
        if self.operation == "broadcast":
            return value
        return float(value + (part if self.operation == "all_gather" else self.rank & ~1))


if __name__ == "__main__":
    main()
