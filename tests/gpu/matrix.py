"""What every library must do, written once: the same checks run on NVIDIA's NCCL with a GPU and, in ordinary tests, on the CPU library.

A check is a function of a Rank. It returns nothing if all is well or a text if it does not apply here; anything else is raised.
Inputs are small whole numbers, so that results are exact in every type: for one or two ranks.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

import pynickel
from pynickel import Communicator, DataType, Plan, group
from pynickel.device import open_device

NARROW = {"bfloat16": ml_dtypes.bfloat16, "float8e4m3": ml_dtypes.float8_e4m3fn, "float8e5m2": ml_dtypes.float8_e5m2}
TYPES = {name: np.dtype(NARROW.get(name, name)) for name in DataType.__members__}
SOME = ("float32", "int8", "bfloat16")
COUNT = 1031  # a prime: no path may rely on round numbers
FOLDS: dict[str, Callable[[Any, Any], Any]] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "avg": np.add}


class Rank:
    """One rank with its communicator and device, and how it makes, fills and reads buffers."""

    def __init__(self, comm: Communicator, device: Any) -> None:
        self.comm, self.device, self.rank, self.n = comm, device, comm.rank, comm.nranks
        self.on_gpu, self.stream = comm.library.kind != "host", device.stream

    def values(self, rank: int, count: int = COUNT, name: str = "float32") -> Any:
        """What that rank puts in: 1 to 3, and one more on the next rank."""
        return (np.arange(count) % 3 + 1 + rank).astype(TYPES[name])

    def all_values(self, count: int = COUNT, name: str = "float32") -> Any:
        """The inputs of all ranks, side by side."""
        return np.concatenate([self.values(rank, count, name) for rank in range(self.n)])

    def mine(self, name: str = "float32", count: int = COUNT) -> Any:
        """A buffer with this rank's input."""
        return self.device.upload(self.values(self.rank, count, name))

    def zeros(self, count: int = COUNT, name: str = "float32") -> Any:
        """A buffer of zeros."""
        return self.device.upload(np.zeros(count, TYPES[name]))

    def same(self, buffer: Any, expected: Any, about: str) -> None:
        """The buffer holds the expected numbers."""
        found = self.device.download(buffer).astype("f8").reshape(-1)
        wanted = np.asarray(expected).astype("f8").reshape(-1)
        wrong = np.flatnonzero(found != wanted) if found.shape == wanted.shape else [0]
        if len(wrong):
            i = wrong[0]
            raise AssertionError(f"{about}: {len(wrong)} of {found.size} wrong, element {i} is {found[i:i + 1]}, not {wanted[i:i + 1]}")

    def folded(self, op: str, name: str, count: int = COUNT) -> Any:
        """The reduction of all inputs."""
        total = self.values(0, count, name).astype("f8")
        for rank in range(1, self.n):
            total = FOLDS[op](total, self.values(rank, count, name).astype("f8"))
        if op == "avg":
            total = total / self.n if "float" in name else np.trunc(total / self.n)
        return total.astype(TYPES[name])


def all_reduce(me: Rank) -> str | None:
    """Every type with every reduction, out of place and in place."""
    left_out = []
    for name in TYPES:
        for op in FOLDS:
            send, recv = me.mine(name), me.zeros(COUNT, name)
            try:
                me.comm.all_reduce(send, recv, op, stream=me.stream)
            except pynickel.InvalidArgumentError:
                if not (me.on_gpu and name.startswith("float8")):
                    raise
                left_out.append(f"{op} of {name}")  # below compute capability 9.0, and some for one rank
                continue
            me.same(recv, me.folded(op, name), f"{op} of {name}")
            me.same(send, me.values(me.rank, COUNT, name), f"the input of {op} of {name}")
            me.comm.all_reduce(send, op=op, stream=me.stream)
            me.same(send, me.folded(op, name), f"{op} of {name} in place")
    return f"refused by NCCL on this GPU: {', '.join(left_out)}" if left_out else None


