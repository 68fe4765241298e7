"""nccl-tests' options under its letters, long names and defaults, and the exit statuses."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .settings import OPS, TYPES, size_of

# Exit status by what went wrong; 7 is nccl-tests' for wrong values.
INTERNAL, CUDA, NCCL, TIMEOUT, NOT_THERE, USAGE, WRONG = range(1, 8)
INTERRUPTED = 130  # as a shell says it
LEFT_OUT = {
    "-g/--ngpus": "GPUs per thread; use more threads or processes", "-p/--parallel_init": "threads always begin together",
    "-y/--stream_null": "the default stream is what is used", "-G/--cudagraph": "CUDA graphs", "-C/--report_cputime": "launch times",
    "-x/--cta_policy": "the CTA policy", "-D/--device_implementation": "the device API", "-V/--device_cta_count": "the device API",
    "-S/--report_timestamps": "time stamps", "-M/--memory": "GPU memory", "-u/--unalign": "shifted buffers",
    "-I/--per_iter_timing": "times of single iterations", "-K/--per_iter_skip": "times of single iterations",
}  # fmt: skip


WORDS = "pynickel.bench.words"


class Usage(click.UsageError):
    """Wrong usage, with nccl-tests' exit status for it."""

    exit_code = USAGE


if TYPE_CHECKING:
    IntType = click.ParamType[int]
else:
    IntType = click.ParamType  # up to 8.3 it cannot be subscripted


class Size(IntType):
    """Bytes, with K, M or G."""

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        try:
            found = size_of(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no size; give bytes, or a number with K, M or G", param, ctx)
        if found < self.least:
            self.fail(f"{value!r} is less than {self.least}", param, ctx)
        return found


class Bench(click.Command):
    """A command that names nccl-tests' options that are not there."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and explain what fails; the words are kept for ranks that are to be started."""
        ctx.meta[WORDS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for names, what in LEFT_OUT.items():
                if error.option_name in names.split("/"):
                    raise Usage(f"{error.option_name} of nccl-tests ({what}) is not there", ctx) from None
            raise Usage(error.format_message(), ctx) from None
        except click.UsageError as error:
            raise Usage(error.format_message(), ctx) from None


class Number(click.FloatRange):
    """A number in a range, and not NaN, which is in all of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value!r} is no number", param, ctx)
        return found


def listed(given: str, known: Sequence[str], otherwise: str, what: str, aloud: bool) -> tuple[str, ...]:
    """The types or operators that are meant; an unknown one is said and replaced, as nccl-tests does."""
    if given == "all":
        return tuple(known)
    if given in known:
        return (given,)
    if aloud:
        click.echo(f"invalid {what} {given}, using {otherwise}; there are {', '.join(known)}, all", err=True)
    return (otherwise,)


def options(function: Callable[..., None]) -> Callable[..., None]:
    """nccl-tests' options, under its letters, long names and defaults."""
    for option in reversed(
        (
            click.option("-b", "--minbytes", type=Size(), default="32M", help="Smallest size. [32M]"),
            click.option("-e", "--maxbytes", type=Size(), default="32M", help="Largest size. [32M]"),
            click.option("-i", "--stepbytes", type=Size(1), default="1M", help="Step between sizes, unless -f is given. [1M]"),
            click.option("-f", "--stepfactor", type=Number(min=1), default=1, help="Factor between sizes; more than 1. [off]"),
            click.option("-n", "--iters", type=click.IntRange(1), default=20, help="Timed iterations. [20]"),
            click.option("-w", "--warmup_iters", type=click.IntRange(0), default=1, help="Untimed iterations before. [1]"),
            click.option("-m", "--agg_iters", type=click.IntRange(1), default=1, help="Operations per group. [1]"),
            click.option("-N", "--run_cycles", type=click.IntRange(0), default=1, help="Whole sweeps; 0: for ever. [1]"),
            click.option("-c", "--check", type=click.IntRange(0), default=1, help="Checked repetitions; 0: none. [1]"),
            click.option("-o", "--op", default="sum", help=f"{', '.join(OPS)} or all. [sum]"),
            click.option("-d", "--datatype", default="float", help=f"{', '.join(TYPES)} or all. [float]"),
            click.option("-r", "--root", default="0", help="Root; -1 or all: every rank in turn. [0]"),
            click.option("-t", "--nthreads", type=click.IntRange(1), default=1, help="Ranks of each process, as threads. [1]"),
            click.option("-z", "--blocking", type=click.IntRange(0, 3), default=0, help="Wait after each operation (1: and barrier, "
                         "2: only wait) or after each group (3: and barrier); barriers are not timed. [0]"),
            click.option("-a", "--average", type=click.IntRange(0, 3), default=1, help="Time of rank 0 (0), mean (1), min (2) or max (3) "
                         "of all ranks. [1]"),
            click.option("-T", "--timeout", type=Number(0), default=0, help="Seconds a wait may take; 0: the library's. [0]"),
            click.option("-R", "--local_register", type=click.IntRange(0, 2), default=0, help="Register the buffers: 1, or 2 for "
                         "symmetric windows. [0]"),
            click.option("-J", "--output_file", type=click.Path(dir_okay=False, path_type=Path), help="Write JSON; a file that is there is "
                         "kept, and a number is added to the name."),
        )
    ):  # fmt: skip
        function = option(function)
    return function
