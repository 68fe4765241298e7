"""A buffer that the library moves fastest, and that the host can write to and read from."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np

from ... import driver
from ...library import Library
from ...memory import mem_alloc

PIECE = 16 << 20  # bytes that are copied to a device at a time


class Block:
    """`nbytes` from ncclMemAlloc: host memory with the CPU library, else device memory."""

    def __init__(self, library: Library, nbytes: int) -> None:
        self.memory = mem_alloc(max(nbytes, 16), library=library)
        self.address = self.memory.address
        self.view = np.asarray(self.memory) if library.kind == "host" else None
        self.fill(0)

    def fill(self, byte: int) -> None:
        """Write the same byte everywhere."""
        if self.view is not None:
            self.view[:] = byte
        else:
            piece = np.full(min(self.memory.nbytes, PIECE), byte, np.uint8)
            for at in range(0, self.memory.nbytes, PIECE):
                self.write(at, piece[: self.memory.nbytes - at])

    def write(self, at: int, data: Any) -> None:
        """Copy an array to byte `at`."""
        data = np.ascontiguousarray(data)
        if self.view is not None:
            self.view[at : at + data.nbytes] = data.view(np.uint8)
        elif data.nbytes:
            driver.copy(self.address + at, data.ctypes.data, data.nbytes)

    def read(self, at: int, count: int, kind: Any) -> Any:
        """`count` elements of that NumPy type from byte `at` on."""
        nbytes = count * kind.itemsize
        if self.view is not None:
            return self.view[at : at + nbytes].view(kind)
        found = np.empty(count, kind)
        if nbytes:
            driver.copy(found.ctypes.data, self.address + at, nbytes)
        return found
