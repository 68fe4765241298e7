"""What an experiment may ask of its ranks; and how a library that has a broadcast and a sum of tensors answers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch


class Comm(ABC):
    """All ranks of a training run. All call the same methods in the same order."""

    name: str
    rank: int
    size: int
    device: torch.device

    @abstractmethod
    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    @abstractmethod
    def copy_model(self, model: torch.nn.Module, root: int = 0) -> None:
        """Every rank's model gets the root's parameters."""

    @abstractmethod
    def average_gradients(self, model: torch.nn.Module, samples: int) -> None:
        """Every rank's gradients, the mean over so many samples, become the mean over all ranks' samples."""

    @abstractmethod
    def comm_error(self, model: torch.nn.Module) -> float:
        """How far the ranks' parameters are apart: the mean square difference from their mean; 0 means that all are the same."""

    @abstractmethod
    def sum(self, values: list[float]) -> list[float]:
        """The sums over all ranks."""

    def close(self) -> None:
        """The end, which all ranks reach."""
        return

    def abort(self) -> None:
        """The end of a rank that has failed; the others, which wait for it, fail too."""
        return


class TensorComm(Comm):
    """What follows from a broadcast and a sum. As in pynickel.training, gradients travel as one vector, kept between steps."""

    def __init__(self) -> None:
        self._flat = torch.empty(0)

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """The root's values take the place of all others."""

    @abstractmethod
    def _sum(self, tensor: torch.Tensor) -> None:
        """The sum over all ranks takes every rank's place."""

    def copy_model(self, model: torch.nn.Module, root: int = 0) -> None:
        for tensor in [*model.parameters(), *model.buffers()]:
            self._broadcast(tensor.detach(), root)

    def average_gradients(self, model: torch.nn.Module, samples: int) -> None:
        parameters = list(model.parameters())
        grads = [as_gradient(parameter).reshape(-1) for parameter in parameters]
        weight = grads[0].new_full((1,), samples)
        size = sum(grad.numel() for grad in grads) + 1
        if self._flat.numel() != size or self._flat.dtype != weight.dtype:
            self._flat = weight.new_empty(size)
        gradients = self._flat[:-1]
        torch.cat([*grads, weight], out=self._flat)
        gradients *= samples
        self._sum(self._flat)
        gradients /= float(self._flat[-1])
        for parameter, piece in zip(parameters, gradients.split([grad.numel() for grad in grads]), strict=True):
            parameter.grad = piece.view_as(parameter)

    def comm_error(self, model: torch.nn.Module) -> float:
        errors = []
        for parameter in model.parameters():
            mine = parameter.detach().double()
            first = mine.clone()
            self._broadcast(first, 0)
            mine -= first  # equal values are exactly 0 apart, whatever rounding a mean has
            mean = mine.clone()
            self._sum(mean)
            errors.append(float(((mine - mean / self.size) ** 2).mean()))
        return self.sum([sum(errors) / len(errors)])[0] / self.size

    def sum(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        self._sum(tensor)
        found: list[float] = tensor.tolist()
        return found


def as_gradient(parameter: Any) -> torch.Tensor:
    """Its gradient; an experiment here uses all parameters."""
    if parameter.grad is None:
        raise ValueError(f"a parameter of shape {tuple(parameter.shape)} has no gradient: call backward first")
    gradient: torch.Tensor = parameter.grad
    return gradient
