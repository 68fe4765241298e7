"""Slurm's srun: places from a step's variables, host names and task counts from their short forms."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import RendezvousError
from .launcher import Environment, Launcher, Place, number

STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
SLURM = Launcher(
    "slurm",
    rank=("SLURM_PROCID",),
    nranks=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    local_rank=("SLURM_LOCALID",),
    local_size=(),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
)
_MOST_NAMES = 1 << 20  # a list with more hosts than this is a mistake


def read(env: Environment) -> Place | None:
    """The place that srun has given this process, or None where Slurm is not there or has one task only.

    A batch script that has not used srun is no rank of anything: there is one process, and nobody else will come.
    """
    place = None if SLURM.rank[0] not in env else SLURM.read(env)
    if place is None:
        return None
    if not started_by_srun(env) and place.rank == 0:
        if place.nranks == 1:
            return None
        size = number(env, SLURM.nranks)[1]
        raise RendezvousError(
            f"{size}={env[size]} promises {place.nranks} ranks, but this process was started by the batch script and not by srun "
            f"({STEP[0]} is not set), so it is alone; start it by srun, or use launcher='single' for one process on purpose"
        )
    return place._replace(local_size=local_size(env))


def started_by_srun(env: Environment) -> bool:
    """Whether this process is a task of a step."""
    return any(name in env for name in (*STEP, "SLURM_STEP_NUM_TASKS"))


def local_size(env: Environment) -> int | None:
    """How many tasks of the step this node has."""
    text = next((env[name] for name in TASKS_PER_NODE if env.get(name)), "")
    node = number(env, ("SLURM_NODEID",))[0]
    counts = task_counts(text) if text else []
    return counts[node] if node is not None and node < len(counts) else None


def first_host(env: Environment) -> str:
    """The node of rank 0 by the step's node list; "" without one. SLURM_LAUNCH_NODE_IPADDR is where srun ran, which may be elsewhere."""
    text = next((env[name] for name in NODES if env.get(name)), "")
    return next(host_names(text)) if text else ""


def task_counts(text: str) -> list[int]:
    """Tasks of each node from Slurm's short form: "2(x3),1" is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        times = int(found[2] or 1) if found else 0
        if found is None or times + len(counts) > _MOST_NAMES:
            raise RendezvousError(f"task counts {text!r} are not of Slurm's form, such as 2(x3),1")
        counts += [int(found[1])] * times
    return counts


def host_names(text: str) -> Iterator[str]:
    """Host names from Slurm's short form, in its order: "node[01-03,7],b2" is node01, node02, node03, node7, b2."""
    for part in _split_outside_brackets(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        if re.search(r"[\[\]\s]", "".join(pieces[::2])) or not part:
            raise _bad_list(text)
        yield from _combine(pieces, text)


def _split_outside_brackets(text: str) -> list[str]:
    return re.split(r",(?![^\[]*\])", text.strip())


def _combine(pieces: list[str], text: str) -> Iterator[str]:
    """The names of one part, cut into text and ranges in turn."""
    if len(pieces) == 1:
        yield pieces[0]
        return
    for number_text in _numbers(pieces[1], text):
        for rest in _combine(pieces[2:], text):
            yield pieces[0] + number_text + rest


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """ "01-03,7" is 01, 02, 03, 7."""
    for part in ranges.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if found is None or last < first or last - first > _MOST_NAMES:
            raise _bad_list(text)
        for value in range(first, last + 1):
            yield str(value).zfill(len(found[1]))


def _bad_list(text: str) -> RendezvousError:
    return RendezvousError(f"node list {text!r} is not of Slurm's form, such as node[01-03,7],b2")
