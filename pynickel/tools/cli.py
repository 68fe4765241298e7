"""The command `pynickel`: which library is used and what it has; more by subcommand."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shutil
from pathlib import Path

import click

from .. import search
from .._version import __version__
from ..errors import LibraryNotFoundError
from ..library import get_library

HOST_LIB_NAMES = ("libnickel_host.so", "libnccl.so.2", "libnccl.so")


@click.group(invoke_without_command=True)
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


@main.command("host-lib")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def host_lib(folder: Path) -> None:
    """Put the CPU library into DIR as libnccl.so.2, for programs that find NCCL by the loader path and pass host pointers."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place(Path(search.HOST_LIBRARY), folder)
    except OSError as error:
        raise click.ClickException(f"cannot put the CPU library into {folder}: {error}") from None
    click.echo(f"{', '.join(HOST_LIB_NAMES)} are in {folder}; use them with LD_LIBRARY_PATH={folder.resolve()}")


def place(library: Path, folder: Path) -> None:
    """Copy the library and point the other names at the copy; foreign files of these names are not touched."""
    copy = folder / HOST_LIB_NAMES[0]
    links = [folder / name for name in HOST_LIB_NAMES[1:]]
    for link in links:
        if (link.exists() or link.is_symlink()) and not (link.is_symlink() and link.readlink() == Path(copy.name)):
            raise FileExistsError(f"{link} is there already and is not ours; remove it or choose another folder")
    fresh = folder / f"{copy.name}.new"
    shutil.copyfile(library, fresh)
    fresh.chmod(0o755)
    fresh.replace(copy)  # never a half-written library under its name
    for link in links:
        if not link.is_symlink():
            link.symlink_to(copy.name)
