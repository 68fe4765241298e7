"""One process alone, which has nobody to talk to."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys

import torch

from .interface import Comm


class Serial(Comm):
    """The first GPU, or the CPU."""

    name, rank, size = "serial", 0, 1

    def __init__(self) -> None:
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    def barrier(self) -> None:
        return

    def copy_model(self, model: torch.nn.Module, root: int = 0) -> None:
        return

    def average_gradients(self, model: torch.nn.Module, samples: int) -> None:
        return

    def comm_error(self, model: torch.nn.Module) -> float:
        return 0.0

    def sum(self, values: list[float]) -> list[float]:
        return values


def open_comm(name: str) -> Comm:
    """The only rank; if a launcher has started several, each of them is alone, and that is most likely not meant."""
    from pynickel import rendezvous

    if (place := rendezvous.place()).nranks > 1:
        print(f"--comm serial: each of the {place.nranks} processes trains alone", file=sys.stderr)
    return Serial()
