"""Being a client: the environment to set, the check of each device, and a command that runs between start and stop."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from . import gpus, places, state
from .places import Group, MpsError

CHECK_LIMIT = 30.0  # seconds; a client of another user's server waits for ever


def for_shell(group: Group) -> str:
    """Lines that a shell of any kind can evaluate."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in client_environment(group).items())


def client_environment(group: Group) -> dict[str, str]:
    """The directories; for some GPUs also their UUIDs, because the daemon renumbers devices."""
    found = group.environment()
    if group.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus.chosen(group.gpus))
    return found


def running(asked: bool, group: Group) -> Group:
    """The group that was asked for, or the one that runs; MpsError if several do and none was named."""
    if asked:
        return group
    found = places.running()
    if len(found) > 1:
        choices = ", ".join(f"--gpus {','.join(one.gpus)}" if one.gpus else "--pipes " + str(one.pipes) for one in found)
        raise MpsError(f"{len(found)} daemons run ({', '.join(str(one.pipes) for one in found)}); say which one: {choices}")
    return found[0] if found else group


def check(group: Group) -> tuple[bool, str]:
    """Whether a client can open, count and select each device, and what it says."""
    if places.daemon(group.pipes) is None:
        raise MpsError(f"no daemon of {group.title} runs in {group.pipes}; pynickel mps start begins one")
    expected = len(state.devices(group) or gpus.chosen(group.gpus))
    environment = {**os.environ, **client_environment(group)}
    command = [sys.executable, "-m", "pynickel.tools.mps.client", str(expected)]
    try:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=CHECK_LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"a client did not get its device within {CHECK_LIMIT:g} s; another user's server may run, and users take turns"
    return ended.returncode == 0, ended.stdout.strip()


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class SignalledError(Exception):
    """A signal has come that asks this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


class Signals:
    """Inside, the first signal that asks for an end is an exception, so that what was begun is put back, or, if a command runs, the
    command's; further ones are for the command alone. Ignored ones stay ignored."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.came = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self.take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def take(self, number: int, frame: Any) -> None:
        """A signal has come."""
        first, self.came = not self.came, True
        if self.process is not None:
            if number not in (signal.SIGINT, signal.SIGQUIT) or not in_foreground():
                self.process.send_signal(number)
        elif first:
            raise SignalledError(number)


def in_foreground() -> bool:
    """Whether a terminal sends Ctrl-C to this process's group, and so to its commands, itself."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def run(group: Group, command: Sequence[str], signals: Signals) -> int:
    """Run the command as a client; signals go to it once, and its exit status is returned."""
    env = {**os.environ, **client_environment(group)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # none comes between the start and the note of it
    try:
        signals.process = subprocess.Popen(list(command), env=env, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask))
    except OSError as error:
        raise MpsError(f"{command[0]} cannot be started: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = signals.process.wait()
    signals.process, signals.came = None, True  # what comes now does not keep the daemon from being stopped
    return 128 - code if code < 0 else code
