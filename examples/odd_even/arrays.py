"""Where a worker's arrays live: NumPy arrays with the CPU library, CuPy arrays with the others; the same code uses both."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from typing import Any

import numpy as np
from settings import Unfit

import pynickel


class HostArrays:
    """NumPy arrays."""

    xp = np
    place = "the CPU"

    def __init__(self, library: pynickel.Library, dtype: str) -> None:
        self.library, self.dtype = library, dtype

    def vector(self, count: int) -> Any:
        """Zeros in memory from ncclMemAlloc, which the other workers' processes can read and write without a copy between."""
        vector = pynickel.empty(count, self.dtype, library=self.library)
        vector[:] = 0
        return vector

    def write(self, vector: Any, values: np.ndarray) -> None:
        """Put host values in."""
        vector[...] = values

    def read(self, vector: Any) -> np.ndarray:
        """The values in host memory, as a copy."""
        return np.array(vector)


class GpuArrays:
    """CuPy arrays on one GPU; the host sees them only when a run begins and when it is saved. Not yet run on a GPU."""

    def __init__(self, library: pynickel.Library, dtype: str, device: int) -> None:
        import cupy

        cupy.cuda.Device(device).use()
        self.xp, self.library, self.dtype = cupy, library, dtype
        self.place = f"GPU {device}"

    def vector(self, count: int) -> Any:
        """Zeros in memory from ncclMemAlloc; the CuPy array is a view of it."""
        vector = self.xp.asarray(pynickel.empty(count, self.dtype, library=self.library))
        vector[...] = 0
        return vector

    def write(self, vector: Any, values: np.ndarray) -> None:
        """Put host values in."""
        vector.set(np.ascontiguousarray(values, self.dtype))

    def read(self, vector: Any) -> np.ndarray:
        """The values in host memory."""
        values: np.ndarray = self.xp.asnumpy(vector)
        return values


def make(library: pynickel.Library, dtype: str, device: int | None) -> HostArrays | GpuArrays:
    """What a worker on this device uses."""
    return HostArrays(library, dtype) if device is None else GpuArrays(library, dtype, device)


def assignments(workers: int, library: pynickel.Library) -> list[int | None]:
    """The device of each worker: none with the CPU library; else the GPUs are dealt out in order, several workers on each if need be."""
    if library.kind == "host":
        return [None] * workers
    import cupy

    gpus = cupy.cuda.runtime.getDeviceCount()
    share = -(-workers // gpus)
    if share > 1:
        if library.version < (2, 30):
            version = ".".join(map(str, library.version))
            raise Unfit(f"--workers {workers} on {gpus} GPUs: several ranks on a GPU need NCCL 2.30, and {version} is loaded")
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        os.environ.setdefault("NCCL_MAX_CTAS", "4")  # the ranks' kernels must fit on the GPU at the same time
    return [rank // share for rank in range(workers)]
