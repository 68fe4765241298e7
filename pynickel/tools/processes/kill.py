"""`pynickel kill`: end such processes, gently first, and clean what they left."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import glob
import os
import signal
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from ..mps import control
from ..mps.places import Group, MpsError
from ..mps.status import all_clients
from .held import MPS_DEADLINE, Held, find
from .ps import rows_of

KILL_LIMIT = 5.0  # seconds that the kernel has for SIGKILL
LEFT = "/dev/shm/nccl-*"  # NVIDIA's library leaves these when it is killed; the CPU library's memory has no names

FRESH = 10.0  # seconds in which a program that has just made such a file may not have mapped it yet


@click.command("kill")
@click.argument("pids", nargs=-1, type=click.IntRange(1), metavar="[PID]...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--grace", type=click.FloatRange(0, 3600), default=3.0, help="Seconds between SIGTERM and SIGKILL. [3]")
def command(pids: tuple[int, ...], yes: bool, grace: float) -> None:
    """End these processes, or all that `pynickel ps` lists: SIGTERM, then SIGKILL; clients of MPS are taken off the GPU first.

    Only processes of this user that hold communicators, or are clients of MPS, are touched. Ends with 1 if one of them is still there.
    """
    found = find(pids=pids or None)
    others = sorted(set(pids) - {held.pid for held in found})
    if others:
        raise click.ClickException(f"{', '.join(map(str, others))}: no process of this user that holds a communicator; see pynickel ps")
    if not found:
        click.echo("no process holds a communicator")
    else:
        for held in found:
            for row in rows_of(held):
                click.echo("  ".join(cell for cell in row if cell))
        if not yes:
            click.confirm(f"end {'this process' if len(found) == 1 else f'these {len(found)} processes'}?", abort=True)
        stay = end(found, grace)
        for line in clean():
            click.echo(line)
        if stay:
            raise click.ClickException(f"{', '.join(map(str, stay))} would not end; a process in the kernel's hands ends when that lets go")


def end(found: Sequence[Held], grace: float) -> list[int]:
    """Ask all to end, then make them; returns who is still there."""
    import psutil

    processes = []
    clients = all_clients(MPS_DEADLINE) if any(held.mps_server is not None for held in found) else {}
    for held in found:
        try:
            process = psutil.Process(held.pid)
            if process.create_time() != held.started:  # another one has got the number since
                raise psutil.NoSuchProcess(held.pid)
            if held.pid in clients:
                take_off(held.pid, *clients[held.pid])
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a stopped one takes no notice otherwise
            processes.append(process)
        except psutil.NoSuchProcess:
            click.echo(f"{held.pid} had ended already")
    alive = still_there(processes, grace)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    stay = still_there(alive, KILL_LIMIT)
    report([process for process in processes if process not in alive], "ended when asked")
    report([process for process in alive if process not in stay], "was killed")
    return [process.pid for process in stay]


def still_there(processes: Sequence[Any], seconds: float) -> list[Any]:
    """Those that still run after at most so long; one that only waits for its parent to notice has ended."""
    import psutil

    until = time.monotonic() + seconds
    left = list(processes)
    while left:
        left = [process for process in left if process.is_running() and status(process) != psutil.STATUS_ZOMBIE]
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    return left


def status(process: Any) -> str:
    """Of a process that may just have ended."""
    import psutil

    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


def report(processes: Iterable[Any], how: str) -> None:
    """A line for each."""
    for process in processes:
        click.echo(f"{process.pid} {how}")


def take_off(pid: int, group: Group, server: int) -> None:
    """End a client's work on the GPU by its MPS daemon, which a plain kill might damage."""
    try:
        answer = control.ask(group, f"terminate_client {server} {pid}", MPS_DEADLINE)
    except MpsError as error:  # the signal is what is left
        answer = str(error)
    click.echo(f"{pid}: terminate_client of {group.title}: {answer}")


def clean() -> list[str]:
    """Delete NVIDIA's left-over shared memory of this user that no process maps any more."""
    used = mapped_names()
    said = []
    for path in glob.glob(LEFT):
        try:
            about = os.lstat(path)
            if path not in used and about.st_uid == os.geteuid() and time.time() - about.st_ctime > FRESH:
                os.unlink(path)
                said.append(f"{path} was left over, and is deleted")
        except OSError:
            continue
    return said


def mapped_names() -> set[str]:
    """The files below /dev/shm that any process maps, as far as that can be seen."""
    found = set()
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(maps, errors="surrogateescape") as file:
                found |= {line.split(maxsplit=5)[5].strip() for line in file if "/dev/shm/" in line}
        except OSError:
            continue
    return found
