"""The host and a CUDA device by the same methods; the CUDA one over a stand-in for cuda.core, as there is no GPU here."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import cuda_core_stand_in
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, NotAvailableError
from pynickel.device import CudaDevice, HostDevice, gpu_count, open_device


@pytest.fixture(params=["host", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, recording: Recorder) -> Iterator[Any]:
    """One device of each kind, as a library asks for it."""
    cuda_core_stand_in.install(monkeypatch)
    made = open_device("host" if request.param == "host" else recording.path)
    assert type(made) is (HostDevice if request.param == "host" else CudaDevice)
    yield made


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,), ()])
def test_there_and_back(device: Any, dtype: Any, shape: Any) -> None:
    """What is uploaded comes back with its shape and type, in an array of its own."""
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    buffer = device.upload(values)
    found = device.download(buffer)
    assert found.shape == values.shape and found.dtype == values.dtype and found.tobytes() == values.tobytes()
    if found.size:
        found[...] = 1
        assert (device.download(buffer).astype("f8") == values.astype("f8")).all()


def test_into_a_buffer(device: Any) -> None:
    """upload(to=) fills a buffer, or a part of one, with an array or one number, in the buffer's type."""
    buffer = device.empty(6, "float32")
    assert device.upload(0, to=buffer) is buffer
    device.upload([1, 2], to=buffer[2:4])
    assert device.download(buffer).tolist() == [0, 0, 1, 2, 0, 0]
    square = device.empty((3, 2), "int32")
    device.upload([[1, 2], [3, 4], [5, 6]], to=square)
    assert device.download(square[1:]).tolist() == [[3, 4], [5, 6]] and len(square) == 3
    device.synchronize()
    with pytest.raises(ValueError):
        device.upload([1, 2, 3], to=buffer)


def test_as_buffers(device: Any, recording: Recorder) -> None:
    """A device's buffers are taken by calls with its stream, narrow floats by their own type, and so is memory from `empty`."""
    if device.stream is None:
        comm = Communicator(1, pynickel.UniqueId.create("host"), 0, library="host")
        assert comm.all_reduce(device.upload(np.ones(3, "f4")), stream=device.stream).tolist() == [1, 1, 1]
    else:
        comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
        buffer = device.empty((2, 2), "bfloat16")
        comm.all_reduce(buffer[1:], stream=device.stream)
        address = buffer.address + 4
        assert recording.calls[-1][1][:4] + recording.calls[-1][1][6:7] == [address, address, 2, pynickel.bfloat16, 0x5000]
        memory = comm.all_reduce(pynickel.empty(4, "float8e4m3", library=recording.path))
        assert recording.calls[-1][1][:4] == [memory.address, memory.address, 4, pynickel.float8e4m3]
        with pytest.raises(ValueError, match="but dtype= says int32"):
            comm.all_reduce(device.empty(4), dtype="int32")
    memory = pynickel.empty(4, library=comm.library)
    device.upload([1, 2, 3, 4], to=memory)
    assert device.download(memory).tolist() == [1, 2, 3, 4]
    comm.abort()


def test_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device array has slices without gaps alone."""
    cuda_core_stand_in.install(monkeypatch)
    buffer = CudaDevice(1).empty(6)
    with pytest.raises(ValueError, match="the step of a slice must be 1, not 2"):
        buffer[::2]
    with pytest.raises(TypeError, match="slices along its first axis"):
        buffer[3]  # type: ignore[index]
    assert buffer[4:2].shape == (0,) and buffer[-2:].address == buffer.address + 16 and "float32" in repr(buffer)


def test_without_cuda(monkeypatch: pytest.MonkeyPatch, recording: Recorder) -> None:
    """Without cuda-core, and without the GPU asked for, the error says so and what brings it."""
    cuda_core_stand_in.install(monkeypatch)
    assert gpu_count() == 2
    with pytest.raises(NotAvailableError, match=r"CUDA device 7 cannot be used: device_id must be within"):
        open_device(recording.path, 7)
    monkeypatch.setattr(cuda_core_stand_in.Device, "get_all_devices", lambda: (_ for _ in ()).throw(RuntimeError("no driver")))
    with pytest.raises(NotAvailableError, match="CUDA cannot be asked for its GPUs: no driver"):
        gpu_count()
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'pynickel\[cu13\]'"):
        open_device(recording.path)


def test_the_stand_in_has_the_real_signatures() -> None:
    """Where cuda-core is installed, the stand-in's methods can be called as the real ones."""
    core = pytest.importorskip("cuda.core", reason="cuda-core is not installed here (pip install -e '.[cu13]')")
    for kind, names in {"Buffer": ("copy_from", "copy_to"), "LegacyPinnedMemoryResource": ("allocate",)}.items():
        for name in names:
            ours = inspect.signature(getattr(getattr(cuda_core_stand_in, kind), name)).parameters
            theirs = inspect.signature(getattr(getattr(core, kind), name)).parameters
            assert set(ours) <= set(theirs)
