"""What an operation of torch.distributed returns: to be waited for, asked, or turned into a future."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from .lane import Task


class PynickelWork(dist.Work):  # type: ignore[misc]  # torch comes without types for it
    """An operation in a lane; `outputs` are the tensors that hold its result."""

    def __init__(self, task: Task, outputs: list[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self._task = task
        self._outputs = outputs
        self._source = source
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is over; raise what it failed with. `timeout` 0: as long as the group's own deadline allows."""
        seconds = timeout.total_seconds() if timeout else None
        if not self._task.wait(seconds):
            raise dist.DistBackendError(f"the operation was not over within {seconds:g} s; it goes on, and can be waited for again")
        if self._task.error is not None:
            raise self._task.error
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._task.is_over

    def is_success(self) -> bool:
        """Whether it is over and well."""
        return self._task.is_over and self._task.error is None

    def exception(self) -> BaseException | None:
        """What it failed with, if it did."""
        return self._task.error

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result."""
        return self._outputs

    def synchronize(self) -> None:
        """The same as wait: on the CPU nothing is left on a stream."""
        self.wait()

    def source_rank(self) -> int:
        """The rank that a message came from."""
        return self._source

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = self._make_future()
        task, outputs = self._task, self._outputs

        def settle() -> None:
            if task.error is None:
                future.set_result(outputs)
            elif isinstance(task.error, Exception):
                future.set_exception(task.error)
            else:
                future.set_exception(RuntimeError(f"interrupted: {task.error!r}"))

        task.then(settle)
        return future

    def _make_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()
