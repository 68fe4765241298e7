"""torch.distributed's backends beside each other: pynickel, gloo, and mpi where torch has it; collectives by size, and a step of DDP.

`python benchmarks/torch_backends.py --json FILE --plot FILE.png`. What is measured is added to what is in FILE, so that it can be done in
pieces; --show only tells. The cost of communication is the time of a DDP step minus that of the same step without communication.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from report import busy, figure, machine, short, write_rows

OPERATIONS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_single", "reduce_scatter_single", "all_to_all_single", "send_recv",
)  # fmt: skip
SIZES = [8 << 3 * i for i in range(6)] + [1 << 20, 1 << 21, 1 << 24, 1 << 26]
SMALL = 1 << 20  # up to here 5 times as fast as gloo is promised, and 3 times above
LIMIT = 280.0  # seconds for one start of ranks
Cells = dict[str, dict[str, Any]]


def main() -> None:
    """Measure, then tell."""
    options = parse()
    cells = json.loads(options.json.read_text())["cells"] if options.json and options.json.exists() else {}
    where = machine()
    if not options.show:
        if (load := busy()) > 0.2:
            print(f"{load:.1f} cores are in use by others: these times will tell little", file=sys.stderr)
        jobs: list[dict[str, Any]] = [
            {"backends": [name], "operations": options.operations, "steps": 0.0} for name in options.backends if options.operations
        ]
        if options.steps:  # in turns, because one is subtracted from the other
            jobs.append({"backends": options.backends, "operations": [], "steps": options.steps})
        with others(options.others):
            lines = [line for job in jobs for line in start(options.nranks, {**job, "sizes": options.sizes, "seconds": options.seconds})]
        for line in lines:
            found = json.loads(line)
            times = found.pop("times")
            low, middle, high = statistics.quantiles(times, n=4)
            key = f"{options.nranks} {found['operation']} {found['bytes']} {found['backend']}"
            cells[key] = {"nranks": options.nranks, **found, "median_us": middle, "quartiles_us": [low, high], "calls": len(times)}
        if options.json:
            options.json.write_text(json.dumps({"machine": where, "cells": cells}, indent=0) + "\n")
    write_table(cells, where, sys.stdout)
    if options.plot:
        import torch_picture

        torch_picture.draw(list(cells.values()), options.plot, where)


@contextmanager
def others(number: int) -> Iterator[None]:
    """So many other programs, which compute all the time."""
    command = [sys.executable, "-c", f"import signal; signal.alarm({2 * LIMIT:.0f})\nwhile True: pass"]
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def start(nranks: int, job: dict[str, Any]) -> list[str]:
    """Start the ranks, with a deadline; the lines that rank 0 prints. Nothing of them stays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(nranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("torch_rank.py")), json.dumps(job)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        ranks = [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env={**env, "RANK": str(rank)}, start_new_session=True
            )
            for rank in range(nranks)
        ]
        try:
            codes = [rank.wait(LIMIT) for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                    rank.wait()
        if any(codes):
            log.seek(0)
            raise SystemExit(f"the ranks ended with {codes}:\n{log.read()}")
        out.seek(0)
        return out.read().splitlines()


def write_table(cells: Cells, where: str, out: TextIO) -> None:
    """A block for each number of ranks: microseconds, and how many times as long the others take."""
    for nranks in sorted({cell["nranks"] for cell in cells.values()}):
        block = [cell for cell in cells.values() if cell["nranks"] == nranks]
        found = {(cell["operation"], cell["bytes"], cell["backend"]): cell["median_us"] for cell in block}
        backends = [name for name in ("pynickel", "gloo", "mpi") if any(key[2] == name for key in found)]
        others = [name for name in backends if name != "pynickel"]
        out.write(f"\n{nranks} ranks: median microseconds; x: times as fast as\n")
        rows = [["operation", "size", *backends, *(f"x {name}" for name in others)]]
        for operation in OPERATIONS:
            for size in sorted({key[1] for key in found if key[0] == operation}):
                times = [found.get((operation, size, name)) for name in backends]
                ratios = [time / times[0] if time and times[0] else None for time in times[1:]]
                rows.append([operation, short(size), *map(figure, times), *map(figure, ratios)])
        if len(rows) > 1:
            write_rows(rows, out)
        write_steps(found, backends, out)
        for line in judged(found):
            out.write(line + "\n")
    out.write(f"{where}\n")


def write_steps(found: dict[tuple[str, int, str], float], backends: list[str], out: TextIO) -> None:
    """The training step."""
    alone = found.get(("step", 0, "alone"))
    if alone is None:
        return
    out.write(f"\na step of DDP, 1.07 million parameters, in microseconds; without communication {figure(alone)}\n")
    rows = [["backend", "step", "cost of communication", "share of gloo's"]]
    cost = {name: found["step", 0, name] - alone for name in backends if ("step", 0, name) in found}
    for name, more in cost.items():
        rows.append([name, figure(alone + more), figure(more), f"{more / cost['gloo']:.2f}" if "gloo" in cost else "-"])
    write_rows(rows, out)


def judged(found: dict[tuple[str, int, str], float]) -> list[str]:
    """Where the promises are not kept."""
    ours = {key[:2]: time for key, time in found.items() if key[2] == "pynickel" and key[0] != "step"}
    ratios = {key: found[(*key, "gloo")] / time for key, time in ours.items() if (*key, "gloo") in found}
    told = []
    for words, wanted, large in (("up to 1 MiB", 5, False), ("above", 3, True)):
        chosen = {key: value for key, value in ratios.items() if (key[1] > SMALL) == large}
        if chosen:
            missed = [f"{name} {short(size)} {value:.1f}" for (name, size), value in chosen.items() if value < wanted]
            told.append(f"target {wanted} x gloo {words}: least {min(chosen.values()):.1f}; MISSED: {', '.join(missed) or 'none'}")
    return told


def parse() -> argparse.Namespace:
    """The command line."""
    from torch import distributed as dist

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    here = ["pynickel", "gloo", *(["mpi"] if dist.is_mpi_available() else [])]
    parser.add_argument("--backends", type=lambda text: text.split(","), default=here, help=f"which ({','.join(here)})")
    parser.add_argument("--operations", type=names, default=list(OPERATIONS), help="which (all)")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="bytes (8 to 64 MiB)")
    parser.add_argument("--nranks", type=int, default=2, help="how many (2)")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each operation and size (0.4)")
    parser.add_argument("--steps", type=float, default=8.0, help="seconds of training steps (8); 0: none")
    parser.add_argument("--others", type=int, default=0, help="other programs that compute all the time, meanwhile (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add all figures to these")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them")
    parser.add_argument("--show", action="store_true", help="measure nothing; show what is in --json FILE")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    """Positive numbers."""
    if not all(word.isdecimal() and int(word) > 0 for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} must be positive numbers with commas between")
    return [int(word) for word in text.split(",")]


def names(text: str) -> list[str]:
    """Operations, or none."""
    found = [word for word in text.split(",") if word]
    if wrong := [word for word in found if word not in OPERATIONS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be one of {', '.join(OPERATIONS)}")
    return found


if __name__ == "__main__":
    main()
