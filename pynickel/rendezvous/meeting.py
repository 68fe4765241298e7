"""init(): find the place, bring the ranks together, and make their communicator; what goes wrong on one rank is told to all."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import batch
from .._nccl import ffi
from .._nccl import lib as c
from ..arguments import LARGEST, as_index
from ..communicator import Communicator
from ..deadline import checked_timeout, host_seconds
from ..errors import RendezvousError, WaitTimeoutError
from ..library import Library
from ..make import chosen
from ..unique_id import UniqueId
from . import devices, trust, ways
from .launcher import Place
from .rows import FAILED, GAVE_UP, READY, Row, Verdict, intruder, same_process, too_late, unheard, verdict

_turns = itertools.count(1)  # rendezvous of this process: all ranks make the same ones in the same order
_LINGER = 3.0  # seconds that rank 0 stays after a failure, for ranks that are still to come
_LAST_WORD = 1.0  # seconds for a rank's last row to come back


def init(
    launcher: Any = None,
    *,
    timeout: float | None = 60,
    library: str | os.PathLike[str] | Library | None = None,
    device: int | None = None,
) -> Communicator:
    """A communicator of all ranks that the launcher has started; all of them call it, and all are told if it cannot be.

    `launcher`: None to find out who started this process (torchrun, `pynickel run`, mpirun, srun; a single process else), a name
    to decide it ("torchrun", "env", "openmpi", "mvapich", "pmi", "pmix", "slurm", "mpi", "single"), or a communicator of mpi4py.
    `timeout`: seconds for all ranks to come together; None waits without end. `device`: this rank's GPU; by default the only
    one that it sees, else the one with the number of its local rank; on the CPU library a label.

    RendezvousError: two processes are one rank, the ranks' numbers, libraries or GPUs do not fit together, or one rank could not
    go on: every rank gets the same text, with a table of ranks. LauncherMismatchError: MPI knows another number of ranks than
    the launcher. WaitTimeoutError: `missing` ranks did not come in time (under MPI, which does not tell, it is empty).
    """
    limit = checked_timeout(timeout)
    seconds = math.inf if limit is None else limit
    if device is not None:
        as_index(device, "device", 0, LARGEST, "a device number, 0 or higher")
    batch.refuse_in_group("rendezvous.init()")
    until, turn = time.monotonic() + seconds, next(_turns)
    place = trust.find(launcher, os.environ)
    me = Introduction(place, library, device)
    if place.nranks == 1:
        if me.library is None:
            raise me.error or RendezvousError("no library")
        return make(me.library, [me.row], UniqueId.create(me.library), until)
    decided = meet(ways.Way(launcher, place, os.environ, turn, until), me, seconds)
    if decided.error is not None or me.library is None:
        raise decided.error or RendezvousError("no library") from me.error
    return make(me.library, decided.rows, UniqueId.fromhex(decided.unique_id), until, place.rank)


class Introduction:
    """What this rank tells the others (`row`), and the library that it uses; where something fails, the failure is what it tells."""

    def __init__(self, place: Place, library: Any, device: int | None) -> None:
        self.library: Library | None = None
        self.error: Exception | None = None
        name, pid, local_rank = socket.gethostname(), os.getpid(), place.local_rank
        self.row = Row(place.rank, place.nranks, place.launcher, name, machine(), pid, local_rank=local_rank, device=device)
        try:
            found = self.library = chosen(library)
            self.row = self.row._replace(
                kind=found.kind,
                version=".".join(map(str, found.version)),
                devices=devices.visible(found),
                shared_gpu=devices.may_share(os.environ, found.version),
            )
        except Exception as error:  # whatever it is, the other ranks must not wait for us
            self.row = self._failed(error)

    def ready(self) -> Row:
        """What rank 0 says when all are there: the id, which is not made before, since it takes up room until it is used."""
        try:
            return self.row._replace(what=READY, unique_id=UniqueId.create(self.library).hex())
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Row:
        self.error = error
        return self.row._replace(what=FAILED, text=f"cannot go on: {type(error).__name__}: {error}")


def machine() -> str:
    """What is equal for two processes if the CPU library can serve both: the running kernel, and the pid namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}:{os.stat('/proc/self/ns/pid').st_ino}"


def meet(way: ways.Way, me: Introduction, seconds: float) -> Verdict:
    """All ranks' rows and what follows from them. Whatever ends it early on this rank is told to the others."""
    row = me.row
    try:
        log = way.open(row)
    except TimeoutError as error:
        text = f"rank {row.rank} of {row.nranks} did not reach rank 0 within {seconds:g} s: {error}"
        raise WaitTimeoutError(text, missing=(0,), function="rendezvous.init") from error
    decided = None
    try:
        log.append(row.to_bytes())
        decided = decide(log, me, way.until, seconds)
        return decided
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to raise
            log.append(row._replace(what=FAILED, text=f"was stopped while it waited: {type(error).__name__}").to_bytes())
        raise
    finally:
        if decided is None:
            log.close(0, 0.0)
        elif decided.error is None:
            log.close(row.nranks, way.until)
        else:
            log.close(max(other.nranks for other in decided.rows), min(way.until, time.monotonic() + _LINGER))


def decide(log: ways.Log, me: Introduction, until: float, seconds: float) -> Verdict:
    """Wait for rows until they decide; at the end of time say that we go, which decides as well unless the last one has just come."""
    row, known, gave_up, asked = me.row, 0, False, False
    while True:
        data = log.wait(known, until)
        known = len(data)
        rows = read(data)
        decided = verdict(rows)
        if decided is not None and decided.is_final:
            return decided
        if decided is not None and not same_process(row, decided.rows[row.rank]):
            return Verdict([row], intruder(row, decided.rows))
        if decided is not None and row.rank == 0 and not asked:
            asked = True
            log.append(me.ready().to_bytes())
        elif time.monotonic() >= until and gave_up:
            late = too_late(rows, row.nranks, seconds, "the others do not answer") if rows else unheard(row, seconds, log.silence)
            return Verdict(rows or [row], late)
        elif time.monotonic() >= until:
            gave_up, until = True, time.monotonic() + _LAST_WORD
            log.append(row._replace(what=GAVE_UP, text=f"gave up after {seconds:g} s{log.note}").to_bytes())


def read(data: list[bytes]) -> list[Row]:
    """The rows, unless another version of pynickel has written one."""
    try:
        return [Row.from_bytes(one) for one in data]
    except ValueError as error:
        raise RendezvousError(str(error)) from error


def make(found: Library, rows: list[Row], unique_id: UniqueId, until: float, rank: int = 0) -> Communicator:
    """The communicator of these ranks, on the devices that follow from their rows."""
    label = devices.device(rows[rank], rows)
    with init_deadline(found, until - time.monotonic()):
        return Communicator(len(rows), unique_id, rank, library=found, device=label)


@contextmanager
def init_deadline(found: Library, seconds: float) -> Iterator[None]:
    """The CPU library's deadline for the init alone; what the communicator does later has its own."""
    if found.kind != "host":
        yield
        return
    c.nickelCommSetTimeout(found.table, ffi.NULL, host_seconds(max(seconds, 0.1)))
    try:
        yield
    finally:
        c.nickelCommSetTimeout(found.table, ffi.NULL, -1.0)
