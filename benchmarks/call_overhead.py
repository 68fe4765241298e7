"""What a call costs in Python: pynickel over a libnccl that does nothing, beside raw ctypes, nccl4py and CuPy, in one run.

    python benchmarks/call_overhead.py --json calls.json
    python benchmarks/call_overhead.py --peer nccl4py=PYTHON --peer cupy=PYTHON     # interpreters that have them

The unit is an all-reduce called through ctypes with its prototype declared, measured in turns with the rest; a time is the best of
many turns. The library is built from cdef/ by the benchmark. torch is measured where it is installed."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import null_library
import numpy as np
import timing

import pynickel

RAW = "ctypes, raw"
LIB = "lib.ncclAllReduce, ready pointers"
INTS = "all_reduce(int, int, count=, dtype=)"
SECONDS = ("import pynickel", "import pynickel; pynickel.Communicator")
MOST_MS = 60.0
# By what is measured: how many times as long as raw ctypes it may take.
TARGETS = {
    LIB: 0.35,
    INTS: 0.7,
    "all_reduce(numpy), in place": 1.4,
    "all_reduce(numpy, numpy)": 2.3,
    "all_reduce(torch), in place": 1.4,
    "all_reduce(torch, torch)": 2.3,
    **dict.fromkeys(("broadcast(numpy)", "send(numpy)", "recv(numpy)"), 1.4),
    **{f"{name}(numpy, numpy)": 2.3 for name in ("reduce", "all_gather", "reduce_scatter", "all_to_all")},
    **{f"plan.launch() of {n}": 0.28 + 0.007 * n for n in (1, 10, 100, 1000)},
}


def main() -> None:
    """Measure, print, write."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        library = null_library.build(Path(folder))
        rows = measure(library, 3 if options.quick else 60)
        peers = [found for peer in options.peer if (found := peer_rows(*peer, library, options.quick))]
    milliseconds = timing.import_times(sys.executable, list(SECONDS), 2 if options.quick else 15)
    found = {
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "numpy": np.__version__,
        "rows": rows,
        "imports": [{"what": what, "ms": ms, "target": MOST_MS} for what, ms in zip(SECONDS, milliseconds, strict=True)],
        "peers": peers,
    }
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def measure(path: Path, rounds: int) -> list[dict[str, Any]]:
    """Time, ratio and target of each way to make the call."""
    library = pynickel.load(str(path))
    comm = pynickel.Communicator(2, pynickel.UniqueId.create(library), 0, library=library)
    a, b = np.ones(1024, np.float32), np.ones(1024, np.float32)
    raw, names = timing.raw_ctypes(str(path), a.ctypes.data)
    ffi = library.ffi
    names |= {"half": np.ones(512, np.float32)}
    names |= {"comm": comm, "a": a, "b": b, "f32": pynickel.float32, "group": pynickel.group, "address_b": b.ctypes.data}
    names |= {"ready": library.lib.ncclAllReduce, "p": ffi.cast("void *", a.ctypes.data), "q": ffi.cast("void *", b.ctypes.data)}
    names |= {"c": ffi.cast("ncclComm_t", comm.handle), "s": ffi.NULL}
    statements = {
        RAW: raw,
        LIB: "ready(p, q, 1024, 7, 0, c, s)",
        INTS: "comm.all_reduce(address, address_b, count=1024, dtype=f32)",
        "all_reduce(numpy), in place": "comm.all_reduce(a)",
        "all_reduce(numpy, numpy)": "comm.all_reduce(a, b)",
        "broadcast(numpy)": "comm.broadcast(a)",
        "reduce(numpy, numpy)": "comm.reduce(a, b)",
        "all_gather(numpy, numpy)": "comm.all_gather(half, a)",
        "reduce_scatter(numpy, numpy)": "comm.reduce_scatter(a, half)",
        "all_to_all(numpy, numpy)": "comm.all_to_all(a, b)",
        "send(numpy)": "comm.send(a, 1)",
        "recv(numpy)": "comm.recv(a, 1)",
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        names |= {"t": torch.ones(1024), "u": torch.ones(1024)}
        statements |= {"all_reduce(torch), in place": "comm.all_reduce(t)", "all_reduce(torch, torch)": "comm.all_reduce(t, u)"}
    statements["group() of 10 all_reduce(numpy)"] = "with group():\n" + "    comm.all_reduce(a)\n" * 10
    for n in (1, 10, 100, 1000):
        plan = pynickel.Plan(comm)
        for _ in range(n):
            plan.all_reduce(a)
        names[f"plan{n}"] = plan
        statements[f"plan.launch() of {n}"] = f"plan{n}.launch()"
    times = timing.shortest(statements, names, rounds)
    comm.close()
    return [{"what": what, "ns": ns, "ratio": ns / times[RAW], "target": TARGETS.get(what)} for what, ns in times.items()]


def peer_rows(name: str, python: str, library: Path, quick: bool) -> dict[str, Any] | None:
    """What another binding's interpreter has measured; None, and a line that says why, if it could not."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    command = [python, str(Path(__file__).with_name("call_peers.py")), name, str(library), "3" if quick else "60"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    except OSError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        print(f"{name} is left out: {last[-1]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(found: dict[str, Any]) -> None:
    """The table: nanoseconds, ratios to raw ctypes in the same interpreter, targets."""
    print(f"An all-reduce of a libnccl that does nothing; Python {found['python']}, NumPy {found['numpy']}, {found['cpu']}\n")
    print(f"{'call':44}{'ns':>9}{'ratio':>9}{'target':>9}")
    for row in found["rows"]:
        target = "" if row["target"] is None else f"{row['target']:9.2f}{'' if row['ratio'] <= row['target'] else '  missed'}"
        print(f"{row['what']:44}{row['ns']:9.0f}{row['ratio']:9.2f}{target}")
    for peer in found["peers"]:
        for row in peer["rows"]:
            print(f"{peer['title'] + ': ' + row['what']:44}{row['ns']:9.0f}{row['ratio']:9.2f}")
    print(f"\n{'beyond a bare Python':44}{'ms':>9}{'':9}{'target':>9}")
    for row in found["imports"]:
        print(f"{row['what']:44}{row['ms']:9.1f}{row['target']:18.0f}{'' if row['ms'] <= row['target'] else '  missed'}")
    for peer in found["peers"]:
        print(f"{peer['title'] + ': import':44}{peer['import_ms']:9.1f}")


def cpu_name() -> str:
    """As the kernel names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], type=peer, metavar="NAME=PYTHON", help="nccl4py or cupy, and who has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--quick", action="store_true", help="few rounds; to see that it runs")
    return parser.parse_args()


def peer(text: str) -> tuple[str, str]:
    """NAME=PYTHON."""
    name, equals, python = text.partition("=")
    if name not in ("nccl4py", "cupy") or not equals or not python:
        raise argparse.ArgumentTypeError(f"{text!r} is not nccl4py=PYTHON or cupy=PYTHON")
    return name, python


if __name__ == "__main__":
    main()
