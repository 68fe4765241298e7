"""Device memory and its streams without a GPU: host memory that claims to be a CUDA device, before a library that notes its calls."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.arrays import CUDA, CUDA_HOST, CudaArrayInterface, DLPack
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, driver, group
from pynickel.buffer import single
from pynickel.layout import BOTH, DEVICE, HOST

ROCM, MANAGED, METAL = 10, 13, 8


class Driver(SimpleNamespace):
    """A driver that notes which stream waits for which, and knows all memory."""

    def cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = 1000
        return int(self.fails == "create")

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self.first = stream.value
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> int:
        self.orders.append((self.first, stream.value or 0))
        return 400 if self.fails == "wait" else 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.destroyed += 1
        return 0

    def cuPointerGetAttribute(self, out: Any, attribute: int, address: Any) -> int:
        out._obj.value = self.gpu
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A process with that driver."""
    made = Driver(orders=[], destroyed=0, fails="", gpu=0)
    monkeypatch.setattr(driver, "driver", lambda: made)
    monkeypatch.setattr(driver, "in_process", lambda: True)
    return made


@pytest.fixture
def comm(cuda: Driver, stub_comm: Communicator) -> Communicator:
    """A communicator of a library that works on that driver's memory."""
    return stub_comm


def kinds(data: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same memory in every form that device memory comes in."""
    return {
        "CUDA array interface": CudaArrayInterface(data), "DLPack 0": DLPack(data, 0, CUDA), "DLPack 1": DLPack(data, 1, CUDA),
        "ROCm by DLPack": DLPack(data, 1, ROCM), "managed by DLPack": DLPack(data, 1, MANAGED), "cupy": cupy_array(data, monkeypatch),
    }  # fmt: skip


def cupy_array(data: Any, monkeypatch: pytest.MonkeyPatch, stream: int = 0) -> Any:
    """What CuPy's arrays tell of themselves, from a module of that name."""
    module: Any = ModuleType("cupy")
    module.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=stream))
    module.ndarray = type("ndarray", (), {"__module__": "cupy"})
    monkeypatch.setitem(sys.modules, "cupy", module)
    made = module.ndarray()
    made.data, made.dtype, made.nbytes = SimpleNamespace(ptr=data.ctypes.data), data.dtype, data.nbytes
    made.shape, made.strides, made.array = data.shape, data.strides, data
    return made


def cuda_core_buffer(data: Any, on_host: bool, on_device: bool = True) -> Any:
    """What cuda.core's Buffer tells of itself."""
    made: Any = type("Buffer", (), {"__module__": "cuda.core._memory._buffer"})()
    made.handle, made.size, made.array = data.ctypes.data, data.nbytes, data
    made.is_host_accessible, made.is_device_accessible = on_host, on_device
    return made


