"""`pynickel ps`: processes with communicators, their ranks, and what each waits in and for how long."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from typing import Any

import click

from ..plain import plain
from .held import Held, find

COLUMNS = ("PID", "USER", "STARTED", "RANK", "STATE", "SHARED", "MPS", "WAITS IN", "FOR", "PROGRAM")


@click.command("ps")
@click.option("--all-users", is_flag=True, help="Processes of all users, as far as they can be seen.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is known as JSON.")
def command(all_users: bool, as_json: bool) -> None:
    """List processes of this user that hold pynickel communicators, shared memory of the CPU library, or NCCL on a GPU, and clients of MPS.

    What a rank waits in is known for the CPU library, after a wait of about a tenth of a second. The column MPS has the pid of the
    server whose client a process is.
    """
    found = find(all_users)
    if as_json:
        click.echo(json.dumps([held._asdict() for held in found], indent=1))
        return
    if not found:
        click.echo("no process holds a communicator")
        return
    rows = [row for held in found for row in rows_of(held)]
    widths = [max(len(row[column]) for row in (COLUMNS, *rows)) for column in range(len(COLUMNS) - 1)]
    for row in (COLUMNS, *rows):
        click.echo("  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip())


def rows_of(held: Held) -> Sequence[Sequence[str]]:
    """A line for each rank; one for a process without any."""
    started = time.strftime("%m-%d %H:%M:%S", time.localtime(held.started))
    program = plain(shlex.join(without_folder(held.command)))[:120] or held.program
    begin = (str(held.pid), held.user, started)
    shared = f"{held.shared_bytes / (1 << 20):.1f} MiB"
    mps = "-" if held.mps_server is None else str(held.mps_server)
    rows = []
    for communicator, rank in held.ranks():
        name, seconds = waits(rank)
        place = f"{rank['rank']} of {communicator['nranks']} in {communicator['communicator'][:6]}"
        rows.append((*begin, place, state(communicator, rank), shared, mps, name, seconds, program))
    kind = "on a GPU" if held.on_gpu else "shared memory" if held.shared_bytes else "MPS client"
    return rows or [(*begin, "-", kind, shared, mps, "", "", program)]


def without_folder(command: list[str]) -> list[str]:
    """The command without its interpreter's folder, which would leave little room for what the interpreter runs."""
    return [os.path.basename(word) or word for word in command[:1]] + command[1:]


def state(communicator: dict[str, Any], rank: dict[str, Any]) -> str:
    """Of the communicator, if that says more than the rank's own."""
    return str(communicator["state"]) if rank["life"] == "joined" else str(rank["life"])


def waits(rank: dict[str, Any]) -> tuple[str, str]:
    """What the rank waits in, for whom, and how long."""
    if "waits" not in rank:
        return "", ""
    found = rank["waits"]
    return f"{found['operation']} for rank {found['peer']}", f"{found['seconds']:.1f} s"
