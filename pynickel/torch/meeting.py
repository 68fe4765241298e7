"""The communicators of a process group: ids by the group's own store, one communicator for collectives, one for each way of messages."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from ..communicator import Communicator
from ..library import Library, load
from ..rendezvous.meeting import machine
from ..unique_id import UniqueId

LOOK_EVERY = 0.5  # seconds between two looks at the rank that is waited for
ENDED = "the process group was shut down while its ranks met"


class Meeting:
    """Makes communicators among the ranks of one group, in the order in which they are asked for."""

    def __init__(self, store: dist.Store, rank: int, nranks: int, seconds: float) -> None:
        # Destroyed groups leave their keys, and torch gives the next group the same name and store: ranks count their groups.
        turn = store.add(f"pynickel/{rank}", 1)
        self._store: dist.Store | None = dist.PrefixStore(f"pynickel/{turn}", store)
        self.rank, self.nranks, self.seconds = rank, nranks, seconds
        self._made: list[Communicator] = []
        self._tried: set[bytes] = set()
        self._lock = threading.Lock()
        self._ended = False
        self.store.set(f"process/{rank}", f"{machine()} {os.getpid()} {begun(os.getpid())}")

    @property
    def store(self) -> dist.Store:
        """The group's store, until the end."""
        if self._store is None:
            raise dist.DistBackendError(ENDED)
        return self._store

    def communicator(
        self, key: str, ranks: Sequence[int], library: Library, device: int | None = None, seconds: float | None = None
    ) -> Communicator:
        """The communicator of these ranks of the group, all of which ask for it under this key.

        The first of them makes the id when all are there. `seconds`: the deadline for that, by default the group's.
        """
        try:
            return self._meet(key, ranks, library, device, seconds)
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise dist.DistBackendError(
                f"the ranks cannot meet, because the group's store cannot be reached: the process that keeps it, which is rank 0 unless"
                f" a launcher does, has probably ended ({error})"
            ) from error

    def _meet(self, key: str, ranks: Sequence[int], library: Library, device: int | None, seconds: float | None) -> Communicator:
        name = f"{library.kind}/{key}"
        come = {rank: f"{name}/{rank}" for rank in ranks}
        seconds = self.seconds if seconds is None else seconds
        self.store.set(come[self.rank], "here")
        if self.rank == ranks[0]:
            self._wait(lambda: self.store.check(list(come.values())), come, seconds)
            unique_id = UniqueId.create(library)
            self.store.set(name, bytes(unique_id).hex())
        else:  # an id with which they have failed to meet stays there until the first rank tries again
            self._wait(lambda: self.store.check([name]) and self.store.get(name) not in self._tried, come, seconds)
            told = self.store.get(name)
            self._tried.add(told)
            unique_id = UniqueId(bytes.fromhex(told.decode()))
        place = list(ranks).index(self.rank)
        # On a GPU a deadline would make the communicator non-blocking; there torch's own streams and events do the waiting.
        timeout = seconds if library.kind == "host" else None
        comm = Communicator(len(ranks), unique_id, place, library=library, device=device, timeout=timeout, name=key)
        with self._lock:
            if not self._ended:
                self._made.append(comm)
                return comm
        comm.abort()
        raise dist.DistBackendError(ENDED)

    def in_time(self, comm: Communicator) -> Communicator:
        """The communicator with the group's deadline, which may be another one than when it was made; by who is about to use it."""
        if comm._timeout != self.seconds:
            comm._timeout = self.seconds
            comm._tell_timeout()
        return comm

    def _wait(self, there: Callable[[], bool], come: dict[int, str], seconds: float) -> None:
        """Wait as long as the deadline allows and all ranks live. Looking now and then, because store.wait() hears no Ctrl-C."""
        begun = time.monotonic()
        looked = 0.0
        pause = 0.0005
        while not there():
            now = time.monotonic()
            if self._ended:
                raise dist.DistBackendError(ENDED)
            if now - begun > seconds:
                missing = [rank for rank, key in come.items() if not self.store.check([key])] or [next(iter(come))]
                who = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                raise dist.DistBackendError(f"{who} did not come within {seconds:g} s to meet rank {self.rank} for its first operation")
            if now - looked > LOOK_EVERY:
                looked = now
                self._require_alive(list(come))
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _require_alive(self, ranks: Sequence[int]) -> None:
        """Raise if some of the ranks, which are still to meet, have ended: all of them are named, as one may have ended for another."""
        if ended := [rank for rank in ranks if rank != self.rank and not self._lives(rank)]:
            who, they = ("ranks", "they") if len(ended) > 1 else ("rank", "it")
            raise dist.DistBackendError(f"{who} {', '.join(map(str, ended))} ended before {they} met rank {self.rank}")

    def _lives(self, rank: int) -> bool:
        """Whether that rank's process does, as far as can be seen from here."""
        key = f"process/{rank}"
        if not self.store.check([key]):
            return True  # not yet begun
        where, pid, ticks = self.store.get(key).decode().split()
        return where != machine() or begun(int(pid)) == int(ticks)  # GPUs may be on several machines

    def end(self, abort: bool) -> None:
        """Close all that were made, or end their calls at once."""
        with self._lock:
            self._ended = True
            made, self._made = self._made, []
            self._store = None  # torch may keep the group until the process ends; rank 0's store has a thread and a port
        for comm in reversed(made):
            if abort:
                comm.abort()
            else:
                comm.close(timeout=1.0 if comm.library.kind == "host" else None)  # others would refuse a deadline


def begun(pid: int) -> int | None:
    """When a process of this machine was begun, in clock ticks since the boot, which no change of the clock moves; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *others = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(others[18])


def host_library() -> Library:
    """The library for CPU tensors."""
    return load("host")


def seconds_of(timeout: Any) -> float:
    """Torch's deadline in seconds."""
    return max(0.001, timeout.total_seconds()) if isinstance(timeout, timedelta) else float(timeout)
