"""Buffers that are larger than the processor's caches, which are copied past them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import host_c
from helpers.ranks import run

BYTES = (17 << 20) + 77  # of each rank; more than the last cache together, no whole number of lines or pages


def moved(rank: int, nranks: int, unique_id: Any, memory: str) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    make = host_c.empty if memory == "arena" or (memory == "arena on rank 0" and rank == 0) else np.empty
    room = make(nranks * BYTES + 64, np.uint8)
    ramp = np.resize(np.arange(251, dtype=np.uint8), BYTES)

    def check(got: np.ndarray, source: int, what: str) -> None:
        if not (got == ramp + source).all():
            raise AssertionError(f"{what} on rank {rank}: wrong data from rank {source}, first at {np.argmax(got != ramp + source)}")

    for offset in (0, 5):
        room.fill(255)
        one, all_ = room[offset : offset + BYTES], room[offset : offset + nranks * BYTES]
        one[:] = ramp + rank
        comm.broadcast(one, one, 0)
        check(one, 0, "broadcast")
        one[:] = ramp + rank
        comm.send(one, 1) if rank == 0 else comm.recv(one, 0)
        check(one, 0, "send and receive")
        mine = make(BYTES, np.uint8)
        mine[:] = ramp + rank
        comm.all_gather(mine, all_)
        for source in range(nranks):
            check(all_[source * BYTES : (source + 1) * BYTES], source, "all-gather")
        assert (room[:offset] == 255).all() and (room[offset + all_.size :] == 255).all()
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("memory", ["plain", "arena", "arena on rank 0"])
def test_large(memory: str) -> None:
    """Broadcast, send and receive, and all-gather bring every byte to its place at any address, and touch nothing beyond."""
    run(2, moved, memory, make_comm=False, deadline=40)
