"""One rank of a peer of `--compare`: the same collective, sizes and loop on MPI (mpi4py) or gloo (torch.distributed), float32.

    python -m pynickel.tools.bench.peer mpi|gloo COLLECTIVE ITERATIONS WARMUP FILE BYTES...
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .collectives import COLLECTIVES

Operation = Callable[[], Any]


def main(arguments: list[str]) -> None:
    """Measure, and let rank 0 write size -> seconds of one operation (mean over ranks) into the file."""
    peer, collective, iterations, warmup, file, *sizes = arguments
    comm: Mpi | Gloo = Mpi() if peer == "mpi" else Gloo()
    found = {}
    for size in map(int, sizes):
        count = COLLECTIVES[collective].count(size, 4, comm.nranks)
        elements = COLLECTIVES[collective].elements(count, comm.nranks)
        send, recv = (np.ones(number, np.float32) for number in elements)
        operation = comm.operation(collective, send, recv)
        for _ in range(int(warmup)):
            operation()
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(int(iterations)):
            operation()
        found[4 * max(elements)] = comm.mean((time.perf_counter() - begin) / int(iterations))
    if comm.rank == 0:
        Path(file).write_text(json.dumps({"version": comm.version, "seconds": found}), encoding="utf-8")
    comm.close()


class Mpi:
    """The MPI under mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.rank, self.nranks = self.comm.rank, self.comm.size
        self.version = MPI.Get_library_version().split(",")[0].strip("\0\n ")

    def barrier(self) -> None:
        """Wait for all."""
        self.comm.Barrier()

    def mean(self, seconds: float) -> float:
        """The mean over ranks."""
        return float(self.comm.allreduce(seconds) / self.nranks)

    def close(self) -> None:
        """MPI ends itself at exit."""

    def operation(self, collective: str, send: Any, recv: Any) -> Operation:
        """One call of the collective."""
        comm, root = self.comm, self.rank == 0
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        return {
            "all_reduce": lambda: comm.Allreduce(send, recv),
            "all_gather": lambda: comm.Allgather(send, recv),
            "alltoall": lambda: comm.Alltoall(send, recv),
            "broadcast": lambda: comm.Bcast(send),
            "gather": lambda: comm.Gather(send, recv if root else None),
            "reduce": lambda: comm.Reduce(send, recv if root else None),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(send, recv),
            "scatter": lambda: comm.Scatter(send if root else None, recv),
            "sendrecv": lambda: comm.Sendrecv(send, after, 0, recv, before, 0),
        }[collective]


class Gloo:
    """torch.distributed's gloo, for ranks that a launcher told their place by RANK, WORLD_SIZE and MASTER_*."""

    def __init__(self) -> None:
        import torch
        from torch import distributed

        self.torch, self.dist = torch, distributed
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self.rank, self.nranks = distributed.get_rank(), distributed.get_world_size()
        self.version = f"gloo of torch {torch.__version__}"

    def barrier(self) -> None:
        """Wait for all."""
        self.dist.barrier()

    def mean(self, seconds: float) -> float:
        """The mean over ranks."""
        value = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(value)
        return float(value[0]) / float(self.nranks)

    def close(self) -> None:
        """Leave the group together."""
        self.dist.destroy_process_group()

    def operation(self, collective: str, send: Any, recv: Any) -> Operation:
        """One call of the collective; where gloo only has an in-place form, that."""
        dist, root = self.dist, self.rank == 0
        s, r = self.torch.from_numpy(send), self.torch.from_numpy(recv)
        sends, recvs = list(s.chunk(self.nranks)), list(r.chunk(self.nranks))
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks

        def ring() -> None:
            work = dist.isend(s, after)
            dist.recv(r, before)
            work.wait()

        return {
            "all_reduce": lambda: dist.all_reduce(s),
            "all_gather": lambda: dist.all_gather(recvs, s),
            "alltoall": lambda: dist.all_to_all_single(r, s),
            "broadcast": lambda: dist.broadcast(s, 0),
            "gather": lambda: dist.gather(s, recvs if root else None),
            "reduce": lambda: dist.reduce(s, 0),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(r, s),
            "scatter": lambda: dist.scatter(r, sends if root else None),
            "sendrecv": ring,
        }[collective]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
