"""Buffers of cuda.core (CUDA Python): bytes on a device, on the host, or on both, which take a type by dtype=."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from .enums import uint8
from .layout import BOTH, DEVICE, HOST, View


def read(buffer: Any, name: str) -> View:
    """The memory of a cuda.core Buffer. It says nothing of a stream: its allocation is ordered by the caller."""
    address = int(buffer.handle or 0)
    if not address and buffer.size:
        raise ValueError(f"{name} is a cuda.core Buffer that has been closed; pass one that is open")
    where = DEVICE if not buffer.is_host_accessible else BOTH if buffer.is_device_accessible else HOST
    place = {DEVICE: "memory of a CUDA device", BOTH: "pinned or managed memory", HOST: "host memory"}[where]
    return View(address, buffer.size, uint8, raw=1, keep=buffer, where=where, place=place, gpu=getattr(buffer, "device_id", None))
