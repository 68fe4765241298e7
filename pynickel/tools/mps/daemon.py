"""Start and stop the daemon of a group; what start changed, stop puts back."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from . import control, gpus, places
from .gpus import EXCLUSIVE, NAMES, Gpu
from .places import PROGRAM, STATE, Group, MpsError

READY = 10.0  # seconds until a started daemon answers
FILES_WANTED = 16384  # open files that servers of many clients need
# What a daemon and we leave in its directories; nothing else is ever deleted.
PIPE_FILES = (f"{PROGRAM}.pid", "control", "control_lock", "control_privileged", "log")
LOG_FILES = ("control.log", "server.log", STATE)


def start(group: Group, *, exclusive: bool, cpu: int | None, shared: bool) -> list[str]:
    """Start the daemon unless it runs; returns what was done, in words. On failure everything is as it was."""
    if pid := places.daemon(group.pipes):
        return [f"the daemon of {group.title} runs already: pid {pid}, {group.pipes}"]
    control.program()
    chosen = gpus.chosen(group.gpus)
    said = raise_file_limit()
    made: list[Path] = []
    changed: list[Gpu] = []
    try:
        for directory in (group.pipes, group.logs):
            own(directory, made, shared)
        clear(group.pipes, PIPE_FILES)  # of a daemon that died
        remember(group, chosen)
        for gpu in chosen:
            if exclusive and gpu.mode != EXCLUSIVE:
                gpus.set_mode(gpu, EXCLUSIVE)
                changed.append(gpu)
        launch(group, chosen, cpu)
        pid = ready(group)
    except BaseException:
        kill(places.daemon(group.pipes))
        for gpu in changed:
            gpus.set_mode(gpu, gpu.mode)
        clear(group.logs, (STATE,))
        clear(group.pipes, PIPE_FILES)
        for directory in made:
            remove(directory)
        raise
    said += [f"GPU {gpu.index}: compute mode {NAMES[gpu.mode]} -> {NAMES[EXCLUSIVE]}" for gpu in changed]
    return [*said, f"the daemon of {group.title} runs: pid {pid}, pipes {group.pipes}, logs {group.logs}"]


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
    except FileExistsError:
        status = directory.lstat()
        if not directory.is_dir() or directory.is_symlink() or status.st_uid != os.geteuid():
            raise MpsError(
                f"{directory} belongs to user {status.st_uid} or is no directory; choose another one with --pipes and --logs, "
                "or let its owner remove it"
            ) from None
        return
    except FileNotFoundError:
        raise MpsError(f"{directory.parent} does not exist; make it, or choose another directory with --pipes and --logs") from None
    except PermissionError:
        raise MpsError(f"{directory} cannot be made by this user; choose another one with --pipes and --logs") from None
    made.append(directory)
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


def remember(group: Group, chosen: Iterable[Gpu]) -> None:
    """Note the compute modes for `stop`; those of an earlier start that was never stopped stay."""
    file = group.logs / STATE
    modes = {gpu.uuid: gpu.mode for gpu in chosen} | remembered(group)
    file.write_text(json.dumps({"compute_modes": modes}) + "\n", encoding="utf-8")


def remembered(group: Group) -> dict[str, int]:
    """Compute modes before the start, by UUID."""
    try:
        found = json.loads((group.logs / STATE).read_text(encoding="utf-8"))["compute_modes"]
        return {str(uuid): int(mode) for uuid, mode in found.items() if int(mode) in NAMES}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def stop(group: Group, *, force: bool, keep_logs: bool) -> list[str]:
    """End the daemon and its servers, restore compute modes, delete the directories; harmless when nothing runs."""
    said = []
    pid = places.daemon(group.pipes)
    for directory in (group.pipes, group.logs):
        if directory.exists() and directory.lstat().st_uid != os.geteuid():
            raise MpsError(f"{directory} belongs to user {directory.lstat().st_uid}; only that user can stop the daemon")
    if pid is None:
        said.append(f"no daemon of {group.title} runs in {group.pipes}")
    else:
        said += end(group, pid, force)
    modes = remembered(group)
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
    """Ask the daemon to quit; with force, end it and its servers when it does not."""
    servers = server_pids(pid)
    try:
        control.ask(group, "quit")
        if gone(pid, control.DEADLINE):
            return [f"the daemon of {group.title}, pid {pid}, has quit"]
        problem = f"the daemon, pid {pid}, still runs {control.DEADLINE:g} s after quit; clients may be busy"
    except MpsError as error:
        problem = str(error)
    if not force:
        raise MpsError(f"{problem}. End the clients first (pynickel mps status lists them), or use stop --force")
    said = [problem]
    for process in (*servers, pid):
        kill(process)
        said.append(f"process {process} was ended")
    return said


def server_pids(pid: int) -> list[int]:
    """The servers of a daemon: its children of that name."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    return [child.pid for child in children]


def gone(pid: int, seconds: float) -> bool:
    """Whether the process ends in time."""
    import psutil

    until = time.monotonic() + seconds
    while psutil.pid_exists(pid) and time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.Error:
            return True
        time.sleep(0.05)
    return not psutil.pid_exists(pid)


def kill(pid: int | None) -> None:
    """End a process: asked first, then made to."""
    if pid is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if gone(pid, 3.0):
            return


def clear(directory: Path, names: Iterable[str]) -> None:
    """Delete these files, and no others."""
    if directory.is_dir() and not directory.is_symlink():
        for name in names:
            (directory / name).unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Delete the directory if it is empty: what somebody else put there stays."""
    try:
        directory.rmdir()
    except OSError:
        return
