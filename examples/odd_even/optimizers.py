"""The optimizers to choose from. Each changes the parameters in place, and keeps in `state` what the next step needs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from nesterov import Nesterov


class Optimizer(ABC):
    """The gradient in, a change out. `state` holds vectors and numbers by name; it is empty before the first step."""

    rate: float

    def __init__(self, rate: float | None = None) -> None:
        self.rate = self.rate if rate is None else rate
        self.state: dict[str, Any] = {}

    def step(self, x: Any, gradient: Any) -> None:
        """Change the parameters in place."""
        x -= self.change(gradient)

    @abstractmethod
    def change(self, gradient: Any) -> Any:
        """What to take off the parameters."""

    def kept(self, name: str, gradient: Any) -> Any:
        """A vector of the state, zeros at first."""
        return self.state[name] if name in self.state else gradient * 0.0


class Descent(Optimizer):
    """Plain gradient descent. Linear."""

    rate = 0.02

    def change(self, gradient: Any) -> Any:
        """A step down the slope."""
        return self.rate * gradient


class Momentum(Optimizer):
    """The heavy ball: a step keeps 0.9 of the last one. Linear."""

    rate = 0.005

    def change(self, gradient: Any) -> Any:
        """A step down the slope, and on with the last one."""
        self.state["speed"] = 0.9 * self.kept("speed", gradient) + gradient
        return self.rate * self.state["speed"]


class Adagrad(Optimizer):
    """Each parameter's step shrinks with all the gradients that it has seen."""

    rate = 0.05

    def change(self, gradient: Any) -> Any:
        """A step over the root of the sum of squares."""
        self.state["squares"] = self.kept("squares", gradient) + gradient * gradient
        return self.rate * gradient / (self.state["squares"] ** 0.5 + 1e-10)


class Adadelta(Optimizer):
    """Steps have the size of the last ones, over that of the last gradients."""

    rate = 1.0

    def change(self, gradient: Any) -> Any:
        """Running means of squares with a memory of 0.95."""
        self.state["squares"] = 0.95 * self.kept("squares", gradient) + 0.05 * gradient * gradient
        steps = self.kept("steps", gradient)
        step = gradient * ((steps + 1e-6) / (self.state["squares"] + 1e-6)) ** 0.5
        self.state["steps"] = 0.95 * steps + 0.05 * step * step
        return self.rate * step


class Adam(Optimizer):
    """Running means of the gradient and of its square, both freed of their start at zero."""

    rate = 0.01

    def change(self, gradient: Any) -> Any:
        """The mean gradient over the root of the mean square."""
        count = self.state.get("count", 0.0) + 1.0
        mean = 0.9 * self.kept("mean", gradient) + 0.1 * gradient
        square = 0.999 * self.kept("square", gradient) + 0.001 * gradient * gradient
        self.state = {"count": count, "mean": mean, "square": square}
        return self.rate * (mean / (1.0 - 0.9**count)) / ((square / (1.0 - 0.999**count)) ** 0.5 + 1e-8)


OPTIMIZERS: dict[str, Any] = {
    "nesterov": Nesterov,
    "sgd": Descent,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "adam": Adam,
}
