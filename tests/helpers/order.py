"""What makes one thing come after another in tests, instead of pauses that a busy machine outlasts: flags, and who waits in a call."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import pynickel
from helpers import host_c

SOON = 3.0  # seconds: what is over in less than one, on a machine that does nothing else; what it is told from takes longer
_PACKAGE = os.path.dirname(pynickel.__file__) + os.sep


class Flag:
    """Ranks and their nursery tell each other that they have come so far; made before they are forked, or for threads."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def address(self) -> int:
        """Where its places are, a byte each, for C."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def set(self, place: int = 0) -> None:
        """What is set by several has a place for each."""
        self._page[place] = 1

    def is_set(self) -> bool:
        """Whether anybody has."""
        return any(self._page[:256])

    def wait(self, count: int = 1, seconds: float = 8.0) -> None:
        """Until it is set at so many places."""
        until(lambda: sum(self._page[:256]) >= count, f"the flag was not set {count} times", seconds)


def until(condition: Callable[[], object], what: str, seconds: float = 8.0) -> None:
    """Return as soon as it is so; if that takes too long, `what` says what has not come."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} within {seconds:g} s")
        time.sleep(0.002)


def in_call(count: int = 1) -> None:
    """Until so many ranks of this process wait for another one, as the CPU library itself tells it."""
    until(lambda: waiting() >= count, f"{count} of this process's ranks did not wait in a call")


def waits(rank: int, seconds: float = 0.0) -> None:
    """Until this rank, whichever process it is, waits in a call of a communicator that this process has open, and has for so long."""

    def does(one: dict[str, Any]) -> bool:
        return one["rank"] == rank and "waits" in one and one["waits"]["seconds"] >= seconds

    until(lambda: any(map(does, itertools.chain(*communicators()))), f"rank {rank} did not wait in a call")


def comes(rank: int, pid: int | None = None) -> None:
    """Until this rank waits in init for those who have not come, to a communicator that this process or another one has open."""

    def has_come(comm: dict[str, Any]) -> bool:
        return comm["state"] == "starting" and comm["nranks"] > rank and comm["ranks"][rank]["life"] == "joined"

    until(lambda: any(map(has_come, inspected(pid))), f"rank {rank} did not come")


def waiting() -> int:
    """How many ranks of this process wait in a call."""
    return sum(rank["pid"] == os.getpid() and "waits" in rank for one in communicators() for rank in one)


def communicators() -> list[list[dict[str, Any]]]:
    """The ranks of each communicator that this process has open."""
    return [comm["ranks"] for comm in inspected()]


def inspected(pid: int | None = None) -> list[dict[str, Any]]:
    """All that is told of each communicator that a process has open, by default this one."""
    pid = pid or os.getpid()
    inspect, text, length = host_c.library().nickelInspect, ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
    inspect.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        if inspect(pid, int(name), text, len(text), ctypes.byref(length)) == host_c.SUCCESS:
            found.append(json.loads(text.value))
    return found


def in_package() -> bool:
    """Whether the main thread is in code of pynickel, or in C that it has called."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code.co_filename.startswith(_PACKAGE)


def signalled(call: Callable[[], object], ready: Callable[[], object], number: int = signal.SIGINT, pause: float = 0.0) -> float:
    """Send this process a signal when the main thread's `call` is so far, and a pause later; seconds from then to KeyboardInterrupt."""
    sent, over = [], threading.Event()

    def send() -> None:
        until(lambda: over.is_set() or ready(), "what was to be interrupted did not begin", 20)
        if not over.wait(pause):
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    with pytest.raises(KeyboardInterrupt):
        try:
            thread.start()
            call()
        finally:
            over.set()
    seconds = time.monotonic() - sent[0]
    thread.join(5)
    return seconds
