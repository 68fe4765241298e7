"""Ask the trained net about ten random numbers: `python examples/odd_even/test.py`, in the folder where train.py was run."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import sys

import numpy as np
from datasets import Inputs
from model import INPUTS, Model
from saved import load
from settings import Unfit


def verdict(output: float) -> str:
    """What the net says; up to a half, and a half itself, is even here."""
    return "even" if output <= 0.5 else "odd"


def main() -> int:
    """Print a line for each number; the exit status is 1 if the net is wrong about one."""
    parser = argparse.ArgumentParser(description="Ask a trained net which of ten random numbers are odd.")
    parser.add_argument("model", nargs="?", default="odd_even_run/ExampleModel.npz", help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="makes the ten numbers repeatable")
    parser.add_argument("--all", action="store_true", help="each number from 1 to 10 instead of ten random ones")
    arguments = parser.parse_args()
    try:
        parameters = load(arguments.model).parameters
    except (OSError, Unfit) as error:
        print(f"test.py: {error}", file=sys.stderr)
        return 2
    model = Model(np, parameters, np.zeros_like(parameters))
    inputs = Inputs(np, parameters.dtype.name)
    drawn = np.random.default_rng(arguments.seed).integers(1, INPUTS, size=10, endpoint=True).tolist()
    right = 0
    numbers = range(1, INPUTS + 1) if arguments.all else drawn
    for number in numbers:
        output = min(max(float(model.predict(inputs[number])[0, 0]), 0.0), 1.0)
        print(f"{number:2d}: {output:.2f}, {verdict(output)}")
        right += verdict(output) == ("odd" if number % 2 else "even")
    print(f"{right} of {len(numbers)} right")
    return 0 if right == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
