"""Which launcher is believed: the one asked for, else the first family of variables that is set, in the order of trust."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import LauncherMismatchError, RendezvousError
from . import hydra, mpi, pmix, slurm, torchrun
from .launcher import Environment, Launcher, Place

CHOICE = "PYNICKEL_LAUNCHER"  # the choice from outside, where the program says launcher=None
SINGLE = "single"
ALONE = Place(0, 1, 0, 1, SINGLE)
FAMILIES: dict[str, Launcher] = {family.name: family for family in (torchrun.TORCHRUN, torchrun.ENV, *mpi.FAMILIES, slurm.SLURM)}
NAMES = (*list(FAMILIES)[:-1], pmix.NAME, slurm.SLURM.name, mpi.NAME, SINGLE)


def place(launcher: Any = None) -> Place:
    """This process's rank, their number, local rank and local size, as the launcher's environment variables tell them; nobody is asked.

    `launcher`: as for `init`. RendezvousError: the variables contradict themselves.
    """
    return find(launcher, os.environ)


def find(launcher: Any, env: Environment) -> Place:
    """The place in this environment."""
    name = asked_for(launcher, env)
    if isinstance(name, str) and name not in ("", mpi.NAME, pmix.NAME):
        return ALONE if name == SINGLE else named(name, env)
    if name:
        return mpi.place(name, env)
    return detect(env)


def asked_for(launcher: Any, env: Environment) -> Any:
    """The launcher that the program or PYNICKEL_LAUNCHER names, a communicator of mpi4py, or "" where the order of trust decides."""
    name = env.get(CHOICE, "") if launcher is None else launcher
    source = CHOICE if launcher is None else "launcher"
    if hasattr(name, "Get_rank"):
        return name
    if not isinstance(name, str):
        raise TypeError(f"{source} must be one of {', '.join(NAMES)}, a communicator of mpi4py, or None, not {name!r}")
    if name not in ("", *NAMES):
        raise ValueError(f"{source} must be one of {', '.join(NAMES)}, not {name!r}")
    return name


def named(name: str, env: Environment) -> Place:
    """The place that one launcher tells."""
    found = slurm.read(env) if name == slurm.SLURM.name else FAMILIES[name].read(env)
    if found is None:
        family = FAMILIES[name]
        wanted = ", ".join("/".join(names) for names in (family.rank, family.nranks))
        raise RendezvousError(f"launcher={name!r} was asked for, but its variables are not set: {wanted}")
    return found


def detect(env: Environment) -> Place:
    """The first complete family; a single process where there is none. What is set by halves is an error if nothing else helps."""
    broken: list[RendezvousError] = []
    for read in readers(env):
        try:
            found = read(env)
        except RendezvousError as error:
            broken.append(error)
            continue
        if found is not None:
            check_alone(found, env)
            return found
    if broken:
        raise broken[0]
    return ALONE


def check_alone(found: Place, env: Environment) -> None:
    """LauncherMismatchError where RANK and WORLD_SIZE, left over from elsewhere, would make each rank of a job a job of its own."""
    if found.launcher != torchrun.ENV.name or found.nranks > 1:
        return
    promised, variable = mpi.promise({name: value for name, value in env.items() if name not in torchrun.ENV.nranks})
    if promised is None or promised.nranks == 1 or (promised.launcher == slurm.SLURM.name and not slurm.started_by_srun(env)):
        return
    raise LauncherMismatchError(
        f"WORLD_SIZE=1 says that this process is alone, but {variable}={promised.nranks} promises {promised.nranks} ranks: are RANK and "
        f"WORLD_SIZE left over from another program? Unset them, or choose by launcher= or {CHOICE}: {promised.launcher!r} for these "
        "ranks, 'single' for one process on purpose"
    )


def readers(env: Environment) -> list[Callable[[Environment], Place | None]]:
    """Who is asked, most trusted first."""
    first = torchrun.TORCHRUN if torchrun.started_here(env) else torchrun.ENV
    return [first.read, *[family.read for family in mpi.FAMILIES[:-1]], _pmi, _pmix, slurm.read]


def _pmi(env: Environment) -> Place | None:
    """PMI's place, unless srun itself has set these variables: then Slurm's say the same and more."""
    found = hydra.PMI.read(env)
    if found is None or not slurm.started_by_srun(env):
        return found
    try:
        by_slurm = slurm.read(env)
    except RendezvousError:
        return found  # leftovers of Slurm's, which say nothing against the process manager
    return None if by_slurm and by_slurm[:2] == found[:2] else found


def _pmix(env: Environment) -> Place | None:
    """PMIx's place with MPI's help, unless srun is the PMIx server: then Slurm's variables say everything."""
    if not pmix.is_there(env) or slurm.started_by_srun(env):
        return None
    return mpi.place(pmix.NAME, env)
