"""The experiments and the benchmark of training, run as a user runs them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes, snippets

NEEDED = ("torch", "sklearn", "tqdm", "matplotlib")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),  # several starts of torch in each test, perhaps on a busy machine
    pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason=f"needs {', '.join(NEEDED)}"),
]
ROOT = snippets.ROOT
MPI = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpiexec --oversubscribe -n 2"
LAUNCHERS = {"serial": "", "pynickel": "pynickel run -n 3", "gloo": "pynickel run -n 2", "mpi": MPI}


# Both, one after the other, because starting torch takes longer than they do.
BOTH = """
import os, runpy, shlex, sys
sys.path.insert(0, sys.argv[1])
for command in sys.argv[2:]:
    sys.argv[:] = shlex.split(command)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
names = [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")]
if any("gloo" in name or "store" in name for name in names):
    sys.exit(f"threads outlived their group: {names}")
"""
SCRIPTS = {"franke": "franke.py --runs 2 --batch 1000", "digits_vae": "digits_vae.py --runs 1 --original --batch 300"}
Told = dict[str, tuple[Path, str, dict[str, Any]]]  # by library: the folder, what was printed, the result file


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Both experiments have been run with every library that is here."""
    found: dict[str, Told] = {name: {} for name in SCRIPTS}
    for comm, launcher in LAUNCHERS.items():
        if comm == "mpi" and (shutil.which("mpiexec") is None or find_spec("mpi4py") is None):
            print("mpi was left out: there is no mpiexec or no mpi4py")
            continue
        folder, examples = tmp_path_factory.mktemp(comm), ROOT / "examples"
        options = f"--epochs 2 --dtype float64 --comm {comm}" + ("" if comm == "pynickel" else " --no-pictures")
        commands = [shlex.quote(f"{examples}/{script} --output {folder / name} {options}") for name, script in SCRIPTS.items()]
        (folder / "both.py").write_text(BOTH)
        starts = commands if comm == "gloo" else [" ".join(commands)]  # torch's ranks cannot meet twice at one port
        text = "".join(snippets.run_in(folder, f"{launcher} python both.py {examples} {start}", 50).stdout for start in starts)
        for name in SCRIPTS:
            (result,) = (folder / name).rglob("result.json")
            found[name][comm] = folder / name, text, json.loads(result.read_text())
    return found


def same_everywhere(told: Told, runs: int, parameters: str) -> None:
    """The curves are the same with every library, the ranks end in step."""
    for comm, (_, text, result) in told.items():
        assert result["comm_error"] == 0.0 and text.count("comm_error 0") == len(SCRIPTS) and f"{parameters} parameters" in text
        assert len(result["seconds"]) == runs
        assert result["processes"] == {"serial": 1, "pynickel": 3}.get(comm, 2)
        curve = np.array(result["curve"])
        assert curve[:, 0].tolist() == [1, 2]
        np.testing.assert_allclose(curve, told["serial"][2]["curve"], rtol=1e-9, err_msg=comm)


def written(folder: Path) -> list[str]:
    """The names of what rank 0 has written, with the first bytes of pictures looked at."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files if path.suffix == ".png")
    return sorted(path.name for path in files)


def test_franke(told: dict[str, Told]) -> None:
    """Franke's function with serial, pynickel, gloo and MPI, 1 to 3 processes: one validation curve to float64 rounding."""
    same_everywhere(told["franke"], runs=2, parameters="10,501")
    assert written(told["franke"]["pynickel"][0]) == [
        "epoch_1.pt", "epoch_2.pt", "predictions_1.npy", "predictions_2.npy", "result.json", "surfaces_1.png", "surfaces_2.png",
        "valid.npy", "valid.png",
    ]  # fmt: skip


def test_digits_vae(told: dict[str, Told]) -> None:
    """The auto-encoder in the original's sizes, the same way, although its loss has random numbers in it."""
    same_everywhere(told["digits_vae"], runs=1, parameters="1,068,820")
    assert written(told["digits_vae"]["pynickel"][0]) == [
        "epoch_1.pt", "epoch_2.pt", "interpolation_1.png", "interpolation_2.png", "predictions_1.npy", "predictions_2.npy",
        "reconstructions_1.png", "reconstructions_2.png", "result.json", "valid.npy", "valid.png",
    ]  # fmt: skip


def test_what_cannot_be(tmp_path: Path) -> None:
    """torch's NCCL without a GPU, and a batch smaller than the processes, are refused in a sentence."""
    import torch

    franke = f"python {shlex.quote(str(ROOT / 'examples' / 'franke.py'))}"
    refusals = [(f"pynickel run -n 3 {franke} --comm pynickel --batch 2", "--batch 2 must be from 3, the processes, to 10000")]
    if not torch.cuda.is_available():
        refusals.append((f"{franke} --comm nccl", "needs a GPU"))
    for command, words in refusals:
        done = processes.run(snippets.EXEC, command, deadline=40, env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
        assert done.returncode == 2 and words in done.stderr and done.left == [], done


FAILS = """
import os, sys
sys.path.insert(0, {examples!r})
import experiment, franke

class Fails(franke.Franke):
    def loss(self, model, x, y, noise):
        if os.environ.get("PMIX_RANK", os.environ.get("RANK")) == "1":
            raise ArithmeticError("on rank 1")
        return super().loss(model, x, y, noise)

usage = experiment.parser("", 1, 500)
sys.exit(experiment.main(Fails, usage.parse_args(), usage))
"""


def test_a_rank_fails(tmp_path: Path) -> None:
    """A rank that fails says why and takes the others along, soon, with an ordinary exit status, and leaves nothing."""
    (tmp_path / "fails.py").write_text(FAILS.format(examples=str(ROOT / "examples")))
    for comm, launcher in LAUNCHERS.items():
        if comm == "serial" or comm == "mpi" and (shutil.which("mpiexec") is None or find_spec("mpi4py") is None):
            continue
        program = f"python {shlex.quote(str(tmp_path))}/fails.py --output {shlex.quote(str(tmp_path))} --comm {comm} --no-pictures"
        command = f"{launcher.replace('-n 3', '-n 2')} {program}"
        done = processes.run(snippets.EXEC, command, deadline=40, env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
        told = done.stdout + done.stderr
        assert done.returncode == 1 and "ArithmeticError: on rank 1" in told and "terminate called" not in told, told
        assert done.left == [], comm


def test_benchmark(tmp_path: Path) -> None:
    """The benchmark adds to its figures, tells who is the fastest, and draws; times of other numbers of updates do not get among them."""
    script = f"python {shlex.quote(str(ROOT / 'benchmarks' / 'training_scaling.py'))} --json figures.json"
    one = f"{script} --nets franke --batches 128 --comms serial,pynickel --processes 1,2 --updates 78 --runs 2 --rounds 1"
    snippets.run_in(tmp_path, one, 50)
    done = snippets.run_in(tmp_path, f"{script} --report --plot scaling.png", 20)
    assert re.search(r"franke +128 +1 +serial .* 2 +x 1.00 ", done.stdout) and "\nseconds for 78 updates; " in done.stdout
    with pytest.raises(AssertionError, match="--updates 80: the figures in figures.json are for 78 updates"):
        snippets.run_in(tmp_path, f"{script} --updates 80", 20)
    assert re.search(r"franke +128 +2 +pynickel ", done.stdout)
    assert "franke, batch 128, 2 processes: pynickel is the fastest\n" in done.stdout
    assert re.search(r"franke, batch 128: more processes (win|lose), at best x [0-9.]+ with 2 over pynickel against", done.stdout)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
