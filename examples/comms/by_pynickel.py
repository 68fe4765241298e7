"""pynickel: NCCL where there is a GPU, else the CPU library. The same code for both; all of it is in pynickel.training."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch

from pynickel import rendezvous, training

from .interface import Comm


class Nickel(Comm):
    """A communicator of all ranks."""

    name = "pynickel"

    def __init__(self) -> None:
        self.comm = rendezvous.init()
        self.rank, self.size = self.comm.rank, self.comm.nranks
        self.device = torch.device("cpu" if self.comm.library.kind == "host" else f"cuda:{self.comm.device}")

    def barrier(self) -> None:
        self.comm.barrier()

    def copy_model(self, model: torch.nn.Module, root: int = 0) -> None:
        training.broadcast_parameters(self.comm, model, root)

    def average_gradients(self, model: torch.nn.Module, samples: int) -> None:
        training.average_gradients(self.comm, model, samples)

    def comm_error(self, model: torch.nn.Module) -> float:
        return training.parameter_error(self.comm, model)

    def sum(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        found: list[float] = self.comm.all_reduce(tensor).tolist()
        return found

    def close(self) -> None:
        self.comm.close()

    def abort(self) -> None:
        self.comm.abort()


def open_comm(name: str) -> Comm:
    """All ranks of the launcher: pynickel run, torchrun, mpiexec, srun, or one process alone."""
    return Nickel()
