"""Start and stop the daemon of a group; what start changed, stop puts back."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import resource
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import control, gpus, members, places, state
from .gpus import EXCLUSIVE, NAMES, Gpu
from .places import PROGRAM, STATE, Group, MpsError

READY = 10.0  # seconds until a started daemon answers
FILES_WANTED = 16384  # open files that servers of many clients need
# What a daemon and we leave in its directories; nothing else is ever deleted.
PIPE_FILES = (f"{PROGRAM}.pid", "control", "control_lock", "control_privileged", "log")
LOG_FILES = ("control.log", "server.log", STATE)


def start(group: Group, *, exclusive: bool, cpu: int | None, shared: bool) -> list[str]:
    """Start the daemon unless it runs; returns what was done, in words. On failure everything is as it was."""
    refuse_foreign(group)
    if pid := places.daemon(group.pipes):
        return [f"the daemon of {group.title} runs already: pid {pid}, {group.pipes}"]
    control.program()
    chosen = gpus.chosen(group.gpus)
    refuse_overlap(group, chosen)
    said = raise_file_limit()
    made: list[Path] = []
    changed: list[Gpu] = []
    try:
        for directory in (group.pipes, group.logs):
            own(directory, made, shared)
        clear(group.pipes, PIPE_FILES)  # of a daemon that died
        state.remember(group, chosen)
        for gpu in chosen:
            if exclusive and gpu.mode != EXCLUSIVE:
                gpus.set_mode(gpu, EXCLUSIVE)
                changed.append(gpu)
        launch(group, chosen, cpu)
        pid = ready(group)
    except BaseException as error:
        undo(group, made, changed, error)
        raise
    said += [f"GPU {gpu.index}: compute mode {NAMES[gpu.mode]} -> {NAMES[EXCLUSIVE]}" for gpu in changed]
    return [*said, f"the daemon of {group.title} runs: pid {pid}, pipes {group.pipes}, logs {group.logs}"]


def undo(group: Group, made: list[Path], changed: list[Gpu], why: BaseException) -> None:
    """Put back what a start that failed has done; what cannot be put back is added to the reason."""
    members.end(members.process_of(places.daemon(group.pipes)))
    stuck = []
    for gpu in changed:
        try:
            gpus.set_mode(gpu, gpu.mode)
        except MpsError as error:
            stuck.append(str(error))
    clear(group.logs, (STATE,))
    clear(group.pipes, PIPE_FILES)
    for directory in made:
        clear(directory, LOG_FILES)
        remove(directory)
    if stuck:
        raise MpsError("; ".join([str(why), *stuck])) from None


def refuse_foreign(group: Group) -> None:
    """A directory of another user but root may hold a daemon that listens for us to come."""
    for directory in (group.pipes, group.logs):
        if os.path.lexists(directory):
            about = directory.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (0, os.geteuid()):
                raise MpsError(
                    f"{directory} belongs to user {about.st_uid} or is no directory; choose another one with --pipes and --logs, "
                    "or let its owner remove it"
                )


def refuse_overlap(group: Group, chosen: Iterable[Gpu]) -> None:
    """A GPU has one daemon."""
    mine = {gpu.uuid: gpu.index for gpu in chosen}
    for other in places.running():
        both = [f"{mine[uuid]} ({uuid})" for uuid in state.devices(other) if uuid in mine]
        if both and other.pipes != group.pipes:
            raise MpsError(f"GPU {', '.join(both)} has a daemon already, of {other.title} in {other.pipes}; stop it, or take other GPUs")


def raise_file_limit() -> list[str]:
    """Let the daemon, which inherits it, open as many files as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = hard if hard != resource.RLIM_INFINITY else max(soft, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < FILES_WANTED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(best, FILES_WANTED), hard))
        if best < FILES_WANTED:
            return [f"note: at most {best} open files; servers of many clients need {FILES_WANTED} (ulimit -n, limits.conf)"]
    return []


def own(directory: Path, made: list[Path], shared: bool) -> None:
    """Make the directory, or make sure that the one that is there belongs to this user."""
    mode = 0o1777 if shared else 0o700
    try:
        directory.mkdir(mode=mode)
        made.append(directory)
    except FileExistsError:
        if directory.lstat().st_uid != os.geteuid():
            raise MpsError(f"{directory} belongs to user {directory.lstat().st_uid}; choose another one with --pipes and --logs") from None
        if not shared:
            return
    except FileNotFoundError:
        raise MpsError(f"{directory.parent} does not exist; make it, or choose another directory with --pipes and --logs") from None
    except OSError as error:
        raise MpsError(f"{directory} cannot be made: {error.strerror}; choose another one with --pipes and --logs") from None
    directory.chmod(mode)  # whatever the umask is


