"""MPI by mpi4py: asked only when the program wants it, or when its launcher is there; it must agree with what the launcher said."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import atexit
import importlib.util
import logging
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any

from ..errors import LauncherMismatchError, RendezvousError
from . import hydra, mvapich, openmpi, pmix, slurm, torchrun
from .launcher import Environment, Launcher, Place

NAME = "mpi"
FAMILIES = (openmpi.OPENMPI, mvapich.MVAPICH, hydra.PMI)
_PROMISES = (*FAMILIES, slurm.SLURM, torchrun.ENV)
_FIRST_PAUSE, _LONGEST_PAUSE = 20e-6, 2e-3
_PATIENCE = 2.0  # seconds at the end of the program for an exchange that was given up
_abandoned: list[tuple[Any, Any, Any]] = []  # exchanges that MPI may still be busy with after a deadline, and their buffers
log = logging.getLogger("pynickel")


def communicator(which: Any = NAME) -> Any:
    """The communicator that the caller gave, or mpi4py's COMM_WORLD. Importing it starts MPI."""
    if not isinstance(which, str):
        return which
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RendezvousError(
            f"the ranks' number is known to MPI alone, and mpi4py cannot be used here: {error}; pip install mpi4py, with an MPI library"
        ) from error
    return MPI.COMM_WORLD


def place(which: Any, env: Environment) -> Place:
    """The place that MPI tells, checked against the launcher's variables; local values are theirs, if there are any."""
    comm = communicator(which)
    rank, nranks = int(comm.Get_rank()), int(comm.Get_size())
    world_size = nranks
    if type(comm).__module__.startswith("mpi4py"):
        world_size = int(communicator().Get_size())  # a part of the world is no contradiction
    promised, variable = promise(env)
    if promised is not None and promised.nranks != world_size:
        raise mismatch(promised, variable, world_size)
    if promised is not None and promised[:2] == (rank, nranks):
        return promised._replace(launcher=which if isinstance(which, str) else NAME)
    return Place(rank, nranks, None, None, which if isinstance(which, str) else NAME)


def promise(env: Environment) -> tuple[Place | None, str]:
    """What the launcher's variables say, with the name of the one that has the number of ranks."""
    for family in _PROMISES:
        found = _read(family, env)
        if found is not None:
            return found, next(name for name in family.nranks if env.get(name))
    return None, ""


def _read(family: Launcher, env: Environment) -> Place | None:
    try:
        return family.read(env)
    except RendezvousError:
        return None  # set by halves: this one promises nothing


def mismatch(promised: Place, variable: str, found: int) -> LauncherMismatchError:
    """The error when MPI knows another number of ranks than the launcher."""
    return LauncherMismatchError(
        f"{variable}={promised.nranks} promises {promised.nranks} ranks, but MPI (mpi4py) says that there are {found}: the MPI library "
        "that mpi4py has loaded is probably not the one whose launcher started this process. Use the mpirun that belongs to it, or "
        f"launcher='{promised.launcher}' to believe the variables without MPI, or launcher='single' (PYNICKEL_LAUNCHER=single) for one "
        "process on purpose"
    )


def carries(launcher: Any, found: Place, env: Environment) -> bool:
    """Whether the rows travel by MPI: it was asked for, or its launcher is there, mpi4py can be used, and both agree."""
    if found.launcher in (NAME, pmix.NAME):
        return True
    name = env.get("PYNICKEL_LAUNCHER", "") if launcher is None else launcher
    if name or found.launcher not in [family.name for family in FAMILIES] or importlib.util.find_spec("mpi4py") is None:
        return False
    try:
        comm = communicator()
    except RendezvousError as error:
        log.info("MPI's launcher is there, but not used: %s", error)
        return False
    family = next(family for family in FAMILIES if family.name == found.launcher)
    if (comm.Get_rank(), comm.Get_size()) != found[:2]:
        raise mismatch(found, next(name for name in family.nranks if env.get(name)), int(comm.Get_size()))
    return True


def abandon(comm: Any, steps: Any, request: Any) -> None:
    """Keep what MPI may still write into, and see to it that the program's end does not wait for it."""
    if not _abandoned:
        atexit.register(end_job)
    _abandoned.append((comm, steps, request))


def end_job() -> None:
    """Abort the MPI job if an exchange is still in progress: MPI_Finalize would wait, for ever, for a rank that may never come."""
    until = time.monotonic() + _PATIENCE
    for comm, _, request in _abandoned:
        if not type(comm).__module__.startswith("mpi4py") or communicator_is_gone():
            continue
        while not request.Test():
            if time.monotonic() >= until:
                sys.stderr.write("pynickel: the MPI job is aborted: it cannot end while a rank has not come to rendezvous.init()\n")
                sys.stderr.flush()
                comm.Abort(1)
            time.sleep(_LONGEST_PAUSE)


def communicator_is_gone() -> bool:
    """Whether the program has finalized MPI itself."""
    from mpi4py import MPI

    return bool(MPI.Is_finalized())


class MpiLog:
    """Rows by exchanges among all ranks: first everybody's, so that a rank that cannot go on says so instead of being waited for in a
    broadcast, then rank 0's last one."""

    silence = "MPI's ranks tell each other when all have come, so which of them has not is not known"
    note = ""

    def __init__(self, comm: Any) -> None:
        self._comm, self._n, self._rank = comm, int(comm.Get_size()), int(comm.Get_rank())
        self._steps: Iterator[Any] | None = None
        self._request: Any = None
        self._rows: list[bytes] = []
        self._done = False  # the second exchange was made

    def append(self, row: bytes) -> None:
        """Give this rank's row; while one is on its way no other can follow it, since the others wait for one only."""
        if self._steps is None and not self._done:
            self._done = bool(self._rows)
            self._steps = self._exchange(row)
            self._request = next(self._steps)

    def wait(self, known: int, until: float) -> list[bytes]:
        """All rows, once there are more than `known`, or at time.monotonic() `until`; none before all ranks have given theirs."""
        if self._rows and known >= len(self._rows) and self._rank != 0:
            self.append(b"")  # rank 0 alone has something to say
        while len(self._rows) <= known and self._steps is not None and self._test(until):
            self._request = next(self._steps, None)
            if self._request is None:
                self._steps = None
        return list(self._rows)

    def close(self, expected: int, until: float) -> None:
        """Wait until all have seen the rows: what comes next blocks in the library, and nobody must be left behind here."""
        if expected and self._rows and self._steps is None:
            self._request = self._comm.Ibarrier()
            self._test(until)
        elif self._request is not None:
            abandon(self._comm, self._steps, self._request)

    def _exchange(self, row: bytes) -> Iterator[Any]:
        """Yield the request of each step: how long the rows are, then the rows, filled up to the longest."""
        own, sizes = array("Q", [len(row)]), array("Q", bytes(8 * self._n))
        yield self._comm.Iallgather(own, sizes)
        longest = max(sizes)
        sent, received = bytearray(row.ljust(longest, b"\0")), bytearray(longest * self._n)
        yield self._comm.Iallgather(sent, received)
        self._rows += [bytes(received[i * longest : i * longest + size]) for i, size in enumerate(sizes) if size]

    def _test(self, until: float) -> bool:
        """Whether the request is done in time; the wait can be interrupted, MPI's own could not."""
        pause = _FIRST_PAUSE
        while not self._request.Test():
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return True
