"""The processes of a daemon: its servers, also those that have outlived it, and how they end."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from .places import PIPE_VARIABLE, Group

SERVER = "nvidia-cuda-mps-server"
GRACE = 3.0  # seconds for a process to end when asked


def servers(group: Group, daemon: int | None) -> list[Any]:
    """The servers of the group as processes: what descends from its daemon, and servers of a dead one with the group's directory."""
    import psutil

    found = {}
    if daemon is not None:
        try:
            found = {child.pid: child for child in psutil.Process(daemon).children(recursive=True)}
        except psutil.Error:
            pass
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words and any(os.path.basename(word) == SERVER for word in words[:2]):
                if process.environ().get(PIPE_VARIABLE) == str(group.pipes):
                    found[process.pid] = process
        except psutil.Error:  # it has just ended, or is somebody else's
            continue
    return list(found.values())


def end(processes: Iterable[Any]) -> list[int]:
    """End these processes: asked first, then made to; returns which had to be."""
    import psutil

    ended = []
    for process in processes:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                if not runs(process):
                    break
                process.send_signal(number)
            except psutil.Error:
                break
            if process.pid not in ended:
                ended.append(process.pid)
            if gone(process, GRACE):
                break
    return ended


def process_of(pid: int | None) -> list[Any]:
    """The process of that number, if there is one."""
    import psutil

    try:
        return [] if pid is None else [psutil.Process(pid)]
    except psutil.Error:
        return []


def runs(process: Any) -> bool:
    """Whether it runs still; one that only waits for its parent to notice does not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def gone(process: Any, seconds: float) -> bool:
    """Whether it ends in time."""
    until = time.monotonic() + seconds
    while runs(process):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
