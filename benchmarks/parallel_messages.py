"""What it costs to send an array to a child and get a number back: pynickel.parallel beside multiprocessing's Pipe.

    python benchmarks/parallel_messages.py

A row for each size: microseconds from before the send until the answer is there, the median of many, and the times of Pipe. The
array is rewritten before each exchange, untimed; the child adds its two ends. "into": the child receives into one array of its own;
"remote": the child has come in through TCP, as one on another machine does; "to 4": the same array to four children, each of which
answers, where Pipe has four pipes.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from pynickel import parallel  # noqa: E402

SIZES = {"8 B": 8, "1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "64 MiB": 1 << 26}
WAYS = ["Pipe", "local", "into", "remote", "Pipe to 4", "to 4"]
Exchange = Callable[[Any], object]


def answer(own: Any = None) -> NoReturn:
    """What a child does, until it is closed."""
    while True:
        array = parallel.receive(own)
        parallel.send(float(array[0] + array[-1]))


def answer_pipe(pipe: Connection) -> None:
    """The same behind a Pipe."""
    while (array := pipe.recv()) is not None:
        pipe.send(float(array[0] + array[-1]))


def measure(exchange: Exchange, size: int, seconds: float) -> float:
    """Return the median of the seconds of one exchange."""
    array, times, begun = np.zeros(size // 8), [], time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < seconds and len(times) < 5000):
        array += 1
        before = time.perf_counter()
        exchange(array)
        times.append(time.perf_counter() - before)
    return statistics.median(times[2:])


def with_children(way: str, size: int, seconds: float) -> float:
    """Fork children, measure, and end them."""
    children = parallel.nfork(4 if way == "to 4" else 1, command="env" if way == "remote" else None)
    children.exec(answer, np.empty(size // 8) if way == "into" else None)

    def exchange(array: Any) -> None:
        children.send(array)
        children.receive()

    try:
        return measure(exchange, size, seconds)
    finally:
        parallel.close()


def with_pipes(way: str, size: int, seconds: float) -> float:
    """Measure children of multiprocessing, started afresh as ours are."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(4 if way == "Pipe to 4" else 1)]
    processes = [context.Process(target=answer_pipe, args=(theirs,)) for _, theirs in pipes]
    for process in processes:
        process.start()

    def exchange(array: Any) -> None:
        for ours, _ in pipes:
            ours.send(array)
        for ours, _ in pipes:
            ours.recv()

    try:
        return measure(exchange, size, seconds)
    finally:
        for ours, _ in pipes:
            ours.send(None)
        for process in processes:
            process.join()


def main() -> None:
    options = argparse.ArgumentParser(description="The cost of messages between a parent and its children.")
    options.add_argument("--seconds", type=float, default=0.8, help="for each figure (default 0.8)")
    options.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES), metavar="SIZE", help=", ".join(SIZES))
    given = options.parse_args()
    print(f"{'us (Pipe = 1)':14}" + "".join(f"{way:>18}" for way in WAYS))
    for name in given.sizes:
        row = {way: (with_pipes if "Pipe" in way else with_children)(way, SIZES[name], given.seconds) for way in WAYS}
        cells = []
        for way, seconds in row.items():
            peer = row["Pipe to 4" if "to 4" in way else "Pipe"]
            cells.append(f"{1e6 * seconds:,.0f} ({seconds / peer:.2f})")
        print(f"{name:14}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
