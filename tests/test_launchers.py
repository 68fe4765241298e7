"""One program under every launcher: the same sums; the table of docs/ranks_table.md, line by line; the job scripts under Slurm."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import mpi
from helpers.slurm import Slurm, Unavailable

ROOT = Path(__file__).resolve().parents[1]
ONES = "examples/mpi/all_reduce_ones.py"
SUMS = [f"rank {rank} of 4 on {socket.gethostname()}: sum 4" for rank in range(4)]
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI", "MPI_"))}
ENV = {**BARE, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
Start = Callable[..., str]  # what a Python program prints when four ranks run it

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def checked(done: subprocess.CompletedProcess[str]) -> str:
    """What it has printed; it must have ended well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plain(*command: str) -> str:
    """Run a command as it is."""
    return checked(subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=100, cwd=ROOT, stdin=subprocess.DEVNULL))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes on this machine."""
    try:
        with Slurm(tmp_path_factory.mktemp("slurm")) as cluster:
            yield cluster
    except Unavailable as why:
        pytest.skip(f"no Slurm: {why}")


@pytest.fixture(scope="session")
def mpis(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], mpi.Mpi]:
    """Open MPI and MPICH, each installed when it is first needed."""

    @functools.cache
    def get(kind: str) -> mpi.Mpi:
        try:
            return mpi.Mpi(kind, tmp_path_factory.mktemp(kind))
        except mpi.Unavailable as why:
            pytest.skip(f"no {kind}: {why}")

    return get


@pytest.fixture(params=["openmpi", "mpich", "slurm", "torchrun", "pynickel-run"])
def start(request: pytest.FixtureRequest) -> Start:
    """One launcher, which starts four ranks."""
    name = request.param
    if name in mpi.LIBRARIES:
        return functools.partial(by_mpi, request.getfixturevalue("mpis")(name))
    if name == "slurm":
        return functools.partial(by_srun, request.getfixturevalue("slurm"))
    if name == "torchrun":
        if importlib.util.find_spec("torch") is None:
            pytest.skip("no torch, so no torchrun")
        return functools.partial(plain, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4")
    return functools.partial(plain, sys.executable, "-m", "pynickel", "run", "-n", "4", "--no-prefix", "--", sys.executable)


def by_mpi(found: mpi.Mpi, *program: str) -> str:
    """mpirun."""
    return checked(found.run(4, sys.executable, *program, root=ROOT))


def by_srun(cluster: Slurm, *program: str) -> str:
    """srun, on two nodes."""
    folder = f"--chdir={ROOT}"
    return checked(
        cluster.run("srun", "-N", "2", "-n", "4", "--overcommit", folder, sys.executable, *program, env={"PYTHONPATH": str(ROOT)})
    )


def test_same_sums_under_every_launcher(start: Start) -> None:
    """Four ranks of mpirun (Open MPI, MPICH), srun, torchrun and pynickel run execute one file, and print the same sums."""
    assert sorted(start(ONES).splitlines()) == SUMS


def table() -> list[list[str]]:
    """The lines of the table: from, three expressions, and the launchers under which they are evaluated."""
    lines = [line.strip("| ").split(" | ") for line in (ROOT / "docs/ranks_table.md").read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line] for line in lines[1:]]


EVALUATE = """
import json, os, sys
from pynickel import rendezvous

expressions = json.loads(sys.argv[1])
values, names = [], {"os": os, "rendezvous": rendezvous}
if any("MPI." in text for row in expressions for text in row):
    from mpi4py import MPI
    names["MPI"] = MPI
if any("torch." in text for row in expressions for text in row):
    import torch.distributed
    torch.distributed.init_process_group("gloo")
    names["torch"] = torch
with rendezvous.init() as comm:
    names["comm"] = comm
    values = [[eval(text, names) for text in row] for row in expressions]
    comm.barrier()
if "torch" in names:
    torch.distributed.destroy_process_group()