def rooted(me: Rank) -> None:
    """Broadcast, reduce, gather and scatter with every root, out of place and in place."""
    for root in range(me.n):
        at_root = me.rank == root
        for name in SOME:
            me.same(me.comm.broadcast(me.mine(name), root=root, stream=me.stream), me.values(root, COUNT, name), "broadcast")
            recv = me.zeros(COUNT, name)
            me.comm.reduce(me.mine(name), recv if at_root else None, root=root, stream=me.stream)
            me.same(recv, me.folded("sum", name) if at_root else np.zeros(COUNT), f"reduce to {root}")
            big = me.zeros(COUNT * me.n, name)
            own = big[me.rank * COUNT : (me.rank + 1) * COUNT]
            me.device.upload(me.values(me.rank, COUNT, name), to=own)
            me.comm.gather(own if at_root else me.mine(name), big if at_root else None, root=root, stream=me.stream)
            if at_root:
                me.same(big, me.all_values(COUNT, name), f"gather in place at {root}")
            me.comm.scatter(big if at_root else None, recv, root=root, stream=me.stream)
            me.same(recv, me.values(me.rank, COUNT, name), f"scatter from {root}")


def unrooted(me: Rank) -> None:
    """All-gather, reduce-scatter and all-to-all, the first two in place as well."""
    for name in SOME:
        everyone, parts = me.all_values(COUNT, name), me.device.upload(np.tile(me.values(me.rank, COUNT, name), me.n))
        big = me.zeros(COUNT * me.n, name)
        me.same(me.comm.all_gather(me.mine(name), big, stream=me.stream), everyone, "all_gather")
        own = slice(me.rank * COUNT, (me.rank + 1) * COUNT)
        again = me.zeros(COUNT * me.n, name)
        me.device.upload(me.values(me.rank, COUNT, name), to=again[own])
        me.comm.all_gather(again[own], again, stream=me.stream)
        me.same(again, everyone, "all_gather in place")
        me.same(me.comm.all_to_all(parts, big, stream=me.stream), everyone, "all_to_all")
        me.same(me.comm.reduce_scatter(parts, me.zeros(COUNT, name), stream=me.stream), me.folded("sum", name), "reduce_scatter")
        me.comm.reduce_scatter(parts, parts[own], stream=me.stream)
        me.same(parts[own], me.folded("sum", name), "reduce_scatter in place")


def variable(me: Rank) -> None:
    """Parts of different sizes: rank i has COUNT + i elements."""
    counts = [COUNT + rank for rank in range(me.n)]
    everyone = np.concatenate([me.values(rank, count) for rank, count in enumerate(counts)])
    mine = me.mine(count=counts[me.rank])
    me.same(me.comm.all_gather_v(mine, me.zeros(sum(counts)), counts, stream=me.stream), everyone, "all_gather_v")
    whole = me.device.upload(everyone)
    me.same(me.comm.reduce_scatter_v(whole, me.zeros(counts[me.rank]), counts, stream=me.stream),
            me.values(me.rank, counts[me.rank]) * me.n, "reduce_scatter_v")  # fmt: skip
    recv = me.comm.gather_v(mine, me.zeros(sum(counts)) if me.rank == 0 else None, counts, stream=me.stream)
    if me.rank == 0:
        me.same(recv, everyone, "gather_v")
    me.same(me.comm.scatter_v(whole if me.rank == 0 else None, me.zeros(counts[me.rank]), counts, stream=me.stream),
            me.values(me.rank, counts[me.rank]), "scatter_v")  # fmt: skip


def point_to_point(me: Rank) -> None:
    """A ring by send_recv, by a group, and messages to oneself."""
    to, source = (me.rank + 1) % me.n, (me.rank - 1) % me.n
    for name in SOME:
        recv, own, send = me.zeros(COUNT, name), me.zeros(COUNT, name), me.mine(name)
        me.same(me.comm.send_recv(send, to, recv, source, stream=me.stream), me.values(source, COUNT, name), "ring")
        with group():
            me.comm.send(send, to, stream=me.stream)
            me.comm.send(send, me.rank, stream=me.stream)
            me.comm.recv(recv, source, stream=me.stream)
            me.comm.recv(own, me.rank, stream=me.stream)
        me.same(recv if me.n > 1 else own, me.values(source, COUNT, name), "a group of sends and receives")


def plan(me: Rank) -> None:
    """A plan of many operations gives the right sums at each launch, on its own stream and on the one of the launch."""
    buffers = [me.mine(count=10 + i) for i in range(50)]
    made = Plan(me.comm)
    for buffer in buffers:
        made.all_reduce(buffer, stream=me.stream)
    for factor, stream in ((1, None), (me.n, me.stream)):
        made.launch(stream)
        for i, buffer in enumerate(buffers):
            me.same(buffer, me.folded("sum", "float32", 10 + i) * factor, f"operation {i} of a plan")


