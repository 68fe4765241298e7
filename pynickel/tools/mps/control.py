"""The control program: one command to a daemon, with a deadline."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shutil
import signal
import subprocess

from .places import PROGRAM, Group, MpsError

DEADLINE = 10.0  # seconds that a control command may take


def program() -> str:
    """The path of the control program."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise MpsError(f"{PROGRAM} is not on the path; it comes with NVIDIA's driver (package nvidia-utils or nvidia-compute-utils)")
    return found


def ask(group: Group, command: str, deadline: float | None = None) -> str:
    """What the daemon of the group answers; MpsError when it does not answer in time, or says that it cannot."""
    return speak([program()], group, command + "\n", DEADLINE if deadline is None else deadline, f"{PROGRAM}: {command}")


def speak(words: list[str], group: Group, text: str, deadline: float, what: str) -> str:
    """Run the control program with that standard input, and kill it, and what it started, at the deadline."""
    environ = {**os.environ, **group.environment()}
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True, start_new_session=True
    )
    try:
        answer, _ = process.communicate(text, timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise MpsError(f"{what} did not answer within {deadline:g} s; the daemon hangs: pynickel mps stop --force ends it") from None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise MpsError(f"{what} ended with exit status {process.returncode}: {answer.strip() or 'no output'}")
    return answer.strip()
