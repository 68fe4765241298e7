"""Open MPI and MPICH from their wheels, each in a folder of its own, since both bring an mpirun.

TESTS_MPIS names a folder with both, as .ci/run makes it before the tests; without it they are installed now.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}


class Unavailable(Exception):
    """This MPI cannot be had here; the text says why."""


class Mpi:
    """One MPI: its mpirun, and the environment in which mpi4py finds its library."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        if "TESTS_MPIS" in os.environ:
            folder = Path(os.environ["TESTS_MPIS"], kind)
        else:
            install(kind, folder)
        self.mpirun = folder / "bin" / "mpirun"
        (library,) = folder.rglob(LIBRARIES[kind])
        site = next(folder.glob("lib/python*/site-packages"))
        self.env = {"MPI4PY_LIBMPI": str(library), "PYTHONPATH": str(site), **AS_ROOT}

    def command(self, nranks: int) -> list[str]:
        """How mpirun starts so many ranks, however few cores there are."""
        return [str(self.mpirun), *(["--oversubscribe"] if self.kind == "openmpi" else []), "-n", str(nranks)]

    def run(self, nranks: int, *command: str, root: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this checkout on so many ranks, within a minute."""
        path = os.pathsep.join([str(root), self.env["PYTHONPATH"]])
        return subprocess.run(
            [*self.command(nranks), *command],
            env={**os.environ, **self.env, "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=root,
            stdin=subprocess.DEVNULL,
        )


def install(kind: str, folder: Path) -> None:
    """Install it from its wheel, and mpi4py where that is not there."""
    packages = [kind] if importlib.util.find_spec("mpi4py") else [kind, "mpi4py"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-script-location", "--ignore-installed",
               "--prefix", str(folder), *packages]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-600:]}")
