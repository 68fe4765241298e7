"""The benchmarks run, print their tables and write their files; what they measure is not judged here."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path

import pytest
from helpers import processes

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def run(name: str, *options: str | Path, deadline: float = 50) -> str:
    """What a benchmark prints; it must end well and leave no process."""
    done = processes.run(BENCHMARKS / name, *map(str, options), deadline=deadline)
    assert (done.returncode, done.left) == (0, []), done.stdout + done.stderr
    return done.stdout


def test_host_collectives(tmp_path: Path) -> None:
    """All operations are measured with both kinds of memory by every API, results are checked, and the ways that the data took are told."""
    table = run("host_collectives.py", "--quick", "--json", tmp_path / "times.json", "--plot", tmp_path / "times.png")
    cells = json.loads((tmp_path / "times.json").read_text())["cells"]
    operations = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "send_recv"]
    seen = {(cell["operation"], cell["bytes"], cell["memory"], cell["api"]) for cell in cells}
    sizes, memories, apis = [8, 1 << 16, 1 << 20], ["empty", "plain"], ["methods", "raw", "plan"]
    by_all, by_one = itertools.product(operations, sizes[:2], memories, apis), itertools.product(operations, sizes[2:], memories, apis[:1])
    assert seen == {*by_all, *by_one}
    assert all(cell["library"] == "pynickel" and cell["median_us"] > 0 and cell["calls"] > 2 for cell in cells)
    large = {cell["path"] for cell in cells if cell["bytes"] == 1 << 20 and cell["memory"] == "empty"}
    assert large == {"direct"} and {cell["path"] for cell in cells if cell["bytes"] == 8} == {"inline"}
    assert all(f"{name}, 2 ranks" in table for name in operations) and "direct/" in table
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    again = processes.run(BENCHMARKS / "host_collectives.py", "--show", str(tmp_path / "times.json"))
    assert again.stdout == table


def test_host_ranks(tmp_path: Path) -> None:
    """A row for each number of ranks, as threads and as processes."""
    table = run("host_ranks.py", "--threads", "8", "--processes", "4", "--calls", "20", "--json", tmp_path / "ranks.json")
    rows = json.loads((tmp_path / "ranks.json").read_text())["rows"]
    found = [(row["kind"], row["ranks"]) for row in rows]
    assert found == [("threads", 2), ("threads", 4), ("threads", 8), ("processes", 2), ("processes", 4)]
    assert all(row[name] > 0 for row in rows for name in ("init", "barrier", "all_reduce 8 B", "all_reduce 64 KiB"))
    assert "per rank" in table


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("host_collectives.py --sizes 3x", "'3x' must be a positive number"),
        ("host_collectives.py --operations all_reduce,sing", "'sing' must be one of all_reduce, broadcast"),
        ("host_collectives.py --peer lam=/bin/sh", "peer 'lam' is not known"),
        ("host_collectives.py --peer mpich=/nowhere/python", "there is no interpreter /nowhere/python"),
        ("training_scaling.py --nets vea", "'vea' must be one of franke, vae"),
        ("training_scaling.py --batches 32,x", "'x' must be a positive number"),
        ("training_scaling.py --rounds 0", "'0' must be a positive number"),
        ("training_scaling.py --batches 2000", "--batches must be from 4, the processes, to 1500, the samples"),
    ],
)
def test_wrong_options(command: str, words: str) -> None:
    """What cannot be measured is refused at once, in words."""
    name, *options = command.split()
    done = processes.run(BENCHMARKS / name, *options)
    assert done.returncode == 2 and words in done.stderr


def test_peer_that_cannot_start(tmp_path: Path) -> None:
    """A peer whose ranks do not come is left out, with its reason; the others are measured."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "mpirun"):
        (folder / name).write_text("#!/bin/sh\necho there is no MPI here\n")
        (folder / name).chmod(0o755)
    options = f"--quick --operations all_reduce --memory plain --apis methods --peer mpich={folder}/python"
    done = processes.run(BENCHMARKS / "host_collectives.py", *options.split(), deadline=50)
    assert done.returncode == 0 and "MPICH is left out" in done.stderr and "there is no MPI here" in done.stderr and "64 KiB" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_beside_open_mpi(tmp_path: Path) -> None:
    """A peer gets an environment of its own, is measured in the same run, and stands in the table with ratios."""
    table = run(
        "host_collectives.py", "--quick", "--make-peers", tmp_path, "--make", "openmpi", "--json", tmp_path / "times.json", deadline=280
    )
    cells = json.loads((tmp_path / "times.json").read_text())["cells"]
    assert {cell["operation"] for cell in cells if cell["library"] == "Open MPI"} == {cell["operation"] for cell in cells}
    assert "target, 2 ranks, empty against Open MPI" in table


def test_call_overhead(tmp_path: Path) -> None:
    """Every way to make a call has a time, a ratio to raw ctypes and, where promised, a target; a peer that cannot be had is named."""
    done = processes.run(
        BENCHMARKS / "call_overhead.py", "--quick", "--peer", "nccl4py=/nowhere/python", "--json", str(tmp_path / "calls.json"), deadline=50
    )
    assert (done.returncode, done.left) == (0, []), done.stdout + done.stderr
    found = json.loads((tmp_path / "calls.json").read_text())
    rows = {row["what"]: row for row in found["rows"]}
    wanted = ["ctypes, raw", "lib.ncclAllReduce, ready pointers", "all_reduce(int, int, count=, dtype=)", "all_reduce(numpy), in place"]
    wanted += ["all_reduce(numpy, numpy)", "group() of 10 all_reduce(numpy)", *(f"plan.launch() of {n}" for n in (1, 10, 100, 1000))]
    assert set(wanted) <= set(rows) and all(row["ns"] > 0 and what in done.stdout for what, row in rows.items())
    assert {what for what, row in rows.items() if row["target"] is None} == {"ctypes, raw", "group() of 10 all_reduce(numpy)"}
    assert len(found["imports"]) == 2 and "nccl4py is left out" in done.stderr


@pytest.mark.alone
@pytest.mark.slow
def test_call_targets(tmp_path: Path) -> None:
    """Calls cost what design and README say, with half as much again for a machine that does other things."""
    run("call_overhead.py", "--json", tmp_path / "calls.json")
    found = json.loads((tmp_path / "calls.json").read_text())
    missed = {row["what"]: row["ratio"] for row in found["rows"] if row["target"] and row["ratio"] > 1.5 * row["target"]}
    assert missed == {} and all(row["ms"] < 1.5 * row["target"] for row in found["imports"])


@pytest.mark.slow
def test_parallel_messages() -> None:
    """A row for each size, with a time and a ratio for each way that a message can take."""
    table = run("parallel_messages.py", "--seconds", "0.02", "--sizes", "8 B", "1 MiB").splitlines()
    assert [row[:14].strip() for row in table] == ["us (Pipe = 1)", "8 B", "1 MiB"]
    assert all(row.count("(") == 6 for row in table[1:]) and all("(1.00)" in row for row in table[1:])


def test_training_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of the experiment that fails ends the benchmark, whatever it has written before, and its words are told."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    scaling = importlib.import_module("training_scaling")
    scaling.run([sys.executable, "-c", ""])
    with pytest.raises(SystemExit, match="(?s)ended with status 1:.*terminate called"):
        scaling.run([sys.executable, "-c", "import sys; sys.exit('terminate called')"])