def test_every_kind_reaches_a_gpu_library(comm: Communicator, recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form of device memory is taken as it is, in place and out of place, with address, count and type."""
    data = np.arange(6.0).reshape(2, 3)
    for name, obj in kinds(data, monkeypatch).items():
        recording.forget()
        assert comm.all_reduce(obj) is obj, name
        comm.all_gather(obj, 8192, stream=5)
        (_, first), (_, second) = recording.calls
        assert first[:4] == [data.ctypes.data, data.ctypes.data, 6, pynickel.float64], name
        assert second[:4] == [data.ctypes.data, 8192, 6, pynickel.float64], name


def test_the_cpu_library_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU library refuses device memory by name and place, and does not make producers order anything."""
    for name, obj in kinds(np.zeros(4), monkeypatch).items():
        if name == "managed by DLPack":
            assert single(HOST, obj, None, None, True, "send")[1] == 4
            continue
        with pytest.raises(ValueError, match="send .* is memory of a .* device, and the loaded library works on host memory"):
            single(HOST, obj, None, None, True, "send", 77)
        assert set(getattr(obj, "streams", [-1])) == {-1}


def test_another_gpu(comm: Communicator, cuda: Driver, recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of another GPU than the communicator's is refused with both numbers, whoever tells of it; of its own it is taken."""
    data = np.zeros(4)
    array = cupy_array(data, monkeypatch)
    array.device = SimpleNamespace(id=1)
    core = cuda_core_buffer(data, on_host=False)
    core.device_id = 1
    cuda.gpu = 1  # what the driver says of memory whose object does not say it
    for obj in (DLPack(data, 1, CUDA, device_id=1), DLPack(data, 0, CUDA, device_id=1), CudaArrayInterface(data), array, core):
        with pytest.raises(ValueError, match="^send .* is on GPU 1, and this communicator works on GPU 0; move the buffer there"):
            comm.all_reduce(obj, dtype="uint8" if obj is core else None)
        with pytest.raises(ValueError, match="^send .* is on GPU 1"):
            comm.all_gather(obj, 8192)
    assert recording.names == []
    cuda.gpu = 0
    comm.all_reduce(CudaArrayInterface(data))
    comm.all_reduce(DLPack(data, 1, CUDA_HOST, device_id=1))
    assert recording.names == ["ncclAllReduce"] * 2


def test_memory_of_other_devices() -> None:
    """Memory that NCCL cannot reach at all is refused by every library."""
    for memory in (HOST, DEVICE, BOTH):
        with pytest.raises(ValueError, match="memory of DLPack device type 8, which NCCL does not reach"):
            single(memory, DLPack(np.zeros(4), 1, METAL), None, None, False, "send")


@pytest.mark.parametrize(("producer", "ours", "order"), [
    (None, 7, []), (7, 7, []), (1, None, []), (1, 0, []), (1, 1, []), (2, 2, []), (9, 7, [(9, 7)]), (9, None, [(9, 0)]), (1, 7, [(1, 7)]),
    (2, 1, [(2, 1)]),
])  # fmt: skip
def test_stream_entry_of_the_cuda_array_interface(comm: Communicator, cuda: Driver, producer: Any, ours: Any, order: Any) -> None:
    """The call's stream waits for the producer's, where they differ; 0, 1 and None are one stream; None means nothing to wait for."""
    comm.all_reduce(CudaArrayInterface(np.zeros(4), stream=producer), stream=ours)
    assert cuda.orders == order and cuda.destroyed == len(order)


def test_each_buffer_has_its_stream(comm: Communicator, cuda: Driver) -> None:
    """Both buffers of a call are waited for, in groups and variable-count calls too, before the library is entered."""
    send, recv = CudaArrayInterface(np.zeros(2), stream=11), CudaArrayInterface(np.zeros(8), stream=12)
    comm.all_gather(send, recv, stream=7)
    with group():
        comm.send(send, 0, stream=8)
        comm.all_gather_v(send, recv, [2, 2, 2, 2], stream=9)
    assert cuda.orders == [(11, 7), (12, 7), (11, 8), (11, 9), (12, 9)]


@pytest.mark.parametrize("stream", [0, -1, "7", 1.0, True])
def test_wrong_stream_entries(comm: Communicator, recording: Recorder, stream: Any) -> None:
    """What the protocol does not allow as a stream is refused; 0 is among it, because it could mean two streams."""
    with pytest.raises(ValueError, match="names stream .* in its CUDA array interface"):
        comm.all_reduce(CudaArrayInterface(np.zeros(4), stream=stream))
    assert recording.names == []


@pytest.mark.parametrize("fails", ["create", "wait"])
def test_order_that_cannot_be_had(comm: Communicator, cuda: Driver, recording: Recorder, fails: str) -> None:
    """If the driver cannot order the streams nothing is launched, and the error names both."""
    cuda.fails = fails
    with pytest.raises(pynickel.CudaError, match="stream 0x7 cannot be made to wait for the buffer's stream 0x9: CUresult"):
        comm.all_reduce(CudaArrayInterface(np.zeros(4), stream=9), stream=7)
    assert recording.names == [] and cuda.destroyed == int(fails == "wait")


@pytest.mark.parametrize(("device", "ours", "told"), [
    (CUDA, None, 1), (CUDA, 0, 1), (CUDA, 1, 1), (CUDA, 2, 2), (CUDA, 99, 99), (MANAGED, None, 1), (ROCM, None, 0), (ROCM, 99, 99),
    (CUDA_HOST, 99, None),
])  # fmt: skip
@pytest.mark.parametrize("version", [0, 1])
def test_dlpack_is_told_our_stream(comm: Communicator, device: int, ours: Any, told: Any, version: int) -> None:
    """The producer is told the call's stream in DLPack's numbers, and makes it wait; host memory has no stream."""
    obj = DLPack(np.zeros(4), version, device)
    comm.all_reduce(obj, stream=ours)
    assert obj.streams == [told]


def test_dlpack_is_asked_for_the_memory_itself() -> None:
    """The newest form is asked for, on the device where the memory is and without a copy; then the older ones."""
    new, old = DLPack(np.zeros(4), 1), DLPack(np.zeros(4), 0)
    for obj in (new, old):
        single(HOST, obj, None, None, True, "send")
    assert new.asked == [{"max_version": (1, 0), "dl_device": (1, 0), "copy": False}]
    assert old.asked == [*new.asked, {"max_version": (1, 0)}, {}]


def test_cupy(comm: Communicator, cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's arrays are ready on CuPy's current stream; those with gaps are refused."""
    comm.all_reduce(cupy_array(np.zeros(4, "f2"), monkeypatch, stream=33), stream=7)
    assert cuda.orders == [(33, 7)]
    with pytest.raises(pynickel.NonContiguousError, match=r"shape \(2,\), strides \(16,\)"):
        comm.all_reduce(cupy_array(np.zeros(4)[::2], monkeypatch))


def test_cuda_core_buffers(comm: Communicator, recording: Recorder) -> None:
    """A cuda.core Buffer is bytes, or what dtype= says; on the host, on a device or on both, and closed ones are refused."""
    data = np.zeros(16, "u1")
    comm.all_reduce(cuda_core_buffer(data, on_host=False))
    comm.all_reduce(cuda_core_buffer(data, on_host=True), dtype="bfloat16")
    assert [args[:4] for _, args in recording.calls] == [
        [data.ctypes.data] * 2 + [16, pynickel.uint8], [data.ctypes.data] * 2 + [8, pynickel.bfloat16],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="memory of a CUDA device, and the loaded library works on host memory"):
        single(HOST, cuda_core_buffer(data, on_host=False), None, None, False, "send")
    assert single(HOST, cuda_core_buffer(data, on_host=True), None, "float32", True, "send")[1] == 4
    closed = cuda_core_buffer(data, on_host=False)
    closed.handle = None
    with pytest.raises(ValueError, match="has been closed"):
        comm.all_reduce(closed)


def test_kept_with_their_streams(comm: Communicator, recording: Recorder) -> None:
    """A plan keeps its buffers and its streams until it is cleared."""
    plan, stream, data = pynickel.Plan(comm), SimpleNamespace(cuda_stream=5), CudaArrayInterface(np.zeros(4), stream=None)
    before = sys.getrefcount(stream), sys.getrefcount(data)
    plan.all_reduce(data, stream=stream)
    assert sys.getrefcount(stream) > before[0] and sys.getrefcount(data) > before[1]
    plan.launch()
    plan.clear()
    assert (sys.getrefcount(stream), sys.getrefcount(data)) == before and recording.calls[-2][1][6] == 5
