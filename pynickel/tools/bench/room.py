"""How large buffers may be: what memory is free, shared by the ranks that take from it, cut as nccl-tests cuts maxBytes."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import driver
from ...library import Library

CGROUP = Path("/sys/fs/cgroup")
MARGIN, MARGIN_MOST = 16, 4 << 30  # of the free memory that part, and at most so many bytes, is left alone


def free(library: Library) -> int:
    """Bytes of the memory that buffers are taken from; 0 if that cannot be known."""
    return of_host() if library.kind == "host" else of_device()


def of_host() -> int:
    """What the machine and its container have left."""
    import psutil

    found = int(psutil.virtual_memory().available)
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return found if limit == "max" else max(0, min(found, int(limit) - int(used)))
    except (OSError, ValueError):
        return found


def of_device() -> int:
    """What the current device has left."""
    found, left, total = driver.driver(), ctypes.c_size_t(), ctypes.c_size_t()
    if not hasattr(found, "cuMemGetInfo_v2") or found.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)):
        return 0
    return left.value


def most_bytes(ranks: Sequence[Mapping[str, Any]], checked: bool) -> int | None:
    """The largest size for which every rank has room; the same on every rank. `ranks` say their host, device and free bytes."""
    sharing: dict[tuple[Any, ...], list[int]] = {}
    for rank in ranks:
        place = (rank["hostname"],) if rank["device_hex"] == "cpu" else (rank["hostname"], rank["device"])
        sharing.setdefault(place, []).append(rank["free"])
    found = []
    for frees in sharing.values():
        if min(frees) > 0:
            left = min(frees) - min(min(frees) // MARGIN, MARGIN_MOST)
            found.append(left // len(frees) // (3 if checked else 2))
    return min(found, default=None)
