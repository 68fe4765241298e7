"""What an operation of torch.distributed returns: to be waited for, asked, or turned into a future."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from .lane import OVER, Task


class PynickelWork(dist.Work):
    """An operation in a lane; `outputs` are the tensors that hold its result."""

    def __init__(self, task: Task, outputs: list[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self._task = task
        self._outputs = outputs
        self._source = source
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it is over; raise what it failed with. `timeout` None or 0: as long as the group's own deadline allows."""
        seconds = timeout.total_seconds() if timeout else None
        task = self._task
        if not task.is_over and not task.wait(seconds):
            raise dist.DistBackendError(f"the operation was not over within {seconds:g} s; it goes on, and can be waited for again")
        if task.error is not None:
            raise task.error
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
        if self._future is None:
            begun, self._future = self._make_future()
            self._task.then(lambda: begun.set_result(None))
        return self._future

    def _make_future(self) -> tuple[torch.futures.Future[Any], torch.futures.Future[Any]]:
        """A future to be set when the operation is over, and the one of its result.

        Only what a callback raises is an error for C++, where DistributedDataParallel waits.
        """
        task, outputs = self._task, self._outputs

        def result(_: Any) -> list[torch.Tensor]:
            if task.error is not None:
                raise task.error
            return outputs

        begun: torch.futures.Future[Any] = torch.futures.Future()
        return begun, begun.then(result)


class Several(PynickelWork):
    """Some operations that are waited for together."""

    def __init__(self, works: Sequence[PynickelWork]) -> None:
        super().__init__(OVER, [tensor for work in works for tensor in work.result()])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when all are over."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are over and well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """What the first of those that failed has failed with."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def synchronize(self) -> None:
        """The same for each."""
        for work in self._works:
            work.synchronize()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of all tensors."""
        if self._future is None:
            outputs = self._outputs

            def result(done: torch.futures.Future[Any]) -> list[torch.Tensor]:
                for one in done.value():
                    one.value()
                return outputs

            self._future = torch.futures.collect_all([work.get_future() for work in self._works]).then(result)
        return self._future
