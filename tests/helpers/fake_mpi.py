"""A communicator with the few methods of mpi4py's that pynickel uses, for ranks that are threads of one process."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class World:
    """What the ranks share: for each collective of their common order, who has come with what."""

    def __init__(self, nranks: int) -> None:
        self.nranks = nranks
        self.lock = threading.Lock()
        self.given: list[dict[int, bytes]] = []

    def comm(self, rank: int) -> Comm:
        """The communicator of a rank."""
        return Comm(self, rank)


class Comm:
    """One rank's view."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.next = world, rank, 0

    def Get_rank(self) -> int:
        """MPI_Comm_rank."""
        return self.rank

    def Get_size(self) -> int:
        """MPI_Comm_size."""
        return self.world.nranks

    def Iallgather(self, send: Any, receive: Any) -> Request:
        """Every rank's buffer on every rank."""
        return self._come(bytes(memoryview(send).cast("B")), memoryview(receive).cast("B"))

    def Ibarrier(self) -> Request:
        """Done when all have come."""
        return self._come(b"", memoryview(bytearray()))

    def _come(self, data: bytes, receive: memoryview) -> Request:
        with self.world.lock:
            if len(self.world.given) == self.next:
                self.world.given.append({})
            given = self.world.given[self.next]
            given[self.rank] = data
            self.next += 1
        return Request(self.world, given, receive)


class Request:
    """A collective in progress."""

    def __init__(self, world: World, given: dict[int, bytes], receive: memoryview) -> None:
        self.world, self.given, self.receive = world, given, receive

    def Test(self) -> bool:
        """Whether all have come; then the result is there."""
        with self.world.lock:
            if len(self.given) < self.world.nranks:
                return False
            self.receive[:] = b"".join(self.given[rank] for rank in range(self.world.nranks))
            return True


def run(nranks: int, function: Callable[[Comm], Any]) -> list[Any]:
    """What function(comm) returned or raised on each of nranks threads, which must all end within 20 seconds."""
    world = World(nranks)

    def one(rank: int) -> Any:
        try:
            return function(world.comm(rank))
        except Exception as error:
            return error

    with ThreadPoolExecutor(nranks) as pool:
        return [future.result(20) for future in [pool.submit(one, rank) for rank in range(nranks)]]