print(json.dumps(values) + "\\n", end="", flush=True)
"""


def test_table_of_ranks(start: Start, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every line of the table that this launcher can show gives ranks 0 to 3 of 4, and on all lines the same local rank."""
    name = request.node.callspec.params["start"]
    rows = [line for line in table() if name in line[4].split()]
    if name in mpi.LIBRARIES:
        assert any("MPI.COMM_WORLD" in line[1] for line in rows)
    expressions = [[re.fullmatch(r"`(.+)`", cell)[1] for cell in line[1:4]] for line in rows]  # type: ignore[index]
    assert len(expressions) >= 3
    program = tmp_path / "evaluate.py"
    program.write_text(EVALUATE)
    ranks = [json.loads(line) for line in start(str(program), json.dumps(expressions)).splitlines()]
    assert sorted(values[0][0] for values in ranks) == [0, 1, 2, 3]
    for values in ranks:
        first = values[0]
        assert first[1] == 4 and 0 <= first[2] < 4
        by_mpi_itself = [line[0] == "MPI (mpi4py)" for line in rows]
        for value, is_mpi in zip(values, by_mpi_itself, strict=True):
            assert value[:2] == first[:2], (name, rows, values)
            assert is_mpi or value[2] == first[2], (name, rows, values)  # MPI numbers the ranks of a machine by its own order
    locals_by_mpi = [values[rows.index(line)][2] for values in ranks for line in rows if line[0] == "MPI (mpi4py)"]
    assert sorted(locals_by_mpi) in ([], [0, 1, 2, 3])


def test_wrong_mpirun(mpis: Callable[[str], mpi.Mpi]) -> None:
    """Scenario 36, for real: MPICH's mpirun and Open MPI's library: each rank says so, with both numbers, and none sums alone."""
    starter, library = mpis("mpich"), mpis("openmpi")
    done = starter.run(2, sys.executable, ONES, root=ROOT, MPI4PY_LIBMPI=library.env["MPI4PY_LIBMPI"])
    assert done.returncode != 0 and "sum" not in done.stdout
    assert "LauncherMismatchError: PMI_SIZE=2 promises 2 ranks, but MPI (mpi4py) says that there are 1" in done.stderr
    alone = starter.run(2, sys.executable, ONES, root=ROOT, PYNICKEL_LAUNCHER="single")
    assert alone.stdout.count("rank 0 of 1") == 2


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_mpi_rank_that_never_comes(kind: str, mpis: Callable[[str], mpi.Mpi]) -> None:
    """A rank that gave up at its deadline ends, and the job with it: MPI_Finalize would wait for the rank that never comes."""
    program = """
        import time
        from mpi4py import MPI
        from pynickel import rendezvous
        if MPI.COMM_WORLD.Get_rank() == 1:
            time.sleep(300)
        rendezvous.init(timeout=1)
    """
    done = mpis(kind).run(2, sys.executable, "-c", textwrap.dedent(program), root=ROOT)
    assert done.returncode != 0 and "rank 0 of 2 heard nothing within 1 s" in done.stderr
    assert "the MPI job is aborted" in done.stderr


@pytest.mark.parametrize("script", ["mpi", "nccl"])
def test_job_scripts(script: str, slurm: Slurm, mpis: Callable[[str], mpi.Mpi]) -> None:
    """Both job scripts run as they are, on two nodes with two (made-up) GPUs each; only the container is left out."""
    env = {"CONTAINER": "", "MPIRUN_OPTIONS": "--oversubscribe", "SRUN_OPTIONS": "--overcommit", "PYNICKEL_LIBRARY": "host"}
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if script == "mpi":
        found = mpis("openmpi")
        env.update(found.env)
        path.insert(0, str(found.mpirun.parent))
    paths = [str(ROOT), env.get("PYTHONPATH", "")]
    env.update(PATH=os.pathsep.join(path), PYTHONPATH=os.pathsep.join(filter(None, paths)))
    file = ROOT / "examples" / "slurm" / f"{script}.sbatch"
    assert shutil.which("bash") and sorted(slurm.batch(file, env).splitlines()) == SUMS


def test_batch_script_without_srun(slurm: Slurm, tmp_path: Path) -> None:
    """A program that a batch script starts without srun is told so, instead of waiting for tasks that nobody starts."""
    script = tmp_path / "alone.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --ntasks=4\n{sys.executable} {ROOT / ONES} 2>&1 | tail -n 1\n")
    said = slurm.batch(script, {"PYTHONPATH": str(ROOT)})
    assert "SLURM_NTASKS=4 promises 4 ranks, but this process was started by the batch script and not by srun" in said


def test_srun_on_two_nodes_by_a_file(slurm: Slurm, tmp_path: Path) -> None:
    """Without a key the ranks of two nodes meet by a file in the home that they share, and leave nothing there."""
    program = str(ROOT / ONES)
    done = slurm.run(
        "srun", "-N", "2", "-n", "4", "--overcommit", sys.executable, program, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    )
    assert sorted(checked(done).splitlines()) == SUMS
    assert list((tmp_path / ".cache" / "pynickel").iterdir()) == []
