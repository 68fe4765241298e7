"""`pynickel bench COLLECTIVE`: nccl-tests' options, table, exit status and JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import errors
from .. import outlet
from . import compare, progress
from .options import CUDA, INTERNAL, INTERRUPTED, LEFT_OUT, NCCL, NOT_THERE, TIMEOUT, USAGE, WORDS, Bench, Usage, listed, options
from .settings import OPS, PICTURES, TYPES, Settings

if TYPE_CHECKING:
    from ...rendezvous import Place

# What rank 0 tells, too; the others need not repeat it.
SHARED = (errors.RemoteError, errors.AbortedError, errors.RendezvousError)


@click.command(
    "bench",
    cls=Bench,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Options of nccl-tests that are not there: " + ", ".join(name for name in LEFT_OUT) + ".",
)
@click.argument("collective", metavar="COLLECTIVE")
@options
@click.option("--ranks", type=click.IntRange(1), help="Processes to start on this machine. [2, or those of the launcher]")
@click.option("--library", help="host, nvidia, rccl or a path. [as PYNICKEL_LIBRARY or the machine says]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as -J writes it, and not the table.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw time and bus bandwidth against size.")
@click.option("--compare", help=f"Measure these too, comma separated: {', '.join(compare.PEERS)}.")
@click.option("--progress-on", hidden=True)
@click.pass_context
def command(context: click.Context, /, collective: str, **given: Any) -> None:
    """Measure a collective as nccl-tests does.

    COLLECTIVE: all_gather, all_reduce, alltoall, broadcast, gather, reduce, reduce_scatter, scatter or sendrecv. Alone it
    starts --ranks processes; under torchrun, mpirun, srun or `pynickel run` each process is one of the ranks. While the table
    goes into a file, a bar on the terminal shows how far it is.

    Ends with 0; 7 if values were wrong; 1 to 6 for other failures: internal, CUDA, NCCL, timeout, not available, usage.
    """
    from ... import rendezvous

    place = rendezvous.place()
    starts = place.launcher == "single" and (given["ranks"] or 2) > 1
    try:
        settings = settings_of(collective, given, place, starts)
        peers = chosen_peers(given["compare"])
        if place.rank == 0:
            refuse_places(given)
        terminal = given["progress_on"] or (progress.terminal(given["as_json"]) if place.rank == 0 else None)
        if starts:
            context.exit(start_ranks(given["ranks"] or 2, context.meta[WORDS], terminal, endless=settings.cycles == 0))
        from .report import measure

        status = measure(settings, given["library"], given["plot"], peers, given["as_json"], terminal)
    except click.UsageError as error:
        if place.rank:
            context.exit(USAGE)
        raise Usage(error.message, context) from None
    except errors.NCCLError as error:
        if place.rank == 0 or not isinstance(error, SHARED):
            click.echo(f"# {type(error).__name__}: {error}", err=True)
        status = status_of(error)
    except outlet.UnreadError:
        status = 0
    except KeyboardInterrupt:
        if place.rank == 0:
            click.echo("# interrupted", err=True)
        status = INTERRUPTED
    context.exit(status)


def settings_of(collective: str, given: dict[str, Any], place: Place, starts: bool) -> Settings:
    """The options, checked together; what is replaced is said aloud by one process only."""
    from .collectives import COLLECTIVES

    if collective not in COLLECTIVES:
        raise Usage(f"{collective!r} is no collective; there are {', '.join(COLLECTIVES)}")
    if given["minbytes"] > given["maxbytes"]:
        raise Usage(f"-b {given['minbytes']} is more than -e {given['maxbytes']}; the smallest size comes first")
    if place.launcher != "single" and given["ranks"] not in (None, place.nranks):
        raise Usage(f"--ranks {given['ranks']} under a launcher ({place.launcher}) that has started {place.nranks}; leave it out")
    processes = (given["ranks"] or 2) if starts else place.nranks
    aloud = place.rank == 0 and not starts
    return Settings(
        collective, given["nthreads"], given["minbytes"], given["maxbytes"], given["stepbytes"], given["stepfactor"], given["iters"],
        given["warmup_iters"], given["agg_iters"], given["run_cycles"], given["check"], listed(given["op"], OPS, "sum", "op", aloud),
        listed(given["datatype"], list(TYPES), "float", "type", aloud), root_of(given["root"], processes * given["nthreads"]),
        given["average"], given["blocking"], given["local_register"], given["timeout"] or None, given["output_file"],
    )  # fmt: skip


def root_of(given: str, nranks: int) -> int:
    """The rank that is meant; -1 for every one."""
    try:
        root = -1 if given == "all" else int(given)
    except ValueError:
        raise Usage(f"-r {given!r} is no rank; give a number, or -1 or all for every rank in turn") from None
    if not -1 <= root < nranks:
        raise Usage(f"-r {root} is no rank; there are 0 to {nranks - 1}, and -1 for every rank in turn")
    return root


def chosen_peers(given: str | None) -> list[str]:
    """The names after --compare."""
    names = [name.strip() for name in given.split(",")] if given else []
    for name in names:
        if name not in compare.PEERS:
            raise Usage(f"--compare {name!r} is not known; there are {', '.join(compare.PEERS)}")
        if lacks := compare.lacks(name):
            raise errors.NotAvailableError(f"--compare {name} needs {lacks}")
    return names


def refuse_places(given: dict[str, Any]) -> None:
    """What could not be written in the end is an error now, before time is spent on measuring."""
    for option, place in (("-J", given["output_file"]), ("--plot", given["plot"])):
        if place is not None and not os.access(place.parent, os.W_OK | os.X_OK):
            raise Usage(f"{option} {place}: {place.parent} is no directory that can be written to")
    plot = given["plot"]
    if plot is None:
        return
    if plot.suffix.lower() not in PICTURES:
        raise Usage(f"--plot {plot}: the name's end says the form of the picture; there are {', '.join(PICTURES)}")
    if plot.exists() and not os.access(plot, os.W_OK):
        raise Usage(f"--plot {plot}: the file that is there cannot be written to")
    if lacks := compare.missing("matplotlib"):
        raise errors.NotAvailableError(f"--plot needs {lacks}")


def start_ranks(nranks: int, words: list[str], terminal: str | None, endless: bool) -> int:
    """Run this same command once for each rank; nothing is left when this process is ended."""
    from .. import keep, run, watch

    program = [sys.executable, "-m", "pynickel", "bench", *([f"--progress-on={terminal}"] if terminal else []), *words]
    environments = [run.environment(os.environ, rank, nranks) for rank in range(nranks)]
    ranks = keep.Ranks(program, environments, prefix=False, grace=3.0, tells=True, for_reader=endless)
    run.share(ranks)
    return watch.run(ranks.keep)


def status_of(error: errors.NCCLError) -> int:
    """The exit status of a failure, or of what is behind it."""
    if isinstance(error.__cause__, errors.NCCLError):
        error = error.__cause__
    for kind, status in (
        (errors.WaitTimeoutError, TIMEOUT),
        ((errors.NotAvailableError, errors.LibraryNotFoundError), NOT_THERE),
        (errors.CudaError, CUDA),
        (errors.InternalError, INTERNAL),
    ):
        if isinstance(error, kind):
            return status
    return NCCL
