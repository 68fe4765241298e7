"""Nesterov's accelerated gradient descent with the step sequence of 1983."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import sqrt
from typing import Any


class Nesterov:
    """x is where the gradient is taken, y where plain descent from x leads; x goes past y by a growing part of y's last move.

        lambda_0 = 0    lambda_s = (1 + sqrt(1 + 4 lambda_{s-1}^2)) / 2    gamma_s = (1 - lambda_s) / lambda_{s+1}
        y_1 = x_1       y_{s+1} = x_s - rate * gradient(x_s)               x_{s+1} = (1 - gamma_s) y_{s+1} + gamma_s y_s

    gamma falls from 0, so the first step is plain descent, towards -1. For a smooth convex function whose slope changes no
    faster than 1 / rate, the distance to the minimum falls as 1 / s^2. Every step is linear in x, y and the gradient, so the
    average of several workers' steps is the step of their average.

    Nothing ever dampens a rounding error in a direction in which the function is flat; so x_{s+1} is computed as
    y_{s+1} + gamma_s (y_s - y_{s+1}), the same with smaller terms to round.
    """

    rate = 1e-3

    def __init__(self, rate: float | None = None) -> None:
        self.rate = self.rate if rate is None else rate
        self.state: dict[str, Any] = {}

    def step(self, x: Any, gradient: Any) -> None:
        """Change the parameters in place."""
        if not self.state:
            self.state = {"lambda": next_lambda(0.0), "y": x + 0.0}
        this, last_y = self.state["lambda"], self.state["y"]
        following = next_lambda(this)
        gamma = (1.0 - this) / following
        y = x - self.rate * gradient
        x[...] = y + gamma * (last_y - y)
        self.state = {"lambda": following, "y": y}


def next_lambda(last: float) -> float:
    """The step sequence."""
    return (1.0 + sqrt(1.0 + 4.0 * last * last)) / 2.0
