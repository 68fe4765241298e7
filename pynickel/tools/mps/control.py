"""The control program: one command to a daemon, with a deadline."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile

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
    with tempfile.TemporaryFile() as output:  # no pipe: a daemon that keeps it open would keep us waiting
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environ, start_new_session=True
            )
        except OSError as error:
            raise MpsError(f"{words[0]} cannot be started: {error.strerror}") from None
        try:
            process.communicate(text.encode(), timeout=deadline)
        except subprocess.TimeoutExpired:
            end(process)
            raise MpsError(f"{what} did not answer within {deadline:g} s; the daemon hangs: pynickel mps stop --force ends it") from None
        except BaseException:
            end(process)
            raise
        output.seek(0)
        answer = output.read().decode(errors="replace").strip()
    if process.returncode:
        raise MpsError(f"{what} ended with exit status {process.returncode}: {answer or 'no output'}")
    return answer


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
