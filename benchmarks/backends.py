"""The same operations by pynickel, by MPI and by gloo, as one rank sees them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]
Call = Callable[[], Any]
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "send_recv")


class Nickel:
    """pynickel: by a communicator's methods, by a plan, or by the C functions of `pynickel.lib`."""

    gives_codes = True  # a call that returns a number has failed, unless it is 0

    def __init__(self, rank: int, nranks: int, exchange: Callable[[bytes | None], bytes]) -> None:
        import pynickel

        self.rank, self.nranks = rank, nranks
        made = bytes(pynickel.UniqueId.create()) if rank == 0 else None
        self.comm = pynickel.Communicator(nranks, exchange(made), rank, timeout=60)
        # Communicator.barrier() minds its caller's deadline; the others' do not.
        self.byte = self.buffer(1, "plain")
        self.barrier = self.raw("all_reduce", self.byte, self.byte)
        self.version = f"{self.comm.library.kind} {pynickel.__version__}"
        self.apis = ("methods", "raw", "plan") if hasattr(pynickel, "Plan") else ("methods", "raw")

    def buffer(self, count: int, memory: str) -> Array:
        """Memory from ncclMemAlloc ("empty"), or NumPy's own ("plain")."""
        from pynickel import empty

        made: Array = empty(count) if memory == "empty" else np.empty(count, np.float32)
        return made

    def call(self, operation: str, send: Array, recv: Array, api: str) -> Call:
        """One operation, ready to be called."""
        if api == "raw":
            return self.raw(operation, send, recv)
        if api == "plan":
            from pynickel import Plan  # type: ignore[attr-defined, unused-ignore]

            plan = Plan(self.comm)
            self.method(plan, operation, send, recv)()
            return partial(plan.launch)
        return self.method(self.comm, operation, send, recv)

    def method(self, of: Any, operation: str, send: Array, recv: Array) -> Call:
        """By the method of a communicator or of a plan."""
        if operation == "send_recv":
            return partial(of.recv if self.rank & 1 else of.send, send, self.rank ^ 1)
        in_place = operation in ("all_reduce", "broadcast")
        return partial(getattr(of, operation), *([send] if in_place else [send, recv]))

    def raw(self, operation: str, send: Array, recv: Array) -> Call:
        """By the C function, with ready pointers."""
        from pynickel import ffi, lib

        def pointer(array: Array) -> Any:
            return ffi.cast("void *", array.ctypes.data)

        s, r, none, comm = pointer(send), pointer(recv), ffi.NULL, ffi.cast("ncclComm_t", self.comm.handle)
        count, kind, add = send.size, lib.ncclFloat32, lib.ncclSum
        if operation == "all_reduce":
            return partial(lib.ncclAllReduce, s, s, count, kind, add, comm, none)
        if operation == "broadcast":
            return partial(lib.ncclBroadcast, s, s, count, kind, 0, comm, none)
        if operation == "all_gather":
            return partial(lib.ncclAllGather, s, r, count, kind, comm, none)
        if operation == "reduce_scatter":
            return partial(lib.ncclReduceScatter, s, r, recv.size, kind, add, comm, none)
        return partial(lib.ncclRecv if self.rank & 1 else lib.ncclSend, s, count, kind, self.rank ^ 1, comm, none)

    def close(self) -> None:
        """The end, together with the other ranks."""
        self.comm.close()


class Mpi:
    """An MPI library under mpi4py."""

    gives_codes = False
    apis = ("methods",)

    def __init__(self, rank: int, nranks: int, exchange: Callable[[bytes | None], bytes]) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.nranks = self.comm.rank, self.comm.size
        self.barrier = self.comm.Barrier
        self.version = MPI.Get_library_version().replace("\t", " ").split("\n")[0].split(",")[0].strip("\0 ")

    def buffer(self, count: int, memory: str) -> Array:
        """NumPy's own memory."""
        return np.empty(count, np.float32)

    def call(self, operation: str, send: Array, recv: Array, api: str) -> Call:
        """One operation, ready to be called."""
        if operation == "all_reduce":
            return partial(self.comm.Allreduce, self.mpi.IN_PLACE, send)
        if operation == "broadcast":
            return partial(self.comm.Bcast, send)
        if operation == "all_gather":
            return partial(self.comm.Allgather, send, recv)
        if operation == "reduce_scatter":
            return partial(self.comm.Reduce_scatter_block, send, recv)
        return partial(self.comm.Recv if self.rank & 1 else self.comm.Send, send, self.rank ^ 1)

    def close(self) -> None:
        """The end, together with the other ranks; without it files may be left in /dev/shm."""
        self.mpi.Finalize()


class Gloo:
    """torch.distributed with gloo."""

    gives_codes = False
    apis = ("methods",)

    def __init__(self, rank: int, nranks: int, exchange: Callable[[bytes | None], bytes]) -> None:
        import torch
        import torch.distributed as distributed

        torch.set_num_threads(1)
        self.torch, self.distributed = torch, distributed
        self.rank, self.nranks = rank, nranks
        store = os.environ["BENCHMARK_STORE"]
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=nranks, timeout=timedelta(seconds=60))
        self.barrier = distributed.barrier
        self.version = f"gloo of torch {torch.__version__}"

    def buffer(self, count: int, memory: str) -> Array:
        """NumPy's own memory; torch looks at it."""
        return np.empty(count, np.float32)

    def call(self, operation: str, send: Array, recv: Array, api: str) -> Call:
        """One operation, ready to be called."""
        s, r = self.torch.from_numpy(send), self.torch.from_numpy(recv)
        if operation == "all_reduce":
            return partial(self.distributed.all_reduce, s)
        if operation == "broadcast":
            return partial(self.distributed.broadcast, s, 0)
        if operation == "all_gather":
            return partial(self.distributed.all_gather_into_tensor, r, s)
        if operation == "reduce_scatter":
            return partial(self.distributed.reduce_scatter_tensor, r, s)
        return partial(self.distributed.recv if self.rank & 1 else self.distributed.send, s, self.rank ^ 1)

    def close(self) -> None:
        """Give the sockets back."""
        self.distributed.destroy_process_group()


BACKENDS: dict[str, Any] = {"nickel": Nickel, "mpi": Mpi, "gloo": Gloo}
