"""Being a client: the environment to set, the check of each device, and a command that runs between start and stop."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

from . import gpus, places
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
    found = [one for one in places.known_groups() if places.daemon(one.pipes)]
    if len(found) > 1:
        choices = ", ".join(f"--gpus {','.join(one.gpus)}" if one.gpus else "--pipes " + str(one.pipes) for one in found)
        raise MpsError(f"{len(found)} daemons run ({', '.join(str(one.pipes) for one in found)}); say which one: {choices}")
    return found[0] if found else group


def check(group: Group) -> tuple[bool, str]:
    """Whether a client can open, count and select each device, and what it says."""
    if places.daemon(group.pipes) is None:
        raise MpsError(f"no daemon of {group.title} runs in {group.pipes}; pynickel mps start begins one")
    expected = len(gpus.chosen(group.gpus))
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


def run(group: Group, command: Sequence[str]) -> int:
    """Run the command as a client; signals go to it once, and its exit status is returned."""
    try:
        process = subprocess.Popen(list(command), env={**os.environ, **client_environment(group)})
    except OSError as error:
        raise MpsError(f"{command[0]} cannot be started: {error.strerror}") from None
    before = {number: signal.signal(number, lambda got, frame: process.send_signal(got)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code
