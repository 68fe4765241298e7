"""Other machines that children can run on: how they are reached, how many cores they have, who gets which."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import math
import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Sequence

# Without a password prompt that nobody answers; a connection that is lost is noticed within a minute.
_SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]


class Remote:
    """One machine: `host`, `cores`, `python` (its interpreter), `command` (the words that run a program there), `speed`."""

    def __init__(
        self, host: str, cores: int = 1, python: str | None = None, command: str | Sequence[str] | None = None, speed: float = 1.0
    ) -> None:
        if not isinstance(host, str) or not host or host.startswith("-"):
            raise ValueError(f"host must be the name or address of a machine, not {host!r}")
        if isinstance(cores, bool) or not isinstance(cores, int):
            raise TypeError(f"cores must be a number of processes that {host} can run side by side, not {cores!r}")
        if cores < 1:
            raise ValueError(f"cores must be 1 or more for {host}, not {cores}")
        if python is not None and (not isinstance(python, str) or not python):
            raise ValueError(f"python must be the path of the interpreter on {host}, not {python!r}")
        self.host = host
        self.cores = cores
        self.python = python
        self.command = None if command is None else _words(command)
        self.speed = speed

    def __repr__(self) -> str:
        return f"<remote {self.host}, {self.cores} cores, speed {self.speed:g}>"

    @property
    def address(self) -> str:
        """The host without the user's name that ssh may be told: what this machine's name service knows."""
        return self.host.rpartition("@")[2]

    def starting(self) -> list[str]:
        """Return the command of an interpreter there that reads its program from standard input.

        So no word of it needs quoting, whether a shell reads it on the way or not, and the key is in nobody's process list.
        """
        python = self.python or sys.executable
        if not python:
            raise FileNotFoundError(f"sys.executable is empty: say with python= which interpreter to use on {self.host}")
        if self.command is None:  # ssh hands the words to a shell
            return [*_SSH, "--", self.host, f"exec {shlex.quote(python)} -"]
        return [*(word.replace("{host}", self.host) for word in self.command), python, "-"]


def _words(command: str | Sequence[str]) -> list[str]:
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise TypeError(f"command must be the words that run a program there, such as 'ssh -p 2222 {{host}}', not {command!r}")
    return words


def deal(n: int, remotes: Sequence[Remote], used: Iterable[Remote | None]) -> list[Remote]:
    """Say which machine each of n processes goes to: one per machine and turn, to those with free cores.

    When no core is free, all machines take more than they have cores for, and a RuntimeWarning says how many.
    """
    taken = list(used)
    free = [max(0, remote.cores - taken.count(remote)) for remote in remotes]
    fitting = (remote for turn in range(max(free)) for remote, count in zip(remotes, free, strict=True) if turn < count)
    over = n - sum(free)
    if over > 0:
        cores = ", ".join(f"{remote.host}: {remote.cores}" for remote in remotes)
        text = f"{n} processes for {sum(free)} free cores of the remote machines ({cores}): {over} must share a core with others"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return list(itertools.islice(itertools.chain(fitting, itertools.cycle(remotes)), n))


def relative(seconds: Sequence[float]) -> list[float]:
    """Turn times for the same work into speeds: 1 for the fastest, two decimals."""
    if not all(math.isfinite(time) and time > 0 for time in seconds):
        raise ValueError(f"a machine measured no time for its work: {seconds}")
    return [max(0.01, round(min(seconds) / time, 2)) for time in seconds]


def timed_work(repetitions: int) -> float:
    """Return the seconds that adding two vectors of 10,000 elements takes here, so many times."""
    import numpy as np

    a, b = np.zeros(10_000), np.ones(10_000)
    begun = time.perf_counter()
    for _ in range(repetitions):
        np.add(a, b, out=a)
    return time.perf_counter() - begun
