"""The process that the user sees: it starts the keeper of the ranks, passes signals on to it, and cleans up if the keeper is killed.

The keeper, in turn, notices when this process is killed. So a rank, or what a rank has started, outlives neither.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import psutil

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE = 5.0  # seconds for killed processes to go


def prctl(option: int, value: int) -> None:
    """The system call, for the two options used here; without them a rank could outlive us, so a failure is an error."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def heard() -> list[signal.Signals]:
    """The signals that are passed on: not those that are ignored from the start, as nohup and background jobs have it."""
    return [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]


def adopt_orphans() -> None:
    """Let processes whose parent ends become children of this one, wherever below it they are."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def run(keep: Callable[[int], int]) -> int:
    """Run keep(descriptor) in a process of its own and return its exit status; the descriptor is at its end when this process is."""
    adopt_orphans()
    theirs, ours = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # none gets lost between fork and the handlers
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os._exit(_keeper(keep, theirs))
    os.close(theirs)

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in heard():
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kill_descendants()
    if status < 0:
        print(f"pynickel run: the process that kept the ranks was ended by signal {-status}; all ranks were killed", file=sys.stderr)
        return 128 - status
    return status


def _keeper(keep: Callable[[int], int], descriptor: int) -> int:
    """The other process: a group of its own, so that Ctrl-C in a terminal reaches the ranks once, by us."""
    try:
        os.setpgid(0, 0)
        adopt_orphans()
        return keep(descriptor)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        kill_descendants()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def kill_descendants() -> None:
    """Kill and collect every process below this one, also those that are started meanwhile."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
        except ChildProcessError:
            return
