"""The communicators of a process group: ids by the group's own store, one communicator for collectives, one for each way of messages."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from ..communicator import Communicator
from ..library import Library, load
from ..unique_id import UniqueId


class Meeting:
    """Makes communicators among the ranks of one group, in the order in which they are asked for."""

    def __init__(self, store: dist.Store, rank: int, nranks: int, seconds: float) -> None:
        self.store, self.rank, self.nranks, self.seconds = store, rank, nranks, seconds
        self._made: list[Communicator] = []
        self._lock = threading.Lock()

    def host(self) -> Library:
        """The library for CPU tensors."""
        return load("host")

    def communicator(self, key: str, ranks: tuple[int, ...], library: Library, device: int | None = None) -> Communicator:
        """The communicator of these ranks of the group; the first of them makes the id. All of them ask for it under this key."""
        name = f"pynickel/{library.kind}/{key}"
        if self.rank == ranks[0]:
            unique_id = UniqueId.create(library)
            self.store.set(name, bytes(unique_id).hex())
        else:
            self.store.wait([name], timedelta(seconds=self.seconds))
            unique_id = UniqueId(bytes.fromhex(self.store.get(name).decode()))
        comm = Communicator(
            len(ranks), unique_id, ranks.index(self.rank), library=library, device=device, timeout=self._timeout(library), name=key
        )
        with self._lock:
            self._made.append(comm)
        return comm

    def _timeout(self, library: Library) -> float | None:
        # On a GPU a deadline would make the communicator non-blocking; there torch's own streams and events do the waiting.
        return self.seconds if library.kind == "host" else None

    def end(self, abort: bool) -> None:
        """Close all that were made, or end their calls at once."""
        with self._lock:
            made, self._made = self._made, []
        for comm in reversed(made):
            if abort:
                comm.abort()
            else:
                comm.close(timeout=1.0 if comm.library.kind == "host" else None)  # others would refuse a deadline


def seconds_of(timeout: Any) -> float:
    """Torch's deadline in seconds."""
    return max(0.001, timeout.total_seconds()) if isinstance(timeout, timedelta) else float(timeout)
