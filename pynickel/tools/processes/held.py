"""Processes that hold communicators: found by the segments of the CPU library that they have open, by NCCL and a GPU, or by MPS."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import NCCLError
from ...library import Library, load
from ..mps.status import all_clients

SEGMENT, MEMORY = "/memfd:nickel", "/memfd:nickel-memory"
MPS_DEADLINE = 2.0  # seconds for a daemon to name its clients
TEXT = 1 << 20  # bytes of the description of a communicator of the most ranks


class Held(NamedTuple):
    """A process: its communicators as the CPU library tells them, bytes of shared memory, whether it has NCCL and a GPU open, and the
    MPS server whose client it is."""

    pid: int
    user: str
    started: float
    program: str
    command: list[str]
    communicators: list[dict[str, Any]]
    shared_bytes: int
    on_gpu: bool
    mps_server: int | None

    def ranks(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Each communicator with each rank that this process is in it."""
        for communicator in self.communicators:
            for rank in communicator["ranks"]:
                if rank["pid"] == self.pid and rank["life"] != "missing":
                    yield communicator, rank


def find(everybody: bool = False, pids: Iterable[int] | None = None) -> list[Held]:
    """All such processes of this user, or of everybody as far as they can be seen, oldest first; this one is left out."""
    import psutil

    library, clients = load("host"), all_clients(MPS_DEADLINE)
    wanted = None if pids is None else set(pids)
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid() or (wanted is not None and process.pid not in wanted):
            continue
        try:
            if everybody or process.uids().real == os.getuid():
                held = look(process, library, clients)
                if held is not None:
                    found.append(held)
        except (psutil.Error, OSError):  # it has just ended, or is none of our business
            continue
    return sorted(found, key=lambda held: (int(held.started), held.pid))


def look(process: Any, library: Library, clients: Mapping[int, tuple[Any, int]]) -> Held | None:
    """What a process holds; None if that is nothing. `clients`: of MPS, by pid."""
    segments, shared, gpu = open_files(process.pid)
    on_gpu = gpu and has_nccl(process.pid)
    if not segments and not shared and not on_gpu and process.pid not in clients:
        return None
    with process.oneshot():
        command = process.cmdline()
        return Held(
            process.pid, process.username(), process.create_time(), process.exe() or process.name(), command,
            [found for fd in segments if (found := inspect(library, process.pid, fd)) is not None], shared, on_gpu,
            clients[process.pid][1] if process.pid in clients else None,
        )  # fmt: skip


def open_files(pid: int) -> tuple[list[int], int, bool]:
    """The descriptors of segments, the bytes of all shared memory of the CPU library, and whether a GPU is open."""
    segments, shared, gpu = [], 0, False
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
            if target.startswith(SEGMENT):
                shared += os.stat(f"{folder}/{name}").st_blocks * 512
                if not target.startswith(MEMORY):
                    segments.append(int(name))
            gpu = gpu or target.startswith("/dev/nvidia")
        except OSError:  # closed meanwhile
            continue
    return segments, shared, gpu


def has_nccl(pid: int) -> bool:
    """Whether an NCCL library is mapped in the process."""
    with open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
        return any("libnccl.so" in line or "librccl.so" in line for line in maps)


def inspect(library: Library, pid: int, fd: int) -> dict[str, Any] | None:
    """A communicator as the CPU library reads it from outside; None for one that has no ranks yet, or is of another version."""
    text, length = library.ffi.new("char[]", TEXT), library.ffi.new("size_t *")
    try:
        library.check(library.lib.nickelInspect(pid, fd, text, TEXT, length), "nickelInspect")
        found: dict[str, Any] = json.loads(library.ffi.string(text))
    except (NCCLError, ValueError):
        return None
    return found
