"""The net: 10 inputs, a linear layer of 20, a linear output, no activation between; its numbers lie in two flat vectors."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

INPUTS, HIDDEN, OUTPUTS = 10, 20, 1
SHAPES = [(HIDDEN, INPUTS), (HIDDEN,), (OUTPUTS, HIDDEN), (OUTPUTS,)]  # weights and biases, first layer first
SIZE = sum(map(prod, SHAPES))  # 241


class Model:
    """The net over a vector of parameters and one of gradients, each SIZE long; its layers are views of them, made once.

    `xp` is the arrays' namespace; what is used of it is in the array API standard, so NumPy and CuPy run the same code.
    The vectors must be of a kind whose slices are views, as they are in both.
    """

    def __init__(self, xp: Any, parameters: Any, gradients: Any) -> None:
        self.xp, self.parameters, self.gradients = xp, parameters, gradients
        self.layers = pieces(xp, parameters)
        self.slopes = pieces(xp, gradients)

    def predict(self, x: Any) -> Any:
        """The output for a batch of inputs (evaluation: nothing is kept for a gradient)."""
        return self._forward(x)[1]

    def learn(self, x: Any, target: float) -> Any:
        """The mean square error for a batch with this target; its slope is added to `gradients`."""
        xp = self.xp
        _, _, weight, _ = self.layers
        hidden_slope, hidden_bias_slope, output_slope, output_bias_slope = self.slopes
        hidden, output = self._forward(x)
        off = output - target
        back = off * (2.0 / prod(off.shape))
        output_slope += back.T @ hidden
        output_bias_slope += xp.sum(back, axis=0)
        back = back @ weight
        hidden_slope += back.T @ x
        hidden_bias_slope += xp.sum(back, axis=0)
        return xp.mean(off * off)

    def _forward(self, x: Any) -> tuple[Any, Any]:
        weight, bias, output_weight, output_bias = self.layers
        hidden = x @ weight.T + bias
        return hidden, hidden @ output_weight.T + output_bias


def pieces(xp: Any, vector: Any) -> list[Any]:
    """Views of a flat vector in the shapes of the layers."""
    found, start = [], 0
    for shape in SHAPES:
        found.append(xp.reshape(vector[start : start + prod(shape)], shape))
        start += prod(shape)
    return found


def initial_parameters(seed: int) -> np.ndarray:
    """A fresh vector: weights and biases uniform within 1 / sqrt(inputs of their layer)."""
    random = np.random.default_rng([seed, 0])
    bounds = [1 / sqrt(INPUTS), 1 / sqrt(INPUTS), 1 / sqrt(HIDDEN), 1 / sqrt(HIDDEN)]
    return np.concatenate([random.uniform(-bound, bound, prod(shape)) for bound, shape in zip(bounds, SHAPES, strict=True)])
