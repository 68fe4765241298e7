"""What a run is set to: the options that shape its numbers, and what follows from them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import secrets
from dataclasses import asdict, dataclass, fields
from typing import Any

from optimizers import OPTIMIZERS

EPOCH_SAMPLES = 10  # there is no stored data set: an epoch is as many updates as ten samples last
VALIDATE_EVERY = 10  # updates
VALIDATION_SAMPLES = 10
GOOD_ERROR = 0.001  # a validation error at or under this is good
GOOD_VALIDATIONS = 100  # so many good ones, counted in total and never reset, end the training


class Unfit(ValueError):
    """What the user asked for cannot be done; the text says why."""


@dataclass(frozen=True)
class Settings:
    """The options that the numbers of a run depend on; a saved model carries them."""

    seed: int
    dtype: str
    workers: int = 4
    samples: int = 1
    batch: int | None = None
    updates: int | None = None
    share: str = "gradients"
    every: int = 1
    optimizer: str = "nesterov"
    rate: float | None = None

    @property
    def shares(self) -> list[int]:
        """How many samples each worker has in an update."""
        if self.batch is None:
            return [self.samples] * self.workers
        each, rest = divmod(self.batch, self.workers)
        return [each + (rank < rest) for rank in range(self.workers)]

    @property
    def updates_per_epoch(self) -> int:
        """As given, or as many as ten samples last, rounded as C does it."""
        return self.updates or rounded(EPOCH_SAMPLES, sum(self.shares))

    def as_dict(self) -> dict[str, Any]:
        """For a saved model."""
        return asdict(self)


def rounded(numerator: int, denominator: int) -> int:
    """The quotient of two positive numbers as C's round() gives it: 2.5 becomes 3, where Python's round() says 2."""
    return (2 * numerator + denominator) // (2 * denominator)


def check(settings: Settings) -> Settings:
    """The settings, if they fit together; Unfit says which option does not."""
    if settings.batch is not None and settings.batch < settings.workers:
        raise Unfit(f"--batch {settings.batch} leaves some of the {settings.workers} workers without a sample; give at least one each")
    if settings.updates_per_epoch < 1:
        total = sum(settings.shares)
        raise Unfit(f"{total} samples per update make an epoch of {EPOCH_SAMPLES} samples shorter than one update; give --updates")
    if settings.every > 1 and settings.share != "parameters":
        raise Unfit(f"--every {settings.every} is for --share parameters; gradients are shared at every update")
    return settings


def going_on(stored: dict[str, Any], given: dict[str, Any], path: str) -> Settings:
    """The settings of a saved run; Unfit if the command line says otherwise."""
    for name, value in given.items():
        if value != stored[name]:
            raise Unfit(f"--{name} {value}: the run saved in {path} has {stored[name]}, and goes on with that; leave the option out")
    return Settings(**stored)


def fresh(given: dict[str, Any], dtype: str) -> Settings:
    """The settings of a new run; `dtype` if the command line names none, and a seed of its own."""
    values: dict[str, Any] = {"seed": secrets.randbelow(2**32), "dtype": dtype, **given}
    return check(Settings(**values))


def arguments_parser() -> argparse.ArgumentParser:
    """The command line of train.py."""
    parser = argparse.ArgumentParser(description="Several workers teach one small linear net which numbers are odd.")
    run = parser.add_argument_group("what the numbers depend on; with --resume these come from the saved model")
    run.add_argument("--workers", type=positive, help="processes, this one included (default: 4)")
    some = run.add_mutually_exclusive_group()
    some.add_argument("--samples", type=positive, help="samples of each worker in an update (default: 1)")
    some.add_argument("--batch", type=positive, help="samples of all workers together in an update, dealt out evenly")
    run.add_argument("--updates", type=positive, help="updates in an epoch (default: as many as ten samples last; 3 for 4 workers)")
    run.add_argument("--share", choices=["gradients", "parameters"], help="sum gradients (default), or average parameters")
    run.add_argument("--every", type=positive, help="updates between two averagings of parameters (default: 1)")
    run.add_argument("--optimizer", choices=list(OPTIMIZERS), help="default: nesterov, the sequence of 1983")
    run.add_argument("--rate", type=float, help="learning rate (default: the optimizer's)")
    run.add_argument("--dtype", choices=["float32", "float64"], help="default: float64 on the CPU library, else float32")
    run.add_argument("--seed", type=natural, help="makes a run repeatable (default: a new one each time)")
    parser.add_argument("--epochs", type=positive, default=1000, help="at most so many (default: 1000)")
    parser.add_argument("--save-every", type=positive, default=100, help="epochs between two interim models (default: 100)")
    parser.add_argument("--resume", metavar="FILE", help="go on from a saved model")
    parser.add_argument("--output", metavar="DIR", default="odd_even_run", help="where the files go (default: odd_even_run here)")
    parser.add_argument("--library", help="host, nvidia, or the path of a libnccl (default: as pynickel chooses)")
    parser.add_argument("--quiet", action="store_true", help="no line for each update and each epoch")
    parser.add_argument("--debug", action="store_true", help="every worker tells each meeting and its norms")
    return parser


def shaping(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options on the command line that are settings."""
    values = {field.name: getattr(arguments, field.name) for field in fields(Settings)}
    return {name: value for name, value in values.items() if value is not None}


def natural(text: str) -> int:
    """A number of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {number}")
    return number


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
