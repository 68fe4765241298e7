"""The demo's buffers: the same four words (floats, write, read, part) for the CPU library's memory and for a GPU's."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np


class HostMemory:
    """Buffers of the CPU library: NumPy arrays."""

    stream = None
    label = "a CPU rank"

    def floats(self, count: int) -> Any:
        """A new buffer."""
        return np.zeros(count, np.float32)

    def write(self, buffer: Any, values: Any) -> None:
        """Fill a buffer."""
        buffer[:] = values

    def read(self, buffer: Any) -> Any:
        """What a buffer holds, as a NumPy array."""
        return buffer.copy()

    def part(self, buffer: Any, start: int, stop: int) -> Any:
        """A piece of a buffer, without a copy."""
        return buffer[start:stop]


class GpuFloats:
    """Float32 elements in device memory, as the CUDA array interface shows them; `owner` keeps them alive."""

    def __init__(self, owner: Any, start: int, stop: int) -> None:
        self.owner, self.start, self.stop = owner, start, stop

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = int(self.owner.handle) + 4 * self.start
        return {"shape": (self.stop - self.start,), "typestr": "<f4", "data": (address, False), "version": 3}


class GpuMemory:
    """Buffers of NVIDIA's library: device memory by way of cuda.core. Not yet run on a GPU."""

    def __init__(self, device: int) -> None:
        from cuda.core import Device, LegacyPinnedMemoryResource

        self.device = Device(device)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pinned = LegacyPinnedMemoryResource()
        self.label = f"GPU {device} ({self.device.name})"

    def floats(self, count: int) -> GpuFloats:
        """A new buffer."""
        buffer = GpuFloats(self.device.memory_resource.allocate(4 * count, stream=self.stream), 0, count)
        self.write(buffer, 0)
        return buffer

    def write(self, buffer: GpuFloats, values: Any) -> None:
        """Fill a buffer, by way of pinned host memory."""
        staging = self.pinned.allocate(buffer.owner.size)
        np.from_dlpack(staging).view(np.float32)[:] = values
        buffer.owner.copy_from(staging, stream=self.stream)
        self.stream.sync()

    def read(self, buffer: GpuFloats) -> Any:
        """What a buffer holds, once everything before on the stream is done."""
        staging = self.pinned.allocate(buffer.owner.size)
        buffer.owner.copy_to(staging, stream=self.stream)
        self.stream.sync()
        return np.from_dlpack(staging).view(np.float32)[buffer.start : buffer.stop].copy()

    def part(self, buffer: GpuFloats, start: int, stop: int) -> GpuFloats:
        """A piece of a buffer, without a copy."""
        return GpuFloats(buffer.owner, start, stop)
