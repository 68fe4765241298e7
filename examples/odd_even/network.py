"""One worker's copy of the net: its samples, its optimizer, and what it shares with the other workers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from arrays import GpuArrays, HostArrays
from datasets import TRAINING, Inputs, Numbers, target
from model import SIZE, Model
from optimizers import OPTIMIZERS
from settings import Settings

from pynickel import Communicator, UniqueId
from pynickel.training import average_gradients

Meet = Callable[[str], object]


class Statistics(NamedTuple):
    """What an update was like: the losses of the samples added up, their number, seconds for drawing and for computing."""

    loss: float = 0.0
    samples: int = 0
    load_seconds: float = 0.0
    compute_seconds: float = 0.0

    def plus(self, other: Statistics) -> Statistics:
        """Both together."""
        return Statistics(
            self.loss + other.loss,
            self.samples + other.samples,
            self.load_seconds + other.load_seconds,
            self.compute_seconds + other.compute_seconds,
        )


class Network:
    """The net of one worker. All parameters are one vector and all gradients another; NCCL works on them where they are."""

    def __init__(self, arrays: HostArrays | GpuArrays, settings: Settings) -> None:
        self.arrays, self.settings = arrays, settings
        self.parameters = arrays.vector(SIZE)
        self.gradients = arrays.vector(SIZE)
        self.model = Model(arrays.xp, self.parameters, self.gradients)
        self.inputs = Inputs(arrays.xp, arrays.dtype)
        self.optimizer = OPTIMIZERS[settings.optimizer](settings.rate)
        self.numbers = Numbers(settings.seed, TRAINING)
        self.updates = 0

    def take_part(self, shares: list[int], rank: int) -> None:
        """Learn how many samples each worker has in an update."""
        self.shares, self.own, self.all = shares, shares[rank], sum(shares)
        self.first = sum(shares[:rank])

    def connect(self, unique_id: UniqueId, rank: int) -> None:
        """Join the other workers' communicator."""
        self.comm = Communicator(self.settings.workers, unique_id, rank, library=self.arrays.library)

    def update(self, meet: Meet) -> Statistics:
        """One step of all workers together, which meet along the way."""
        statistics = self.compute()
        self.updates += 1
        meet("gradients computed")
        if self.settings.share == "gradients":
            self.average([self.gradients], "sum", meet)
            self.optimizer.step(self.parameters, self.gradients)
        else:
            self.gradients /= self.own
            self.optimizer.step(self.parameters, self.gradients)
            if self.updates % self.settings.every == 0:
                self.average(self.drifting(), "mean", meet)
        meet("updated")
        return statistics

    def compute(self) -> Statistics:
        """Add up the gradients of this worker's samples. All workers draw the same numbers; each takes its own part of them."""
        self.gradients[...] = 0
        began = time.perf_counter()
        numbers = self.numbers.draw(self.all)[self.first : self.first + self.own]
        drawn = time.perf_counter()
        losses = [self.model.learn(self.inputs[number], target(number)) for number in numbers]
        loss = float(sum(losses))
        return Statistics(loss, self.own, drawn - began, time.perf_counter() - drawn)

    def drifting(self) -> list[Any]:
        """What each worker has of its own when parameters are shared: these, and, after several updates, where its optimizer stands.

        In one place with its parameters that (Nesterov's y, say) makes sense; beside everybody's it is a wrong momentum, which
        grows from time to time.
        """
        vectors = [self.parameters]
        if self.settings.every > 1:
            vectors += [value for value in self.optimizer.state.values() if hasattr(value, "shape")]
        return vectors

    def average(self, vectors: list[Any], reduction: str, meet: Meet) -> None:
        """All workers' mean takes the vectors' place; who has seen more samples weighs more."""
        meet("before sharing")
        average_gradients(self.comm, vectors, self.shares, reduction=reduction)
        meet("after sharing")

    def mean_absolute(self, vector: Any) -> float:
        """The mean of the magnitudes."""
        xp = self.arrays.xp
        return float(xp.mean(xp.abs(vector)))

    def root_mean_square(self, vector: Any) -> float:
        """The root of the mean of the squares."""
        return sqrt(float(self.arrays.xp.mean(vector * vector)))

    def norms(self) -> str:
        """How large gradients and parameters are, in words."""
        return f"mean |gradient| {self.mean_absolute(self.gradients):.4e}, mean |parameter| {self.mean_absolute(self.parameters):.4e}"

    def all_norms(self) -> str:
        """The same with the roots of the mean squares."""
        gradient, parameter = self.root_mean_square(self.gradients), self.root_mean_square(self.parameters)
        return f"{self.norms()}, rms gradient {gradient:.4e}, rms parameter {parameter:.4e}"

    @property
    def state(self) -> dict[str, Any]:
        """All that this worker needs to go on, in host memory."""
        vectors = {name: self.arrays.read(value) for name, value in self.optimizer.state.items() if hasattr(value, "shape")}
        return {
            "parameters": self.arrays.read(self.parameters),
            "optimizer": self.optimizer.state | vectors,
            "numbers": self.numbers.state,
            "updates": self.updates,
        }

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.arrays.write(self.parameters, state["parameters"])
        self.optimizer.state = {name: self._restored(value) for name, value in state["optimizer"].items()}
        self.numbers.state = state["numbers"]
        self.updates = state["updates"]

    def _restored(self, value: Any) -> Any:
        """A value of an optimizer's state, where the optimizer wants it."""
        if np.ndim(value) == 0:
            return float(value)
        vector = self.gradients * 0.0
        self.arrays.write(vector, value)
        return vector
