"""How often the net is wrong about fresh numbers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence

from datasets import Inputs, target
from model import Model


def error_rate(model: Model, inputs: Inputs, numbers: Sequence[int]) -> float:
    """The part of the numbers that the net takes for the wrong kind."""
    return sum(not is_right(float(model.predict(inputs[number])[0, 0]), target(number)) for number in numbers) / len(numbers)


def is_right(output: float, wanted: float) -> bool:
    """Whether an output is on the right side of a half; a half itself counts as odd here."""
    return output >= 0.5 if wanted else output < 0.5
