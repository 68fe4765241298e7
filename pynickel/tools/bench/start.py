"""From processes and threads to ranks: meet, run every rank's sweep in a thread of its own, and end all at the first failure."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy as np

from ... import abort_all, driver, rendezvous
from ...communicator import Communicator
from ...library import Library
from ...unique_id import UniqueId
from .block import Block
from .room import free, most_bytes
from .settings import Settings
from .sweep import Rank, Row

INFO = 512  # bytes that a rank has to say where it is

# Called once, at rank 0, with the settings as they are after all: gives what takes each row.
Begin = Callable[[Communicator, list[dict[str, Any]], Settings], Callable[[Row], None]]


def run(settings: Settings, library: str | None, begin: Begin) -> bool:
    """The whole measurement. Returns whether rank 0 was here."""
    meeting = rendezvous.init(library=library)
    try:
        comms = ranks(meeting, settings)
        failures: list[BaseException] = []
        threads = [threading.Thread(target=one, args=(comm, comms, settings, begin, failures)) for comm in comms[1:]]
        for thread in threads:
            thread.start()
        one(comms[0], comms, settings, begin, failures)
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        for comm in comms:
            if comm is not meeting:
                comm.close()
    except BaseException:
        meeting.abort()
        raise
    meeting.close()
    return any(comm.rank == 0 for comm in comms)


def one(comm: Communicator, comms: list[Communicator], settings: Settings, begin: Begin, failures: list[BaseException]) -> None:
    """One rank's share; a failure is noted, and ends the waits of this process's other ranks."""
    try:
        if comm.library.kind == "nvidia":
            driver.use_device(comm.device or 0)  # each thread has a device of its own
        devices = introduce(comm)
        settings = fitted(settings, devices)
        report = begin(comm, devices, settings) if comm.rank == 0 else None
        cycle = 0
        rank = Rank(comm, settings, report)
        while settings.cycles == 0 or cycle < settings.cycles:
            rank.sweep()
            cycle += 1
    except BaseException as error:
        failures.append(error)
        abort_all(comms)


def fitted(settings: Settings, devices: list[dict[str, Any]]) -> Settings:
    """The settings with no sizes for which there is no room."""
    most = most_bytes(devices, settings.checks > 0)
    if most is None or settings.max_bytes <= most:
        return settings
    if settings.min_bytes > most:
        raise click.UsageError(f"-b {settings.min_bytes} is more than {most}, the largest size that fits the free memory")
    return replace(settings, max_bytes=most)


def ranks(meeting: Communicator, settings: Settings) -> list[Communicator]:
    """A communicator for each thread of this process; with one thread, and no deadline of its own, that of the processes."""
    if settings.threads == 1 and settings.timeout is None:
        return [meeting]
    library, total = meeting.library, meeting.nranks * settings.threads
    block = Block(library, 128)
    if meeting.rank == 0:
        block.write(0, np.frombuffer(bytes(UniqueId.create(library)), np.uint8))
    meeting.broadcast(block.address, root=0, count=128, dtype="uint8")
    meeting.wait()
    unique_id = bytes(block.read(0, 128, np.dtype(np.uint8)))
    found: list[Communicator | BaseException] = [RuntimeError("not started")] * settings.threads

    def join(index: int) -> None:
        device = (meeting.device or 0) * settings.threads + index if library.kind != "host" or settings.threads == 1 else None
        try:
            found[index] = Communicator(
                total, unique_id, meeting.rank * settings.threads + index, library=library, device=device, timeout=settings.timeout
            )
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=join, args=(index,)) for index in range(settings.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    comms = [comm for comm in found if isinstance(comm, Communicator)]
    for failure in found:
        if isinstance(failure, BaseException):
            abort_all(comms)
            raise failure
    return comms


def introduce(comm: Communicator) -> list[dict[str, Any]]:
    """Where every rank is, on every rank."""
    mine = {
        "rank": comm.rank, "group": 0, "pid": os.getpid(), "hostname": socket.gethostname()[:60], "device": comm.device,
        "free": free(comm.library), **described(comm.library, comm.device),
    }  # fmt: skip
    block = Block(comm.library, INFO * (comm.nranks + 1))
    block.write(0, np.frombuffer(json.dumps(mine).encode()[:INFO].ljust(INFO), np.uint8))
    comm.all_gather(block.address, block.address + INFO, count=INFO, dtype="uint8")
    comm.wait()
    return [json.loads(bytes(block.read(INFO * (rank + 1), INFO, np.dtype(np.uint8)))) for rank in range(comm.nranks)]


def described(library: Library, device: int | None) -> dict[str, str]:
    """The address on the bus and the name of a device."""
    if library.kind == "host":
        return {"device_hex": "cpu", "device_info": "CPU library, host memory"}
    try:
        from cuda.core import Device
    except ImportError:
        return {"device_hex": "?", "device_info": "a GPU (cuda-core, which knows its name, is not installed)"}
    found = Device(device)
    return {"device_hex": found.pci_bus_id, "device_info": found.name[:80]}


def device_line(info: dict[str, Any]) -> str:
    """A rank in the table's heading."""
    return (
        f"#  Rank {info['rank']:>2} Group {info['group']:>2} Pid {info['pid']:>6} on {info['hostname']:>10} "
        f"device {info['device']:>2} [{info['device_hex']}] {info['device_info']}"
    )
