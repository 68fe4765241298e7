"""`pynickel bench COLLECTIVE`: nccl-tests' options, table, exit status and JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import errors
from .compare import PEERS
from .settings import OPS, TYPES, Settings, size_of

if TYPE_CHECKING:
    from .sweep import Row

# Exit status by what went wrong; 7 is nccl-tests' for wrong values.
INTERNAL, CUDA, NCCL, TIMEOUT, NOT_THERE, USAGE, WRONG = range(1, 8)
LEFT_OUT = {
    "-g/--ngpus": "GPUs per thread; use more threads or processes", "-p/--parallel_init": "threads always begin together",
    "-y/--stream_null": "the default stream is what is used", "-G/--cudagraph": "CUDA graphs", "-C/--report_cputime": "launch times",
    "-x/--cta_policy": "the CTA policy", "-D/--device_implementation": "the device API", "-V/--device_cta_count": "the device API",
    "-S/--report_timestamps": "time stamps", "-M/--memory": "GPU memory", "-u/--unalign": "shifted buffers",
    "-I/--per_iter_timing": "times of single iterations", "-K/--per_iter_skip": "times of single iterations",
}  # fmt: skip


class Usage(click.UsageError):
    """Wrong usage, with nccl-tests' exit status for it."""

    exit_code = USAGE


