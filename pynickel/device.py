"""Where a library's memory is: the host (NumPy) or a CUDA device (cuda.core), with the same few methods for both.

    from pynickel.device import open_device

    device = open_device()                 # of the default library
    buffer = device.upload(numpy.ones(4))
    comm.all_reduce(buffer, stream=device.stream)
    print(device.download(buffer))         # waits for the stream first
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

from ._nccl import ffi
from .buffer import look
from .enums import DataType, as_dtype
from .errors import NotAvailableError
from .layout import BOTH
from .library import Library, get_library, load
from .memory import checked_shape, numpy_dtype, typestr


def open_device(library: str | os.PathLike[str] | Library | None = None, index: int = 0) -> HostDevice | CudaDevice:
    """The device whose memory that library works on; `index` is the GPU's, among the visible ones.

    NotAvailableError without cuda-core (`pip install 'pynickel[cu13]'` or `[cu12]`) or without such a GPU.
    """
    found = get_library() if library is None else load(library)
    return HostDevice() if found.kind == "host" else CudaDevice(index)


def gpu_count() -> int:
    """How many GPUs are visible to CUDA; NotAvailableError where that cannot be asked."""
    try:
        return len(cuda_core().Device.get_all_devices())
    except RuntimeError as error:
        raise NotAvailableError(f"CUDA cannot be asked for its GPUs: {error}") from error


class HostDevice:
    """Host memory: buffers are NumPy arrays, and there is nothing to wait for."""

    stream = None
    name = "the host"

    def empty(self, shape: int | Sequence[int], dtype: Any = DataType.float32) -> Any:
        """A new buffer; what it holds is undefined."""
        import numpy

        return numpy.empty(checked_shape(shape), numpy_dtype(as_dtype(dtype)))

    def upload(self, values: Any, to: Any = None) -> Any:
        """A new buffer with the values of an array, or the buffer `to` with them."""
        import numpy

        array = numpy.asarray(values)
        target = self.empty(array.shape, array.dtype) if to is None else to
        target[...] = array
        return target

    def download(self, buffer: Any) -> Any:
        """What a buffer holds, as a new array."""
        import numpy

        return numpy.array(buffer)

    def synchronize(self) -> None:
        """Return when all work is done: at once, as the CPU library's calls do their work before they return."""


class DeviceArray:
    """Dense elements in device memory; `array[a:b]` is a part of the same memory, along the first axis.

    pynickel, CuPy, torch and Numba read it by the CUDA array interface, which has no names for bfloat16 and the 8-bit floats:
    to them those are unsigned integers; pynickel asks for `element`.
    """

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], element: DataType) -> None:
        self.owner, self.address, self.shape, self.element = owner, address, shape, element

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return prod(self.shape) * self.element.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": typestr(self.element), "strides": None, "data": (self.address, False), "version": 3,
        }  # fmt: skip

    def __getitem__(self, part: slice) -> DeviceArray:
        if not isinstance(part, slice) or not self.shape:
            raise TypeError(f"a DeviceArray of shape {self.shape} has slices along its first axis, array[start:stop], not {part!r}")
        start, stop, step = part.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"the step of a slice must be 1, not {step}: its elements would have gaps")
        row = prod(self.shape[1:]) * self.element.itemsize
        return DeviceArray(self.owner, self.address + start * row, (max(stop - start, 0), *self.shape[1:]), self.element)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.shape} of {self.element.name} at {self.address:#x}>"


class CudaDevice:
    """A CUDA device by way of cuda.core: device memory, a stream of its own, copies by way of pinned memory.

    Making it makes the device current in this thread. Not yet run on a GPU.
    """

    def __init__(self, index: int = 0) -> None:
        core = cuda_core()
        try:
            self.device = core.Device(index)
            self.device.set_current()
        except (RuntimeError, ValueError) as error:
            raise NotAvailableError(f"CUDA device {index} cannot be used: {error}", device=index) from error
        self.core = core
        self.stream = self.device.create_stream()
        self.pinned = core.LegacyPinnedMemoryResource()
        self.name = f"GPU {index} ({self.device.name})"

    def empty(self, shape: int | Sequence[int], dtype: Any = DataType.float32) -> DeviceArray:
        """A new buffer that any stream may use at once; what it holds is undefined."""
        dims, element = checked_shape(shape), as_dtype(dtype)
        owner = self.device.memory_resource.allocate(max(prod(dims) * element.itemsize, 1), stream=self.stream)
        self.stream.sync()
        return DeviceArray(owner, int(owner.handle), dims, element)

    def upload(self, values: Any, to: Any = None) -> Any:
        """A new buffer with the values of an array, or the buffer `to` with them; they are there when this returns."""
        import numpy

        array = numpy.asarray(values)
        target = self.empty(array.shape, array.dtype) if to is None else to
        view = look(target, "to", True, BOTH, self.stream)
        kind = numpy_dtype(as_dtype(getattr(target, "element", view.dtype)))
        filled = numpy.broadcast_to(array, getattr(target, "shape", (view.nbytes // kind.itemsize,))).astype(kind)
        if view.nbytes:
            staging = self.pinned.allocate(view.nbytes)
            bytes_of(staging)[:] = filled.tobytes()
            self.core.Buffer.from_handle(view.address, view.nbytes, owner=target).copy_from(staging, stream=self.stream)
            self.stream.sync()
        return target

    def download(self, buffer: Any) -> Any:
        """What a buffer holds when the work queued on this device's stream is done, as a new array."""
        import numpy

        view = look(buffer, "buffer", False, BOTH, self.stream)
        kind = numpy_dtype(as_dtype(getattr(buffer, "element", view.dtype)))
        shape = getattr(buffer, "shape", (view.nbytes // kind.itemsize,))
        if not view.nbytes:
            return numpy.empty(shape, kind)
        staging = self.pinned.allocate(view.nbytes)
        self.core.Buffer.from_handle(view.address, view.nbytes, owner=buffer).copy_to(staging, stream=self.stream)
        self.stream.sync()
        return numpy.frombuffer(bytearray(bytes_of(staging)), kind).reshape(shape)

    def synchronize(self) -> None:
        """Return when the work queued on this device's stream is done."""
        self.stream.sync()


def bytes_of(staging: Any) -> Any:
    """The bytes of a buffer in host memory."""
    return ffi.buffer(ffi.cast("char *", int(staging.handle)), staging.size)


def cuda_core() -> Any:
    """cuda.core, where it is installed."""
    try:
        import cuda.core
    except ImportError as error:
        raise NotAvailableError(
            f"memory of a CUDA device is had by way of cuda-core, which is not there ({error}): pip install 'pynickel[cu13]' or [cu12]"
        ) from error
    return cuda.core
