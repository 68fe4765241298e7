"""The data: numbers from 1 to 10, drawn without end; training and validation have a stream each."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
from model import INPUTS

TRAINING, VALIDATION = 1, 2  # which stream of a seed


class Numbers:
    """A stream of random numbers 1 to 10. `state` is where it stands; a stream with that state goes on in the same way."""

    def __init__(self, seed: int, stream: int) -> None:
        self._random = np.random.default_rng([seed, stream])

    def draw(self, count: int) -> list[int]:
        """The next numbers."""
        numbers: list[int] = self._random.integers(1, INPUTS, size=count, endpoint=True).tolist()
        return numbers

    @property
    def state(self) -> dict[str, Any]:
        """Plain numbers and names, which JSON can hold."""
        return dict(self._random.bit_generator.state)

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state = state


class Inputs:
    """Numbers as the net takes them: a batch of one, with a 1 in the number's place. The rows are made once, where the net is."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self._rows = xp.eye(INPUTS, dtype=getattr(xp, dtype))

    def __getitem__(self, number: int) -> Any:
        return self._rows[number - 1 : number, :]


def target(number: int) -> float:
    """What the net shall say: 1 for an odd number, 0 for an even one."""
    return float(number % 2)