def buffers(me: Rank) -> None:
    """Memory from pynickel.empty, complex numbers, nothing at all, and every array library that is installed."""
    memory = pynickel.empty(COUNT, library=me.comm.library)
    me.device.upload(me.values(me.rank), to=memory)
    me.same(me.comm.all_reduce(memory, stream=me.stream), me.folded("sum", "float32"), "memory from ncclMemAlloc")
    pairs = me.device.upload(np.tile(me.values(me.rank), 2))
    address = pairs.address if me.on_gpu else pairs.ctypes.data
    me.comm.all_reduce(address, address, count=COUNT, dtype="complex64", stream=me.stream)
    me.same(pairs, np.tile(me.folded("sum", "float32"), 2), "complex numbers")
    me.comm.all_reduce(me.zeros(0), stream=me.stream)
    others = foreign(me)
    for name, buffer in others.items():
        me.comm.all_reduce(buffer, stream=me.stream)
        me.device.synchronize()
        me.same(me.device.upload(np.asarray(buffer.get() if name == "cupy" else buffer.cpu())), me.folded("sum", "float32"), name)


def foreign(me: Rank) -> dict[str, Any]:
    """This rank's input as GPU arrays of the libraries that are there, ready for any stream."""
    found: dict[str, Any] = {}
    if me.on_gpu and find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found["torch"] = torch.from_numpy(me.values(me.rank)).cuda()
            torch.cuda.synchronize()
    if me.on_gpu and find_spec("cupy"):
        import cupy

        found["cupy"] = cupy.asarray(me.values(me.rank))
        cupy.cuda.runtime.deviceSynchronize()
    return found


def refusals(me: Rank) -> None:
    """What cannot be is refused before the library is entered: memory of the wrong side, gaps, and types that NCCL lacks."""
    wrong: dict[str, Callable[[], Any]] = {"bool": lambda: me.comm.all_reduce(np.zeros(4, bool))}
    if me.on_gpu:
        wrong["host memory"] = lambda: me.comm.all_reduce(np.zeros(4))
    else:
        wrong["gaps"] = lambda: me.comm.all_reduce(np.zeros(8)[::2])
    for name, call in wrong.items():
        try:
            call()
        except (TypeError, ValueError):
            continue
        raise AssertionError(f"{name} was accepted")
    me.same(me.comm.all_reduce(me.mine(), stream=me.stream), me.folded("sum", "float32"), "a sum after refusals")


def family(me: Rank) -> None:
    """Barrier, split and duplicate, operators of one's own, and what a communicator says of itself."""
    me.comm.barrier()
    with me.comm.duplicate() as copy:
        me.same(copy.all_reduce(me.mine(), stream=me.stream), me.folded("sum", "float32"), "a sum on a duplicate")
        copy.wait(me.stream)
    with me.comm.split(me.rank) as alone:
        me.same(alone.all_reduce(me.mine(), stream=me.stream), me.values(me.rank), "a sum of one rank")
        alone.wait(me.stream)
    twice = me.comm.pre_mul_sum(2.0, "float32")
    me.same(me.comm.all_reduce(me.mine(), op=twice, stream=me.stream), me.folded("sum", "float32") * 2, "PreMulSum")
    twice.close()
    if (me.comm.get_async_error(), me.comm.state) != (0, "ready"):
        raise AssertionError(f"{me.comm!r} has the asynchronous error {me.comm.get_async_error()}")


CHECKS: list[Callable[[Rank], str | None]] = [
    all_reduce, rooted, unrooted, variable, point_to_point, plan, buffers, refusals, family,
]  # type: ignore[list-item]  # fmt: skip


def run_all(rank: int, n: int, unique_id: bytes, library: str, index: int) -> list[tuple[str, str, str, float]]:
    """Each check's name, "passed", "failed" or "left out", what is to say of it, and its seconds; ends at the first failure."""
    device = open_device(library, index)
    rows: list[tuple[str, str, str, float]] = []
    with Communicator(n, unique_id, rank, library=library, device=index) as comm:
        me = Rank(comm, device)
        for check in CHECKS:
            begun = time.monotonic()
            try:
                note = check(me)
                rows.append((check.__name__, "partly" if note else "passed", note or "", time.monotonic() - begun))
            except Exception:  # the report is of all that can go wrong
                rows.append((check.__name__, "failed", traceback.format_exc(), time.monotonic() - begun))
                break
            print(f"{check.__name__} done", flush=True)
        device.synchronize()
    return rows
