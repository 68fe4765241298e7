"""`pynickel host-lib DIR`: the CPU library under NCCL's file names, for programs that find NCCL by the loader path."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shutil
from pathlib import Path

import click

from .. import search

HOST_LIB_NAMES = ("libnickel_host.so", "libnccl.so.2", "libnccl.so")


@click.command("host-lib")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def command(folder: Path) -> None:
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
