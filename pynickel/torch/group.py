"""The process group: what torch.distributed calls, turned into jobs for the group's lane."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from ..communicator import Communicator
from . import exits, host
from .about import About
from .coalescing import Together
from .cuda import Cuda
from .failures import as_torch
from .lane import OVER, Lane
from .meeting import Meeting, host_library, seconds_of
from .messages import Messages
from .patience import Patience
from .work import PynickelWork

Tensors = Sequence[torch.Tensor]
NOWHERE = torch.empty(0)  # a CPU tensor, for operations that have none
END = 2.0  # seconds that operations in flight have when the group is shut down


def create(store: dist.Store, rank: int, nranks: int, timeout: timedelta) -> PynickelProcessGroup:
    """What torch calls for init_process_group("pynickel") and new_group()."""
    return PynickelProcessGroup(store, rank, nranks, timeout)


def all_end(lanes: Sequence[Lane]) -> bool:
    """Take no more operations, and wait until what was given is over, for END seconds at most; whether all of it is."""
    deadline = time.monotonic() + END
    ended = [lane.end(max(0.0, deadline - time.monotonic())) for lane in lanes]  # all are told, even if one has not ended
    return all(ended)


class PynickelProcessGroup(About):
    """A process group of torch.distributed: CPU tensors by the CPU library, CUDA tensors by NVIDIA's NCCL."""

    def __init__(self, store: dist.Store, rank: int, nranks: int, timeout: timedelta) -> None:
        super().__init__(rank, nranks)
        self._nranks = nranks
        self._meeting = Meeting(store, rank, nranks, seconds_of(timeout))
        self._lane = Lane("pynickel collectives")
        self._messages = Messages(self._meeting)
        self._cuda = Cuda(self._meeting)
        self._comm: Communicator | None = None
        self._patience = Patience()
        self._making = threading.Lock()
        self._opened = threading.local()  # .together: the thread's Together, between the start and the end of coalescing
        exits.remember(self)

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of what is called from now on."""
        self._meeting.seconds = seconds_of(timeout)

    # -- the end -----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish what was begun, and close the communicators; what does not finish is aborted."""
        self._end(abort=False)

    def abort(self) -> None:
        """End all operations now, here and for the peers that wait in them."""
        self._end(abort=True)

    def _end(self, abort: bool) -> None:
        lanes = [self._lane, *self._messages.lanes()]
        for lane in lanes:
            lane.require_outside()
        exits.forget(self)
        if not abort and all_end(lanes):
            self._meeting.end(abort=False)
            return
        self._meeting.end(abort=True)
        all_end(lanes)

    # -- inside ------------------------------------------------------------------------------------------------------

    def host_comm(self, seconds: float | None = None) -> Communicator:
        """The communicator for CPU tensors; all ranks make it with their first collective, within so many seconds."""
        if self._comm is None:
            with self._making:
                if self._comm is None:
                    self._comm = self._meeting.communicator("collectives", range(self._nranks), host_library(), seconds=seconds)
        return self._meeting.in_time(self._comm)

    def _all_come(self) -> bool:
        """Whether all ranks have come to the next collective; by who has the lane's turn."""
        if self._comm is None:
            return False
        came = self._patience.all_come(self._comm)
        if not came and self._patience.promised:
            self._lane.patient = False  # the lane's thread begins at once, as others may wait for it now
        return came

    def _stay(self) -> None:
        """The next collective is not called, after all."""
        if self._comm is not None:
            self._comm._come(-1)

    def _run(
        self, what: str, tensor: torch.Tensor, opts: Any, job: Callable[[Communicator], None], outputs: list[Any], counted: bool = True
    ) -> Any:
        """One collective: on the GPU's stream, now if the caller waits for it anyway, else in the lane.

        `counted`: it begins with a collective of the library. What is made of messages must not be promised: who has none to exchange
        with this rank is at its next collective already, and would take the promise for that one.
        """
        together: Together | None = getattr(self._opened, "together", None)
        if tensor.is_cuda:
            work = self._cuda.run(what, tensor, job, outputs)
            return work if together is None else together.add(work)
        seconds = opts.timeout.total_seconds() if opts is not None else -1.0

        def whole() -> None:
            with as_torch(what):
                comm = self.host_comm(seconds if seconds > 0 else None)
                try:
                    if seconds <= 0:
                        job(comm)
                    else:
                        with comm._deadline(seconds):
                            job(comm)
                except BaseException:  # it may have failed before the library was called
                    self._stay()
                    raise

        if together is not None:
            together.jobs.append(whole)
            return PynickelWork(OVER, outputs)
        if opts is None or opts.asyncOp:
            try:
                return PynickelWork(self._lane.submit(whole, self._all_come if counted else None), outputs)
            except BaseException:  # Ctrl-C: it may have been promised to the others, and will not be called
                self._stay()
                raise
        self._lane.now(whole)
        return PynickelWork(OVER, outputs)

    def meet(self, seconds: float | None) -> None:
        """A barrier of the CPU ranks in the caller's thread, with a deadline of its own."""

        def job() -> None:
            with as_torch("barrier"):
                self.host_comm(seconds).barrier(seconds)

        self._lane.now(job)

    # -- collectives -------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Every rank ends up with the reduction of all ranks' tensors."""
        opts = dist.AllreduceOptions() if opts is None else opts
        return self._run("all_reduce", tensors[0], opts, lambda comm: host.all_reduce(comm, tensors, opts.reduceOp), list(tensors))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """The same for several tensors, in one call of the library."""
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        """Every rank ends up with the root's tensor."""
        opts = dist.BroadcastOptions() if opts is None else opts
        return self._run("broadcast", tensors[0], opts, lambda comm: host.broadcast(comm, tensors[0], opts.rootRank), list(tensors))

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """The root ends up with the reduction."""
        opts = dist.ReduceOptions() if opts is None else opts
        job = lambda comm: host.reduce(comm, tensors[0], opts.reduceOp, opts.rootRank)  # noqa: E731
        return self._run("reduce", tensors[0], opts, job, list(tensors))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Every rank ends up with rank i's tensor in outputs[0][i]."""
        return self._run("all_gather", inputs[0], opts, lambda comm: host.all_gather(comm, outputs[0], inputs[0]), list(outputs[0]))

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        """Every rank ends up with all ranks' tensors, one behind the other."""
        return self._run("all_gather_single", source, opts, lambda comm: host.all_gather_single(comm, [output], [source]), [output])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The same for several tensors."""
        return self._run("all_gather_single", inputs[0], opts, lambda comm: host.all_gather_single(comm, outputs, inputs), list(outputs))

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Every rank ends up with rank i's inputs[j] in outputs[i][j]."""

        def job(comm: Communicator) -> None:
            for number, source in enumerate(inputs):
                host.all_gather(comm, [tensors[number] for tensors in outputs], source)

        return self._run("all_gather", inputs[0], opts, job, [tensor for tensors in outputs for tensor in tensors])

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """Rank r ends up with the reduction of all ranks' inputs[0][r]."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        job = lambda comm: host.reduce_scatter(comm, outputs[0], inputs[0], opts.reduceOp)  # noqa: E731
        return self._run("reduce_scatter", outputs[0], opts, job, list(outputs))

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        """Rank r ends up with part r of the reduction."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        job = lambda comm: host.reduce_scatter_single(comm, [output], [source], opts.reduceOp)  # noqa: E731
        return self._run("reduce_scatter_single", source, opts, job, [output])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The same for several tensors."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        job = lambda comm: host.reduce_scatter_single(comm, outputs, inputs, opts.reduceOp)  # noqa: E731
        return self._run("reduce_scatter_single", inputs[0], opts, job, list(outputs))

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """The root ends up with rank i's tensor in outputs[0][i]."""
        opts = dist.GatherOptions() if opts is None else opts
        into = list(outputs[0]) if outputs else []
        return self._run("gather", inputs[0], opts, lambda comm: host.gather(comm, into, inputs[0], opts.rootRank), into)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """Rank i ends up with the root's inputs[0][i]."""
        opts = dist.ScatterOptions() if opts is None else opts
        sources = list(inputs[0]) if inputs else []
        return self._run("scatter", outputs[0], opts, lambda comm: host.scatter(comm, outputs[0], sources, opts.rootRank), list(outputs))

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> Any:
        """Part i of output is what rank i had in this rank's part of its input."""
        job = lambda comm: host.all_to_all_single(comm, output, source, output_sizes, input_sizes)  # noqa: E731
        return self._run("all_to_all_single", source, opts, job, [output], counted=not output_sizes and not input_sizes)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """outputs[i] is what rank i had in inputs[r], r being this rank."""
        job = lambda comm: host.all_to_all(comm, outputs, inputs)  # noqa: E731
        return self._run("all_to_all", inputs[0], opts, job, list(outputs), counted=False)

    def barrier(self, opts: Any = None) -> Any:
        """Over when all ranks have called it; what this rank has given to the current GPU streams before is over, too."""
        opts = dist.BarrierOptions() if opts is None else opts
        if opts.device is not None and opts.device.type == "cuda":
            return self._cuda.barrier(opts.device)
        if opts.device_ids:
            return self._cuda.barrier(torch.device("cuda", opts.device_ids[0]))
        self._cuda.finish()
        return self._run("barrier", NOWHERE, opts, lambda comm: comm.barrier(), [])

    # torch's older names of the same
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> Any:
        """The target's matching recv ends up with the tensor."""
        if tensors[0].is_cuda:
            return self._message(self._cuda.send(tensors[0], target))
        return self._message(PynickelWork(self._messages.send(tensors[0], target, tag), list(tensors)))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        """This tensor ends up with what the source's matching send sends."""
        if tensors[0].is_cuda:
            return self._message(self._cuda.recv(tensors[0], source))
        return self._message(PynickelWork(self._messages.recv(tensors[0], source, tag), list(tensors), source))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        """NCCL has no such thing."""
        raise TypeError("NCCL cannot receive from whoever sends first: give recv() a source rank")

    def _message(self, work: PynickelWork) -> PynickelWork:
        together: Together | None = getattr(self._opened, "together", None)
        return work if together is None else together.add(work)

    # -- several at once ---------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        """What this thread calls from now on is one piece of work."""
        self._opened.together = Together()

    def _end_coalescing(self, device: torch.device) -> Any:
        """That piece of work."""
        together: Together | None = getattr(self._opened, "together", None)
        if together is None:
            raise RuntimeError("_end_coalescing() without _start_coalescing()")
        self._opened.together = None
        return together.end(self._lane)