def launch(group: Group, chosen: Iterable[Gpu], cpu: int | None) -> None:
    """Run the control program as a daemon, on one core if that is wanted. Devices are told by UUID, which no renumbering changes."""
    before = os.sched_getaffinity(0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if cpu is not None and cpu not in before:
        raise MpsError(f"--cpu {cpu} is not one of the cores that may be used: {', '.join(map(str, sorted(before)))}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in chosen)
    try:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})  # the daemon inherits it
        control.speak([control.program(), "-d"], group, "", READY, f"{PROGRAM} -d")
    finally:
        os.sched_setaffinity(0, before)
        if visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def ready(group: Group) -> int:
    """Wait until the daemon answers; returns its pid."""
    until = time.monotonic() + READY
    while True:
        pid = places.daemon(group.pipes)
        if pid is not None:
            control.ask(group, "get_server_list", max(0.1, until - time.monotonic()))
            return pid
        if time.monotonic() > until:
            raise MpsError(f"no daemon runs in {group.pipes} {READY:g} s after its start; {group.logs}/control.log may say why")
        time.sleep(0.05)


def stop(group: Group, *, force: bool, keep_logs: bool) -> list[str]:
    """End the daemon and its servers, restore compute modes, delete the directories; harmless when nothing runs."""
    said = []
    pid = places.daemon(group.pipes)
    for directory in (group.pipes, group.logs):
        if directory.exists() and directory.lstat().st_uid != os.geteuid():
            raise MpsError(f"{directory} belongs to user {directory.lstat().st_uid}; only that user can stop the daemon")
    servers = members.servers(group, pid)
    if pid is None:
        said.append(f"no daemon of {group.title} runs in {group.pipes}")
    else:
        said += end(group, pid, force)
    said += end_servers(servers, force)
    modes = state.modes(group)
    if modes:
        for gpu in gpus.listed():
            if gpu.uuid in modes and gpu.mode != modes[gpu.uuid]:
                gpus.set_mode(gpu, modes[gpu.uuid])
                said.append(f"GPU {gpu.index}: compute mode {NAMES[gpu.mode]} -> {NAMES[modes[gpu.uuid]]}")
    clear(group.pipes, PIPE_FILES)
    remove(group.pipes)
    clear(group.logs, (STATE,) if keep_logs else LOG_FILES)
    remove(group.logs)
    return said


def end(group: Group, pid: int, force: bool) -> list[str]:
    """Ask the daemon to quit; with force, end it when it does not."""
    (process,) = members.process_of(pid) or [None]
    try:
        control.ask(group, "quit")
        if process is None or members.gone(process, control.DEADLINE):
            return [f"the daemon of {group.title}, pid {pid}, has quit"]
        problem = f"the daemon, pid {pid}, still runs {control.DEADLINE:g} s after quit; clients may be busy"
    except MpsError as error:
        if process is None or not members.runs(process):
            return [f"the daemon of {group.title}, pid {pid}, had ended by itself"]
        problem = str(error)
    if not force:
        raise MpsError(f"{problem}. End the clients first (pynickel mps status lists them), or use stop --force")
    return [problem, *(f"process {number} was ended" for number in members.end([process]))]


def end_servers(servers: list[Any], force: bool) -> list[str]:
    """Servers that stay behind hold their GPUs' memory; with force they are ended."""
    left = [process for process in servers if not members.gone(process, 0.5)]
    if force:
        return [f"server {number} was ended" for number in members.end(left)]
    return [f"note: server {process.pid} still runs and may hold memory of its GPU; stop --force ends it" for process in left]


def clear(directory: Path, names: Iterable[str]) -> None:
    """Delete these files, and no others."""
    if directory.is_dir() and not directory.is_symlink():
        for name in names:
            with contextlib.suppress(OSError):  # what is no file is not ours
                (directory / name).unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Delete the directory if it is empty: what somebody else put there stays."""
    try:
        directory.rmdir()
    except OSError:
        return
