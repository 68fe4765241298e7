"""CUDA tensors: NVIDIA's NCCL on the current stream, as torch's own back end does. Not yet run on a GPU."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from ..communicator import Communicator
from ..library import load
from .elements import dense, movable, settle
from .failures import as_torch
from .lane import OVER
from .meeting import Meeting
from .work import PynickelWork


class CudaWork(PynickelWork):
    """Work on a stream: over when its event has passed; waiting makes the current stream wait, not the host."""

    def __init__(self, outputs: list[torch.Tensor], device: torch.device, source: int = -1) -> None:
        super().__init__(OVER, outputs, source)
        self._device = device
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(device))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
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

    def _make_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future(devices=[self._device])


class Cuda:
    """The communicators of a group's GPUs, one for each device that this rank uses."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._comms: dict[int, Communicator] = {}
        self._lock = threading.Lock()

    def comm(self, device: torch.device) -> Communicator:
        """The communicator for a device; all ranks make it with their first operation on that one."""
        index = torch.cuda.current_device() if device.index is None else device.index
        with self._lock:
            if index not in self._comms:
                number = len(self._comms)
                with torch.cuda.device(index):
                    ranks = tuple(range(self._meeting.nranks))
                    self._comms[index] = self._meeting.communicator(f"cuda/{number}", ranks, load("nvidia"), index)
            return self._comms[index]

    def run(self, what: str, tensor: torch.Tensor, job: Callable[[Communicator], None], outputs: list[Any]) -> dist.Work:
        """Queue a collective on the tensor's device, on its current stream."""
        device = tensor.device
        with as_torch(what), torch.cuda.device(device):
            stream = torch.cuda.current_stream(device)
            job(OnStream(self.comm(device), stream.cuda_stream))  # type: ignore[arg-type]
            for one in (tensor, *outputs):
                if isinstance(one, torch.Tensor) and one.is_cuda:
                    one.record_stream(stream)
            return CudaWork(outputs, device)

    def barrier(self, device: torch.device) -> dist.Work:
        """Over when all ranks' streams have come to it; the host waits."""
        byte = torch.zeros(1, dtype=torch.uint8, device=device)
        work = self.run("barrier", byte, lambda comm: comm.all_reduce(byte), [byte])
        work.synchronize()
        return work

    def send(self, tensor: torch.Tensor, target: int) -> dist.Work:
        """Queue a message to another rank."""
        data = dense(tensor)
        return self.run("send", tensor, lambda comm: comm.send(movable(data), target), [tensor])

    def recv(self, tensor: torch.Tensor, source: int) -> dist.Work:
        """Queue the receipt of one."""
        into = dense(tensor)

        def job(comm: Communicator) -> None:
            comm.recv(movable(into), source)
            settle(tensor, into)

        return self.run("recv", tensor, job, [tensor])


class OnStream:
    """A communicator whose operations all go to one stream."""

    def __init__(self, comm: Communicator, stream: int) -> None:
        self._comm, self._stream = comm, stream

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if name in ("rank", "nranks", "pre_mul_sum"):
            return found
        return lambda *args, **given: found(*args, stream=self._stream, **given)
