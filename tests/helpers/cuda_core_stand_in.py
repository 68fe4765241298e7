"""A stand-in for cuda.core over host memory, with the signatures of cuda-core 1.2: it shows that device.py calls them as they are."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

GPUS = 2


class Stream:
    """A stream that counts its syncs."""

    handle = 0x5000

    def __init__(self) -> None:
        self.synced = 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def sync(self) -> None:
        self.synced += 1


class Buffer:
    """Memory of a resource, or a look at some."""

    __module__ = "cuda.core._memory._buffer"

    def __init__(self, address: int, size: int, owner: Any, on_host: bool) -> None:
        self.handle, self.size, self.owner = address, size, owner
        self.is_host_accessible, self.is_device_accessible = on_host, True

    @classmethod
    def from_handle(cls, ptr: int, size: int, mr: Any = None, owner: Any = None, *, stream: Any = None) -> Buffer:
        return cls(ptr, size, owner, False)

    def copy_from(self, src: Buffer, *, stream: Stream, options: Any = None) -> None:
        assert self.size == src.size and isinstance(stream, Stream)
        seen(self.handle, self.size)[:] = seen(src.handle, src.size)

    def copy_to(self, dst: Buffer | None = None, *, stream: Stream, options: Any = None) -> Buffer:
        assert dst is not None
        dst.copy_from(self, stream=stream)
        return dst


def seen(address: int, size: int) -> Any:
    """The bytes at an address."""
    return np.frombuffer((ctypes.c_char * size).from_address(address), "u1")


class DeviceMemoryResource:
    """Memory whose allocation is ordered by a stream."""

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        block = np.full(size, 0xAA, "u1")
        return Buffer(block.ctypes.data, size, block, False)


class LegacyPinnedMemoryResource:
    """Memory of the host."""

    def allocate(self, size: int, *, stream: Stream | None = None) -> Buffer:
        block = np.full(size, 0xBB, "u1")
        return Buffer(block.ctypes.data, size, block, True)


class Device:
    """One of some GPUs."""

    def __init__(self, device_id: int = 0) -> None:
        if device_id >= GPUS:
            raise ValueError(f"device_id must be within [0, {GPUS}), got {device_id}")
        self.name, self.current, self.memory_resource = "stand-in", False, DeviceMemoryResource()

    @classmethod
    def get_all_devices(cls) -> tuple[Device, ...]:
        return tuple(cls(i) for i in range(GPUS))

    def set_current(self) -> None:
        self.current = True

    def create_stream(self, obj: Any = None, options: Any = None) -> Stream:
        assert self.current, "a device must be current before it makes a stream"
        return Stream()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import cuda.core` find it."""
    package: Any = ModuleType("cuda")
    module: Any = ModuleType("cuda.core")
    for kind in (Device, Buffer, Stream, DeviceMemoryResource, LegacyPinnedMemoryResource):
        setattr(module, kind.__name__, kind)
    package.core = module
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.core", module)
