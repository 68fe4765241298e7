"""Plan: operations queued once and launched many times, each time by one call into C."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock, get_ident
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._nccl import lib
from .batch import Batch, Group, open_groups, refusal
from .communicator import Communicator
from .errors import InvalidUsageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
launch = lib.pn_plan_launch


def queued(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Plan, Arguments], Result]:
    """The communicator's method as one of the plan: what it would do is written down behind what is there."""

    def queue(plan: Plan, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        thread = get_ident()
        outer, recording = open_groups.get(thread), Group()
        open_groups[thread] = recording
        try:
            result = method(plan.comm, *args, **options)
        finally:
            if outer is None:
                del open_groups[thread]
            else:
                open_groups[thread] = outer
        plan.extend(recording)
        return result

    update_wrapper(queue, method)
    return queue


class Plan(Batch):
    """Operations of `comm` that `launch` starts together, as often as wanted, for little more than one call.

    The methods are the communicator's and check their arguments when they queue. Each launch uses the same memory: change
    what the buffers hold between launches, not where they are. Buffers and operators are kept alive by the plan; operators
    must stay open. For new buffers `clear()` it and queue again. All ranks launch plans that fit together.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        if not isinstance(comm, Communicator):
            raise TypeError(f"comm must be a Communicator, not {comm!r}")
        comm._require_ready("Plan()")
        self.comm = comm
        self._changing = Lock()  # what Python and C know of the operations changes together

    all_reduce = queued(Communicator.all_reduce)
    broadcast = queued(Communicator.broadcast)
    bcast = queued(Communicator.bcast)
    reduce = queued(Communicator.reduce)
    all_gather = queued(Communicator.all_gather)
    reduce_scatter = queued(Communicator.reduce_scatter)
    all_to_all = queued(Communicator.all_to_all)
    gather = queued(Communicator.gather)
    scatter = queued(Communicator.scatter)
    all_gather_v = queued(Communicator.all_gather_v)
    reduce_scatter_v = queued(Communicator.reduce_scatter_v)
    all_to_all_v = queued(Communicator.all_to_all_v)
    gather_v = queued(Communicator.gather_v)
    scatter_v = queued(Communicator.scatter_v)
    send = queued(Communicator.send)
    recv = queued(Communicator.recv)
    send_recv = queued(Communicator.send_recv)
    put_signal = queued(Communicator.put_signal)
    signal = queued(Communicator.signal)
    wait_signal = queued(Communicator.wait_signal)

    def launch(self, stream: Any = None) -> None:
        """Start all operations as one group, each on the stream that it was queued with, or all on `stream`.

        Results are there afterwards as with single calls. Inside group() they become part of that group. If the library
        refuses one, none is started, and the exception's `operation` is its index.
        """
        if stream is None and self._plan is not None and not open_groups:
            if code := launch(self._plan):
                self._after(code, self.launch)
            return
        handle = None if stream is None else self.comm._stream(stream)
        queue = open_groups.get(get_ident())
        if queue is None:
            super().launch(handle)
        elif handle is None:
            queue.extend(self)
        else:
            raise InvalidUsageError("launch(stream=) cannot be part of group(): queue the operations with their stream")

    def extend(self, other: Batch) -> None:
        """Put all operations of another batch behind the own ones."""
        with self._changing:
            super().extend(other)

    def clear(self) -> None:
        """Forget all operations and let go of their buffers."""
        with self._changing:
            if self._plan is not None and (code := lib.pn_plan_clear(self._plan)):
                raise refusal(code)
            self.operations.clear()

    def __repr__(self) -> str:
        return f"<Plan of {len(self)} operations on {self.comm!r}>"
