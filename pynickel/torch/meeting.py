"""The communicators of a process group: ids by the group's own store, one communicator for collectives, one for each way of messages."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psutil
from torch import distributed as dist

from ..communicator import Communicator
from ..library import Library, load
from ..unique_id import UniqueId

LOOK_EVERY = 0.5  # seconds between two looks at the rank that is waited for


class Meeting:
    """Makes communicators among the ranks of one group, in the order in which they are asked for."""

    def __init__(self, store: dist.Store, rank: int, nranks: int, seconds: float) -> None:
        self.store, self.rank, self.nranks, self.seconds = store, rank, nranks, seconds
        self._made: list[Communicator] = []
        self._lock = threading.Lock()
        self._ended = False
        store.set(f"pynickel/process/{rank}", f"{os.getpid()} {psutil.Process().create_time()}")

    def communicator(self, key: str, ranks: Sequence[int], library: Library, device: int | None = None) -> Communicator:
        """The communicator of these ranks of the group; the first of them makes the id. All of them ask for it under this key."""
        name = f"pynickel/{library.kind}/{key}"
        self._require_alive(ranks)
        if self.rank == ranks[0]:
            unique_id = UniqueId.create(library)
            self.store.set(name, bytes(unique_id).hex())
        else:
            self._wait(name, ranks)
            unique_id = UniqueId(bytes.fromhex(self.store.get(name).decode()))
        place = list(ranks).index(self.rank)
        comm = Communicator(len(ranks), unique_id, place, library=library, device=device, timeout=self._timeout(library), name=key)
        with self._lock:
            if not self._ended:
                self._made.append(comm)
                return comm
        comm.abort()
        raise dist.DistBackendError("the process group was shut down while its ranks met")

    def _wait(self, name: str, ranks: Sequence[int]) -> None:
        """Wait for an id as long as the deadline allows and all ranks live. Looking now and then, because store.wait() hears no Ctrl-C."""
        begun = looked = time.monotonic()
        pause = 0.0005
        while not self.store.check([name]):
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
            now = time.monotonic()
            if self._ended:
                raise dist.DistBackendError("the process group was shut down while its ranks met")
            if now - begun > self.seconds:
                raise dist.DistBackendError(
                    f"rank {ranks[0]} did not come within {self.seconds:g} s to meet rank {self.rank}: it has not called this operation"
                )
            if now - looked > LOOK_EVERY:
                looked = now
                self._require_alive(ranks)

    def _require_alive(self, ranks: Sequence[int]) -> None:
        """Raise if one of the ranks, which are still to meet, has ended."""
        for rank in ranks:
            if rank != self.rank and not self._lives(rank):
                raise dist.DistBackendError(f"rank {rank} ended before it met rank {self.rank}")

    def _lives(self, rank: int) -> bool:
        """Whether that rank's process does, as far as can be seen from here."""
        key = f"pynickel/process/{rank}"
        if not self.store.check([key]):
            return True  # not yet begun
        pid, begun = self.store.get(key).decode().split()
        try:
            process = psutil.Process(int(pid))
            return bool(abs(process.create_time() - float(begun)) < 1 and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def _timeout(self, library: Library) -> float | None:
        # On a GPU a deadline would make the communicator non-blocking; there torch's own streams and events do the waiting.
        return self.seconds if library.kind == "host" else None

    def end(self, abort: bool) -> None:
        """Close all that were made, or end their calls at once."""
        with self._lock:
            self._ended = True
            made, self._made = self._made, []
        for comm in reversed(made):
            if abort:
                comm.abort()
            else:
                comm.close(timeout=1.0 if comm.library.kind == "host" else None)  # others would refuse a deadline


def host_library() -> Library:
    """The library for CPU tensors."""
    return load("host")


def seconds_of(timeout: Any) -> float:
    """Torch's deadline in seconds."""
    return max(0.001, timeout.total_seconds()) if isinstance(timeout, timedelta) else float(timeout)
