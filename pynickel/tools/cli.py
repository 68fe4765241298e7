"""The command `pynickel`: which library is used and what it has; more by subcommand."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from .._version import __version__
from ..errors import LibraryNotFoundError
from ..library import get_library
from . import outlet

# Each subcommand by name, with the module of this package whose `command` it is; the module is loaded when it is needed.
SUBCOMMANDS = {
    "doctor": "doctor.command",
    "bench": "bench.command",
    "trace": "trace.command",
    "mps": "mps.command",
    "ps": "processes.ps",
    "kill": "processes.kill",
    "host-lib": "host_lib",
    "run": "run",
}


class Subcommands(click.Group):
    """A group that finds its subcommands in the table."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program: a reader of the output who leaves early ends nothing."""
        outlet.forgiving()
        try:
            return super().main(*args, **kwargs)
        except outlet.OutputError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the table's order."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of this name, or None."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = import_module(f".{SUBCOMMANDS[cmd_name]}", __package__).command
        return command


@click.group(cls=Subcommands, invoke_without_command=True)
@click.version_option(__version__, prog_name="pynickel")
@click.pass_context
def main(context: click.Context) -> None:
    """Show the NCCL library that pynickel uses here: its path, kind and version, why it was chosen, and its functions.

    PYNICKEL_LIBRARY chooses another one: host, nvidia, rccl, or a path.
    """
    if context.invoked_subcommand is None:
        show()


def show() -> None:
    """Print the default library and the table of functions."""
    try:
        library = get_library()
    except LibraryNotFoundError as error:
        raise click.ClickException(str(error)) from None
    for name, value in (
        ("library", library.path),
        ("kind", library.kind),
        ("version", ".".join(map(str, library.version))),
        ("chosen", library.reason),
    ):
        click.echo(f"{name:8} {value}")
    rows = library.functions
    width = max(len(row.name) for row in rows)
    click.echo(f"\n{'function':{width}}  since    present")
    for row in rows:
        click.echo(f"{row.name:{width}}  {row.since:7}  {'yes' if row.present else 'no'}")
