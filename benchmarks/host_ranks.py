"""How init, barrier and all-reduce of the CPU library grow with the ranks: up to 256 as threads of one process, up to 64 as processes.

    python benchmarks/host_ranks.py --json ranks.json

Init is measured from the moment when the last rank has come. Calls are launched as plans of several, so that threads do not wait
for Python's lock between them; a call took as long as on the slowest rank, the median of many. On a machine with c cores n ranks
can at best take n/c times as long as c of them: what a figure is per rank should stay about the same. Before the measurement
every collective runs with small and with larger counts and is checked.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("PYNICKEL_LIBRARY", "host")
sys.path[1:1] = [str(Path(__file__).resolve().parent.parent / name) for name in ("", "tests")]

from helpers import forks  # noqa: E402
from report import machine, write_rows  # noqa: E402

from pynickel import Communicator, Plan, get_library  # noqa: E402

RANKS = (2, 4, 8, 16, 32, 64, 128, 256)
SIZES = {"all_reduce 8 B": 2, "all_reduce 64 KiB": 1 << 14}  # elements
TOGETHER = 10  # operations of one plan
DEADLINE = 60.0


def check_all(comm: Communicator, count: int) -> None:
    """Every collective once, with so many elements for each rank; each rank's are its number and up."""
    n, me = comm.nranks, comm.rank
    ramp = np.arange(count, dtype=np.float32)
    own, parts = ramp + me, np.concatenate([ramp + me + 2 * part for part in range(n)])
    total, root = n * ramp + n * (n - 1) / 2, n // 2
    everyone = np.concatenate([ramp + rank for rank in range(n)])

    def same(name: str, got: Any, expected: Any) -> None:
        if not np.array_equal(got, expected):
            raise AssertionError(f"{name} of {count} on rank {me} of {n}: {got[:5]}, not {expected[:5]}")

    def room(times: int = 1) -> Any:
        return np.full(count * times, -1, np.float32)

    same("all_reduce", comm.all_reduce(own, room()), total)
    same("all_gather", comm.all_gather(own, room(n)), everyone)
    same("broadcast", comm.broadcast(own.copy(), root=root), ramp + root)
    same("reduce_scatter", comm.reduce_scatter(parts, room()), total + 2 * me * n)
    same("all_to_all", comm.all_to_all(parts, room(n)), everyone + 2 * me)
    same("scatter", comm.scatter(parts, room(), root=root), ramp + root + 2 * me)
    same("send_recv", comm.send_recv(own, (me + 1) % n, room(), (me - 1) % n), ramp + (me - 1) % n)
    reduced, gathered = comm.reduce(own, room(), root=root), comm.gather(own, room(n), root=root)
    if me == root:
        same("reduce", reduced, total)
        same("gather", gathered, everyone)


def rank_main(rank: int, nranks: int, ids: list[bytes], calls: int) -> dict[str, Any]:
    """What one rank sees: when it came, when it was in, how long each call took."""
    get_library()  # loaded before, as it is in a program that has done anything
    came = time.monotonic()
    comm = Communicator(nranks, ids[0], rank, timeout=DEADLINE)
    found: dict[str, Any] = {"came": came, "in": time.monotonic()}
    for count in (1, 100):
        check_all(comm, count)
    byte = np.zeros(1, np.uint8)
    found["barrier"] = times(comm, byte, calls)  # what Communicator.barrier() does
    for name, count in SIZES.items():
        found[name] = times(comm, np.zeros(count, np.float32), calls)
    comm.close()
    return found


def times(comm: Communicator, array: Any, calls: int) -> list[float]:
    """Seconds of each all-reduce of this array, on the average of a plan; all ranks begin a plan together."""
    plan = Plan(comm)
    for _ in range(TOGETHER):
        plan.all_reduce(array)
    taken = []
    for _ in range(max(3, calls // TOGETHER)):
        comm.barrier()
        begun = time.perf_counter()
        plan.launch()
        taken.append((time.perf_counter() - begun) / TOGETHER)
    return taken


def as_threads(rank: int, nranks: int, ids: list[bytes], threads: int, calls: int) -> list[dict[str, Any]]:
    """In a forked process: ranks that are its threads."""
    found: list[dict[str, Any]] = forks.values(forks.threads(threads, rank_main, calls, deadline=DEADLINE))
    return found


def measure(kind: str, nranks: int, calls: int) -> dict[str, Any]:
    """One row of the table, in microseconds."""
    if kind == "threads":
        ends = forks.values(forks.fork(1, as_threads, nranks, calls, deadline=DEADLINE + 5))[0]
    else:
        ends = forks.values(forks.fork(nranks, rank_main, calls, deadline=DEADLINE + 5))
    row = {"init": max(end["in"] for end in ends) - max(end["came"] for end in ends)}
    for name in ("barrier", *SIZES):
        row[name] = statistics.median(max(turn) for turn in zip(*(end[name] for end in ends), strict=True))
    return {"kind": kind, "ranks": nranks, **{name: round(seconds * 1e6, 2) for name, seconds in row.items()}}


def main() -> None:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=256, help="most ranks as threads (256)")
    parser.add_argument("--processes", type=int, default=64, help="most ranks as processes (64)")
    parser.add_argument("--calls", type=int, default=100, help="of each operation (100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    most = {"threads": options.threads, "processes": options.processes}
    rows = []
    for kind in most:
        for nranks in RANKS:
            if nranks <= most[kind]:
                rows.append(measure(kind, nranks, options.calls))
                print(f"{nranks} {kind}: init {rows[-1]['init'] / 1000:.1f} ms", file=sys.stderr, flush=True)
    columns = ("init", "barrier", *SIZES)
    table = [["ranks", "as", *(title for name in columns for title in (name, "per rank"))]]
    for row in rows:
        figures = [f"{value:,.1f}" for name in columns for value in (row[name], row[name] / row["ranks"])]
        table.append([str(row["ranks"]), row["kind"], *figures])
    print("median microseconds on the slowest rank")
    write_rows(table, sys.stdout)
    print(machine())
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
