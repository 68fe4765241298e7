"""CUDA tensors: NVIDIA's NCCL, collectives on the current stream, messages on streams of their own. Not yet run on a GPU."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from ..communicator import Communicator
from ..library import load
from .elements import dense, movable, settle
from .failures import as_torch
from .lane import OVER
from .meeting import Meeting
from .messages import RECEIVER, SENDER, check_peer
from .work import PynickelWork


class CudaWork(PynickelWork):
    """Work on a stream: over when its event has passed; waiting makes the current stream wait, not the host."""

    def __init__(self, outputs: list[torch.Tensor], device: torch.device, stream: Any, source: int = -1) -> None:
        super().__init__(OVER, outputs, source)
        self._device = device
        self._stream = stream
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait for the result."""
        torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        """Whether the GPU has done it."""
        return bool(self._event.query())

    is_success = is_completed

    def synchronize(self) -> None:
        """Let the host wait."""
        self._event.synchronize()

    def _make_future(self) -> tuple[torch.futures.Future[Any], torch.futures.Future[Any]]:
        """A future that knows the device; who waits for it makes its stream wait for the stream of this work."""
        outputs = self._outputs
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._device])
        return Within(future, self._stream, outputs), future


class Within:
    """Sets a future's result while the stream of the work is current: that is what the future remembers."""

    def __init__(self, future: torch.futures.Future[Any], stream: Any, outputs: list[torch.Tensor]) -> None:
        self._future, self._stream, self._outputs = future, stream, outputs

    def set_result(self, _: None) -> None:
        """The work's tensors."""
        with torch.cuda.stream(self._stream):
            self._future.set_result(self._outputs)


class Cuda:
    """The communicators of a group's GPUs: one for each device that this rank uses, and one for each way of messages."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._comms: dict[int, Communicator] = {}
        self._ways: dict[tuple[int, int, int], tuple[Communicator, Any]] = {}
        self._lock = threading.Lock()

    def finish(self) -> None:
        """Wait for what this rank has given to the current streams of the devices it uses here."""
        for index in self._comms:
            torch.cuda.current_stream(torch.device("cuda", index)).synchronize()

    def comm(self, device: torch.device) -> Communicator:
        """The communicator for a device; all ranks make it with their first operation on that one."""
        index = torch.cuda.current_device() if device.index is None else device.index
        with self._lock:
            if index not in self._comms:
                number = len(self._comms)
                self._comms[index] = self._make(f"cuda/{number}", range(self._meeting.nranks), index)
            return self._comms[index]

    def _way(self, source: int, target: int, device: torch.device) -> tuple[Communicator, Any]:
        """The communicator of a way between two ranks, and its stream, so that messages in any order cannot block each other."""
        check_peer(self._meeting, source, target)
        index = torch.cuda.current_device() if device.index is None else device.index
        with self._lock:
            key = (source, target, index)
            if key not in self._ways:
                number = sum(way[:2] == key[:2] for way in self._ways)
                comm = self._make(f"cuda/messages/{source}/{target}/{number}", (source, target), index)
                self._ways[key] = comm, torch.cuda.Stream(device)
            return self._ways[key]

    def _make(self, key: str, ranks: Sequence[int], index: int) -> Communicator:
        with torch.cuda.device(index):
            return self._meeting.communicator(key, ranks, load("nvidia"), index)

    def run(self, what: str, tensor: torch.Tensor, job: Callable[[Communicator], None], outputs: list[Any]) -> PynickelWork:
        """Queue a collective on the tensor's device, on its current stream."""
        device = tensor.device
        with as_torch(what), torch.cuda.device(device):
            stream = torch.cuda.current_stream(device)
            job(OnStream(self.comm(device), stream.cuda_stream))  # type: ignore[arg-type]
            record([tensor, *outputs], stream)
            return CudaWork(outputs, device, stream)

    def barrier(self, device: torch.device) -> PynickelWork:
        """Over when all ranks' streams have come to it; the host waits."""
        byte = torch.zeros(1, dtype=torch.uint8, device=device)
        work = self.run("barrier", byte, lambda comm: comm.all_reduce(byte), [byte])
        work.synchronize()
        return work

    def send(self, tensor: torch.Tensor, target: int) -> PynickelWork:
        """Queue a message to another rank."""
        data = movable(dense(tensor))
        return self._message("send", tensor, (self._meeting.rank, target), lambda comm: comm.send(data, RECEIVER), data)

    def recv(self, tensor: torch.Tensor, source: int) -> PynickelWork:
        """Queue the receipt of one."""
        into = dense(tensor)

        def job(comm: Communicator) -> None:
            comm.recv(movable(into), SENDER)
            settle(tensor, into)

        return self._message("recv", tensor, (source, self._meeting.rank), job, into)

    def _message(
        self, what: str, tensor: torch.Tensor, way: tuple[int, int], job: Callable[[Communicator], Any], moved: torch.Tensor
    ) -> PynickelWork:
        """On the way's own stream, behind what the current stream has now."""
        device = tensor.device
        with as_torch(what), torch.cuda.device(device):
            comm, stream = self._way(*way, device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                job(OnStream(comm, stream.cuda_stream))  # type: ignore[arg-type]
            record([tensor, moved], stream)
            return CudaWork([tensor], device, stream, way[0] if what == "recv" else -1)


def record(tensors: Sequence[Any], stream: Any) -> None:
    """Their memory is not given to others before the stream has come here."""
    for one in tensors:
        if isinstance(one, torch.Tensor) and one.is_cuda:
            one.record_stream(stream)


class OnStream:
    """A communicator whose operations all go to one stream."""

    def __init__(self, comm: Communicator, stream: int) -> None:
        self._comm, self._stream = comm, stream

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if name in ("rank", "nranks", "pre_mul_sum"):
            return found
        return lambda *args, **given: found(*args, stream=self._stream, **given)