class Size(click.ParamType[int]):
    """Bytes, with K, M or G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        try:
            return size_of(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no size; give bytes, or a number with K, M or G", param, ctx)


class Bench(click.Command):
    """A command that names nccl-tests' options that are not there."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and explain what fails."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for names, what in LEFT_OUT.items():
                if error.option_name in names.split("/"):
                    raise Usage(f"{error.option_name} of nccl-tests ({what}) is not there", ctx) from None
            raise Usage(error.format_message(), ctx) from None
        except click.UsageError as error:
            raise Usage(error.format_message(), ctx) from None


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
            click.option("-i", "--stepbytes", type=Size(), default="1M", help="Step between sizes, unless -f is given. [1M]"),
            click.option("-f", "--stepfactor", type=click.FloatRange(min=1), default=1, help="Factor between sizes; more than 1. [off]"),
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
            click.option("-T", "--timeout", type=click.FloatRange(0), default=0, help="Seconds a wait may take; 0: the library's. [0]"),
            click.option("-R", "--local_register", type=click.IntRange(0, 2), default=0, help="Register the buffers: 1, or 2 for "
                         "symmetric windows. [0]"),
            click.option("-J", "--output_file", type=click.Path(dir_okay=False, path_type=Path), help="Write JSON; a file that is there is "
                         "kept, and a number is added to the name."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


@click.command(
    "bench",
    cls=Bench,
    epilog="Options of nccl-tests that are not there: " + ", ".join(name for name in LEFT_OUT) + ".",
)
@click.argument("collective", metavar="COLLECTIVE")
@options
@click.option("--ranks", type=click.IntRange(1), help="Processes to start on this machine. [2, or those of the launcher]")
@click.option("--library", help="host, nvidia, rccl or a path. [as PYNICKEL_LIBRARY or the machine says]")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw time and bus bandwidth against size.")
@click.option("--compare", help=f"Measure these too, comma separated: {', '.join(PEERS)}.")
@click.pass_context
def command(context: click.Context, /, collective: str, **given: Any) -> None:
    """Measure a collective as nccl-tests does.

    COLLECTIVE: all_gather, all_reduce, alltoall, broadcast, gather, reduce, reduce_scatter, scatter or sendrecv. Alone it
    starts --ranks processes; under torchrun, mpirun, srun or `pynickel run` each process is one of the ranks.

    Ends with 0; 7 if values were wrong; 1 to 6 for other failures: internal, CUDA, NCCL, timeout, not available, usage.
    """
    from ... import rendezvous

    place = rendezvous.place()
    starts = place.launcher == "single" and (given["ranks"] or 2) > 1
    settings = settings_of(collective, given, aloud=place.rank == 0 and not starts)
    peers = chosen_peers(given["compare"])
    if starts:
        context.exit(start_ranks(given["ranks"] or 2))
    try:
        status = measure(settings, given["library"], given["plot"], peers)
    except click.UsageError as error:
        raise Usage(error.message, context) from None
    except errors.NCCLError as error:
        click.echo(f"# {type(error).__name__}: {error}", err=True)
        status = status_of(error)
    context.exit(status)


def settings_of(collective: str, given: dict[str, Any], aloud: bool) -> Settings:
    """The options, checked together; what is replaced is said aloud by one process only."""
    from .collectives import COLLECTIVES

    if collective not in COLLECTIVES:
        raise Usage(f"{collective!r} is no collective; there are {', '.join(COLLECTIVES)}")
    if given["minbytes"] > given["maxbytes"]:
        raise Usage(f"-b {given['minbytes']} is more than -e {given['maxbytes']}; the smallest size comes first")
    root = -1 if given["root"] == "all" else given["root"]
    try:
        root = int(root)
    except ValueError:
        raise Usage(f"-r {root!r} is no rank; give a number, or -1 or all for every rank in turn") from None
    return Settings(
        collective, given["nthreads"], given["minbytes"], given["maxbytes"], given["stepbytes"], given["stepfactor"], given["iters"],
        given["warmup_iters"], given["agg_iters"], given["run_cycles"], given["check"], listed(given["op"], OPS, "sum", "op", aloud),
        listed(given["datatype"], list(TYPES), "float", "type", aloud), root, given["average"], given["blocking"], given["local_register"],
        given["timeout"] or None, given["output_file"],
    )  # fmt: skip


def chosen_peers(given: str | None) -> list[str]:
    """The names after --compare."""
    names = [name.strip() for name in given.split(",")] if given else []
    for name in names:
        if name not in PEERS:
            raise Usage(f"--compare {name!r} is not known; there are {', '.join(PEERS)}")
    return names


def start_ranks(nranks: int) -> int:
    """Run this same command once for each rank."""
    program = [sys.executable, "-m", "pynickel", *sys.argv[1:]]
    return subprocess.call([sys.executable, "-m", "pynickel", "run", "--no-prefix", "-n", str(nranks), "--", *program])


def status_of(error: errors.NCCLError) -> int:
    """The exit status of a failure."""
    for kind, status in ((errors.WaitTimeoutError, TIMEOUT), (errors.NotAvailableError, NOT_THERE), (errors.CudaError, CUDA)):
        if isinstance(error, kind):
            return status
    return NCCL


def measure(settings: Settings, library: str | None, plot: Path | None, peers: list[str]) -> int:
    """This process's ranks; where rank 0 is, the table and the files. Returns the exit status."""
    from . import compare, output, start
    from .table import Summary, heading, reporter

    summary = Summary()
    rows: list[Row] = []
    seen: dict[str, Any] = {}
    began = now()

    def begin(comm: Any, devices: list[dict[str, Any]]) -> Callable[[Row], None]:
        version = f"{comm.library.kind} library {'.'.join(map(str, comm.library.version))}, {comm.library.path}"
        seen.update(devices=devices, version=version, nranks=comm.nranks)
        click.echo(heading(settings, [start.device_line(device) for device in devices], version))
        return reporter(shown(settings, comm.nranks), summary, rows)

    here = start.run(settings, library, begin)
    if not here:
        return 0  # what was wrong on any rank, rank 0 has counted
    click.echo(summary.footer(settings.collective))
    others = {}
    for peer in peers:
        try:
            others[peer] = compare.measure(peer, seen["nranks"], settings, limit=300)
        except compare.PeerError as error:
            click.echo(f"# {error}", err=True)
    if others:
        click.echo(compare.table(settings.collective, rows, others))
    if settings.output:
        content = output.document(settings, rows, summary, seen["devices"], seen["version"], (began, now()), "")
        click.echo(f"# written: {output.write(settings.output, content)}")
    if plot:
        from .plot import draw

        draw(plot, f"{settings.collective}, {seen['nranks']} ranks", rows, {name: times for name, (_, times) in others.items()})
    return WRONG if summary.wrong else 0


def shown(settings: Settings, nranks: int) -> Callable[[str], None]:
    """Prints a row; where the table goes into a file and somebody looks at the terminal, it also moves a progress bar there."""
    if sys.stdout.isatty() or not sys.stderr.isatty():
        return click.echo
    bar = click.progressbar(length=settings.rows(nranks), label=settings.collective, file=sys.stderr)

    def write(line: str) -> None:
        click.echo(line)
        bar.update(1)

    return write


def now() -> str:
    """The time, for the file."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


