"""One rank of torch_backends.py: times collectives and training steps of torch.distributed's backends, prints JSON lines."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from pynickel import Communicator, UniqueId

DATA = 1 << 26  # no buffer of an operation is larger
LAYERS = (784, 1000, 280, 10)  # 1.07 million parameters
Call = Callable[[], Any]


def main() -> None:
    """Do what the options say, as JSON in the first argument."""
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if told["backend"] == "pynickel":
        import pynickel.torch  # noqa: F401  # registers it
    dist.init_process_group(told["backend"], timeout=timedelta(seconds=60))
    comm = meet()
    for operation in told["operations"]:
        for size in told["sizes"]:
            times = measure(comm, operation, size, told["seconds"])
            if dist.get_rank() == 0:
                print(json.dumps({"operation": operation, "bytes": size, "times": times}), flush=True)
    for kind in told["steps"]:
        times = steps(comm, kind == "ddp", told["seconds"] * 4)
        if dist.get_rank() == 0:
            print(json.dumps({"step": kind, "times": times}), flush=True)
    comm.close()
    dist.destroy_process_group()


def meet() -> Communicator:
    """A communicator beside the backend, whose barrier comes before each timed call: the same one for all backends."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    objects = [bytes(UniqueId.create("host")) if rank == 0 else None]
    dist.broadcast_object_list(objects)
    return Communicator(nranks, objects[0], rank, library="host", timeout=60)


def measure(comm: Communicator, operation: str, size: int, seconds: float) -> list[float]:
    """Seconds of each call, of the rank that took longest; every rank rewrites its whole buffer before it."""
    call, written, check = OPERATIONS[operation](size)
    times, end = [], None
    decided = torch.zeros(2, dtype=torch.float64)
    gc.disable()
    while True:
        written.fill_(1.0)
        comm.barrier()
        begun = time.perf_counter()
        call()
        decided[0] = time.perf_counter() - begun
        end = end or time.perf_counter() + seconds
        decided[1] = 0.0 if time.perf_counter() < end or len(times) < 8 else 1.0
        comm.all_reduce(decided, op="max")
        times.append(float(decided[0]))
        if decided[1]:
            break
    gc.enable()
    if not check():
        raise SystemExit(f"{operation} of {size} bytes: the result is wrong")
    return times[3:]


def floats(size: int, ranks: int = 1) -> torch.Tensor:
    """So many bytes of ones for each of so many ranks."""
    return torch.ones(max(1, size // 4) * ranks)


def all_reduce(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of the tensor."""
    data = floats(size)
    return lambda: dist.all_reduce(data), data, lambda: bool((data == dist.get_world_size()).all())


def broadcast(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of the tensor."""
    data = floats(size)
    return lambda: dist.broadcast(data, 0), data, lambda: bool((data == 1).all())


def reduce(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of the tensor."""
    data = floats(size)
    return lambda: dist.reduce(data, 0), data, lambda: dist.get_rank() != 0 or bool((data == dist.get_world_size()).all())


def all_gather(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of one rank's tensor; into a list."""
    data, into = floats(size), [floats(size) * 0 for _ in range(dist.get_world_size())]
    return lambda: dist.all_gather(into, data), data, lambda: all(bool((one == 1).all()) for one in into)


def all_gather_into_tensor(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of one rank's tensor."""
    data, into = floats(size), floats(size, dist.get_world_size()) * 0
    return lambda: dist.all_gather_into_tensor(into, data), data, lambda: bool((into == 1).all())


def reduce_scatter_tensor(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of one rank's result."""
    data, into = floats(size, dist.get_world_size()), floats(size) * 0
    return lambda: dist.reduce_scatter_tensor(into, data), data, lambda: bool((into == dist.get_world_size()).all())


def all_to_all_single(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of what one rank sends to one other."""
    data, into = floats(size, dist.get_world_size()), floats(size, dist.get_world_size()) * 0
    return lambda: dist.all_to_all_single(into, data), data, lambda: bool((into == 1).all())


def send_recv(size: int) -> tuple[Call, torch.Tensor, Callable[[], bool]]:
    """Size: of the tensor, from each even rank to the next one and back."""
    data, peer = floats(size), dist.get_rank() ^ 1

    def call() -> None:
        for odd in (0, 1):
            if dist.get_rank() % 2 == odd:
                dist.send(data, peer)
            else:
                dist.recv(data, peer)

    return call, data, lambda: bool((data == 1).all())


OPERATIONS = {
    function.__name__: function
    for function in (all_reduce, broadcast, reduce, all_gather, all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single, send_recv)
}


def steps(comm: Communicator, ddp: bool, seconds: float) -> list[float]:
    """Seconds of each step of training a perceptron, with DistributedDataParallel or each rank for itself."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inner, outer in zip(LAYERS, LAYERS[1:], strict=False):
        layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    model: torch.nn.Module = torch.nn.Sequential(*layers[:-1])
    if ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples, labels = torch.randn(32, LAYERS[0]), torch.randint(0, LAYERS[-1], (32,))
    times: list[float] = []
    stop = torch.zeros(1)
    end = time.perf_counter() + seconds
    while not stop:
        comm.barrier()
        begun = time.perf_counter()
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(samples), labels).backward()
            optimizer.step()
        times.append((time.perf_counter() - begun) / 10)
        stop[0] = time.perf_counter() > end and len(times) > 5
        comm.all_reduce(stop, op="max")
    return times[2:] if statistics.median(times) else times


if __name__ == "__main__":
    main()
