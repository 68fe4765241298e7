"""Questions to the CUDA driver, answered by a driver of the test's own."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.arrays import CUDA, CudaArrayInterface, DLPack
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, driver


class Driver(SimpleNamespace):
    """A driver that knows some addresses and whose streams need some looks."""

    known: set[int] = set()
    looks = 0
    devices: list[int] = []

    def cuPointerGetAttribute(self, out: Any, attribute: int, address: Any) -> int:
        return 0 if address.value in self.known else 1

    def cuStreamQuery(self, stream: Any) -> int:
        self.looks -= 1
        return 600 if self.looks > 0 else 700 if stream.value == 99 else 0

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> int:
        self.devices.append(device)
        return 101 if device > 7 else 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A process with that driver."""
    made = Driver(devices=[], known=set())
    monkeypatch.setattr(driver, "driver", lambda: made)
    monkeypatch.setattr(driver, "in_process", lambda: True)
    return made


@pytest.fixture
def comm(cuda: Driver, stub_comm: Communicator) -> Communicator:
    """A communicator of a library that works on that driver's memory."""
    return stub_comm


def test_plain_memory_is_refused(comm: Communicator, recording: Recorder) -> None:
    """Memory that CUDA does not know is refused before the library is entered: NCCL's kernels could not reach it."""
    for call in (lambda: comm.all_reduce(np.zeros(4)), lambda: comm.all_gather(np.zeros(4), np.zeros(16)), lambda: comm.send(b"x", 0)):
        with pytest.raises(ValueError, match="plain host memory"):
            call()
    assert recording.names == []


def test_pinned_memory_is_taken(comm: Communicator, cuda: Driver, recording: Recorder) -> None:
    """Host memory that CUDA knows, device memory, and bare addresses are taken."""
    pinned = np.zeros(4)
    cuda.known.add(pinned.ctypes.data)
    for buffer in (pinned, CudaArrayInterface(np.zeros(4)), DLPack(np.zeros(4), 1, CUDA)):
        assert comm.all_reduce(buffer) is buffer
    comm.all_reduce(4096, 8192, count=3, dtype=pynickel.float32)
    assert recording.names == ["ncclAllReduce"] * 4


def test_wait_polls_the_stream(comm: Communicator, cuda: Driver) -> None:
    """wait() looks at the stream until its work is done, has a deadline, and raises what the driver says."""
    cuda.looks = 5
    comm.wait(stream=7, timeout=5)
    assert cuda.looks == 0
    cuda.looks = 10**9
    with pytest.raises(pynickel.WaitTimeoutError):
        comm.wait(timeout=0.1)
    cuda.looks = 0
    with pytest.raises(pynickel.CudaError, match="CUresult 700"):
        comm.wait(stream=99)


def test_barrier_waits_for_the_device(comm: Communicator, cuda: Driver, recording: Recorder) -> None:
    """A barrier reduces a byte of the library's memory and waits until the device is done; the byte is made once."""
    cuda.looks = 3
    comm.barrier()
    comm.barrier()
    assert recording.names == ["ncclMemAlloc", "ncclAllReduce", "ncclAllReduce"] and cuda.looks < 0


def test_deadlines_that_nobody_would_keep(comm: Communicator, cuda: Driver, recording: Recorder) -> None:
    """Without a non-blocking communicator barrier and close refuse a timeout before NCCL is entered; with one they take it."""
    for call in (lambda: comm.barrier(timeout=5), lambda: comm.close(timeout=5)):
        with pytest.raises(pynickel.NotAvailableError, match="make it with timeout="):
            call()
    assert comm.state == "ready" and recording.names == []
    comm.barrier(timeout=math.inf)
    comm.close()
    with Communicator(4, bytes(range(128)), 1, library=recording.path, timeout=5) as other:
        other.barrier(timeout=2)
        other.close(timeout=2)
    comm.close(timeout=5)


def test_device(cuda: Driver, recording: Recorder) -> None:
    """device= makes the device current before init; one that does not exist is CudaError."""
    Communicator(4, bytes(range(128)), 1, library=recording.path, device=3).abort()
    assert cuda.devices == [3]
    with pytest.raises(pynickel.CudaError, match="device 8 cannot be used"):
        Communicator(4, bytes(range(128)), 1, library=recording.path, device=8)


def test_without_driver() -> None:
    """Without a driver nothing is asked: streams are done and memory is not judged."""
    if driver.driver() is None:
        assert driver.is_done(5) and driver.refuse_plain_memory(4096, "send") is None and driver.use_device(0) is None


def test_per_thread_stream(recording: Recorder) -> None:
    """Scenario 69: the per-thread stream is refused with a non-blocking communicator."""
    with Communicator(4, bytes(range(128)), 1, library=recording.path, timeout=5) as made:
        with pytest.raises(ValueError, match="per thread"):
            made.all_reduce(bytearray(4), stream=2)
        made.all_reduce(bytearray(4), stream=1)
