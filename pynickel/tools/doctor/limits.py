"""What the operating system allows: shared memory, open files, locked memory, cores."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from .finding import NOTE, OK, PROBLEM, Finding

FILES_FEW, FILES_LOW = 64, 1024  # fewer open files than this hardly start; than that, many ranks do not
SHM_LOW = 64 << 20  # a container's default, which NCCL's shared-memory transport outgrows


def check(library_kind: str) -> Iterator[Finding]:
    """All of them; `library_kind` is what will be used."""
    yield shared_memory(*shm(), library_kind)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    cores = len(os.sched_getaffinity(0))
    yield Finding(OK, "cores", f"{cores} of {os.cpu_count()} cores may be used")


def shm() -> tuple[int, int]:
    """Bytes that /dev/shm has, and that are free."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def shared_memory(size: int, free: int, library_kind: str) -> Finding:
    """NVIDIA's library puts its buffers into /dev/shm; the CPU library does not."""
    if library_kind == "host":  # what is free is left out: it is another amount for each rank that looks
        return Finding(OK, "shared memory", f"/dev/shm has {mib(size)}; the CPU library does not need it")
    text = f"/dev/shm has {mib(size)}, {mib(free)} free"
    if free < SHM_LOW:
        return Finding(
            PROBLEM, "shared memory", f"{text}, which NCCL's buffers of a few ranks fill",
            "give the container more (docker run --shm-size=1g or --ipc=host), or remove what lies in /dev/shm",
        )  # fmt: skip
    return Finding(OK, "shared memory", text)


def open_files(limit: int) -> Finding:
    """Every peer costs descriptors."""
    if limit == resource.RLIM_INFINITY or limit >= FILES_LOW:
        return Finding(OK, "open files", f"limit {'none' if limit == resource.RLIM_INFINITY else limit}")
    return Finding(
        PROBLEM if limit <= FILES_FEW else NOTE, "open files", f"limit {limit}, which many ranks or communicators need more than",
        "raise it: ulimit -n 16384, or nofile in /etc/security/limits.conf",
    )  # fmt: skip


def locked_memory(limit: int) -> Finding:
    """InfiniBand registers memory, which must be locked."""
    if limit == resource.RLIM_INFINITY:
        return Finding(OK, "locked memory", "no limit")
    if os.path.isdir("/sys/class/infiniband"):
        return Finding(
            NOTE, "locked memory", f"limit {mib(limit)}, and this machine has InfiniBand, which registers memory",
            "raise it: ulimit -l unlimited",
        )  # fmt: skip
    return Finding(OK, "locked memory", f"limit {mib(limit)} (only InfiniBand needs more)")


def mib(size: int) -> str:
    """Bytes in the unit that fits."""
    return f"{size >> 30} GiB" if size >= 10 << 30 else f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} bytes"
