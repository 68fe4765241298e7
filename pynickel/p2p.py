"""Gather, scatter and all-to-all by sends and receives, for libraries older than 2.28 that lack them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._nccl import lib
from .batch import Operation
from .buffer import Element, held

if TYPE_CHECKING:
    from .communicator import Communicator


class Parts:
    """Sends and receives of equal parts of two buffers, to be started together; a rank's message to itself is one of them."""

    def __init__(self, comm: Communicator, count: int, dtype: Element, stream: int, keep: Any) -> None:
        self.comm, self.count, self.dtype, self.stream, self.keep = comm, count, dtype, stream, held(keep)
        self.operations: list[Operation] = []

    def add(self, call: Any, buffer: int, part: int, peer: int) -> None:
        """One message of the part with that number."""
        address = buffer + part * self.count * self.dtype.itemsize
        self.operations.append(Operation(self.comm, call, (address, self.count, self.dtype, peer, self.stream), self.keep))


def gather(comm: Communicator, s: int, r: int, count: int, dtype: Element, root: int, stream: int, keep: Any) -> list[Operation]:
    """Everybody sends to the root."""
    parts = Parts(comm, count, dtype, stream, keep)
    parts.add(lib.comm_ncclSend, s, 0, root)
    for peer in range(comm.nranks) if comm.rank == root else ():
        parts.add(lib.comm_ncclRecv, r, peer, peer)
    return parts.operations


def scatter(comm: Communicator, s: int, r: int, count: int, dtype: Element, root: int, stream: int, keep: Any) -> list[Operation]:
    """Everybody receives from the root."""
    parts = Parts(comm, count, dtype, stream, keep)
    for peer in range(comm.nranks) if comm.rank == root else ():
        parts.add(lib.comm_ncclSend, s, peer, peer)
    parts.add(lib.comm_ncclRecv, r, 0, root)
    return parts.operations


def all_to_all(comm: Communicator, s: int, r: int, count: int, dtype: Element, stream: int, keep: Any) -> list[Operation]:
    """Everybody sends to and receives from everybody."""
    parts = Parts(comm, count, dtype, stream, keep)
    for peer in range(comm.nranks):
        parts.add(lib.comm_ncclSend, s, peer, peer)
        parts.add(lib.comm_ncclRecv, r, peer, peer)
    return parts.operations
