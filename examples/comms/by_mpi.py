"""MPI by mpi4py, under mpiexec: tensors as buffers of the host, without pickling."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch

from .interface import Comm, TensorComm


class Mpi(TensorComm):
    """The world communicator. Tensors of a GPU are copied to the host and back."""

    name = "mpi"

    def __init__(self) -> None:
        from mpi4py import MPI

        super().__init__()
        self._mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        gpus = torch.cuda.device_count()
        self.device = torch.device(f"cuda:{self.rank % gpus}" if gpus else "cpu")

    def barrier(self) -> None:
        self.comm.Barrier()

    def abort(self) -> None:
        self.comm.Abort(1)  # else the others would wait for ever

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        host = tensor.cpu().contiguous()
        self.comm.Bcast(host.numpy(), root)
        if host is not tensor:
            tensor.copy_(host)

    def _sum(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu().contiguous()
        self.comm.Allreduce(self._mpi.IN_PLACE, host.numpy())
        if host is not tensor:
            tensor.copy_(host)


def open_comm(name: str) -> Comm:
    """All processes of mpiexec."""
    return Mpi()
