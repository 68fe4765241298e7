"""The shortest time of short statements, measured in turns, so that what else the machine does hits all of them. Standard library only."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
import time
from timeit import Timer
from typing import Any

BATCH = 2e-3  # seconds of one turn of a statement


def shortest(statements: dict[str, str], names: dict[str, Any], rounds: int) -> dict[str, float]:
    """Nanoseconds of each statement, by its label: the best of all turns."""
    timers = {label: Timer(statement, globals=names) for label, statement in statements.items()}
    loops = {label: fitting(timer) for label, timer in timers.items()}
    found = dict.fromkeys(statements, float("inf"))
    for _ in range(rounds):
        for label, timer in timers.items():
            found[label] = min(found[label], timer.timeit(loops[label]) / loops[label] * 1e9)
    return found


def fitting(timer: Timer) -> int:
    """So many loops as fill a turn."""
    timer.timeit(10)  # the first calls look things up
    return max(10, int(BATCH / (timer.timeit(10) / 10 + 1e-9)))


def raw_ctypes(library: str, address: int) -> tuple[str, dict[str, Any]]:
    """What everything is compared with: an all-reduce called through ctypes, its prototype declared; the statement and its names."""
    import ctypes

    opened = ctypes.CDLL(library)
    comm = ctypes.c_void_p()
    opened.ncclCommInitRank(ctypes.byref(comm), 2, (ctypes.c_char * 128)(), 0)
    function = opened.ncclAllReduce
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    function.argtypes, function.restype = [pointer, pointer, size, number, number, pointer, pointer], number
    return "raw(address, address, 1024, 7, 0, handle, 0)", {"raw": function, "address": address, "handle": comm.value}


def import_times(python: str, programs: list[str], rounds: int) -> list[float]:
    """Milliseconds that a fresh interpreter needs for each program beyond what it needs for none, the best of all rounds."""
    best = [float("inf")] * (len(programs) + 1)
    for _ in range(rounds):
        for place, program in enumerate(["pass", *programs]):
            begun = time.perf_counter()
            subprocess.run([python or sys.executable, "-c", program], check=True, timeout=60, capture_output=True)
            best[place] = min(best[place], (time.perf_counter() - begun) * 1e3)
    return [found - best[0] for found in best[1:]]
