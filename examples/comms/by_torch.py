"""torch.distributed: gloo on the CPU, or torch's own NCCL."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed.nn  # noqa: F401  # whose functions keep the group that there is when they are imported, and Adam imports them
from torch import distributed

from pynickel import rendezvous

from .interface import Comm, TensorComm

PATIENCE = timedelta(seconds=120)


class Distributed(TensorComm):
    """A process group of all ranks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        place = rendezvous.place()
        self.rank, self.size = place.rank, place.nranks
        if name == "nccl":
            number = place.rank if place.local_rank is None else place.local_rank
            self.device = torch.device(f"cuda:{number % torch.cuda.device_count()}")
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
            ask_mpi_for_address(place.on_one_machine)
        distributed.init_process_group(name, init_method="env://", rank=self.rank, world_size=self.size, timeout=PATIENCE)

    def barrier(self) -> None:
        distributed.barrier()

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        distributed.broadcast(tensor, root)

    def _sum(self, tensor: torch.Tensor) -> None:
        distributed.all_reduce(tensor)

    def close(self) -> None:
        distributed.barrier()  # a rank that leaves while another is still at work can bring that one down
        distributed.destroy_process_group()

    def abort(self) -> None:
        # After a failed sum gloo's threads do not always end, and then the process ends by SIGABRT when Python does.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def ask_mpi_for_address(on_one_machine: bool) -> None:
    """Under mpiexec nobody has said where the ranks meet: rank 0 finds a port and tells by MPI."""
    from mpi4py import MPI

    address = None
    if MPI.COMM_WORLD.Get_rank() == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            host = "127.0.0.1" if on_one_machine else socket.gethostbyname(socket.gethostname())
            address = host, probe.getsockname()[1]
    host, port = MPI.COMM_WORLD.bcast(address)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))


def open_comm(name: str) -> Comm:
    """All ranks of the launcher: pynickel run, torchrun, or mpiexec."""
    if name == "nccl" and not (torch.cuda.is_available() and distributed.is_nccl_available()):
        raise RuntimeError("--comm nccl is torch's own NCCL, which needs a GPU and a build of torch with it; --comm gloo does without")
    return Distributed(name)
