"""One rank of torch_backends.py: times collectives and training steps of torch.distributed's backends, prints JSON lines."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.nn  # noqa: F401  # before there is a group, which it would keep alive until the process ends
from torch import distributed as dist

import pynickel.torch  # noqa: F401  # registers the backend
from pynickel import Communicator, UniqueId

STEPS = 5  # in a turn of a backend
LAYERS = (784, 1000, 280, 10)  # 1.07 million parameters
WARM_UP = 3  # calls that are not counted
Made = tuple[Callable[[], Any], torch.Tensor, Callable[[], bool]]  # the call, what is rewritten before it, whether it was right


def main() -> None:
    """Measure what the first argument says, as JSON; all backends in turns, so that a disturbance meets all of them."""
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    groups = {name: dist.new_group(backend=name, timeout=timedelta(seconds=60)) for name in told["backends"]}
    comm = meet()
    for operation in told["operations"]:
        for size in told["sizes"]:
            for name, times in measure(comm, groups, operation, size, told["seconds"]).items():
                tell(backend=name, operation=operation, bytes=size, times=times)
    if told["steps"]:
        for name, times in steps(comm, groups, told["steps"]).items():
            tell(backend=name, operation="step", bytes=0, times=times)
    comm.close()
    dist.destroy_process_group()


def tell(**words: Any) -> None:
    """Rank 0 tells for all."""
    if dist.get_rank() == 0:
        words["times"] = [round(second * 1e6, 3) for second in words["times"]]
        print(json.dumps(words), flush=True)


def meet() -> Communicator:
    """A communicator beside the backend, whose barrier comes before each timed call: the same one for all backends."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    objects = [bytes(UniqueId.create("host")) if rank == 0 else None]
    dist.broadcast_object_list(objects)
    return Communicator(nranks, objects[0], rank, library="host", timeout=60)


def measure(comm: Communicator, groups: dict[str, Any], operation: str, size: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of each call, of the rank that took longest; every rank rewrites its whole buffer before it."""
    made = {name: OPERATIONS[operation](size, group) for name, group in groups.items()}
    times: dict[str, list[float]] = {name: [] for name in groups}
    worst, stop = torch.zeros(1, dtype=torch.float64), torch.zeros(1)
    end = time.perf_counter() + seconds
    gc.disable()
    for turn in itertools.count():
        for name, (call, written, _) in made.items():
            written.fill_(1.0)
            comm.barrier()
            begun = time.perf_counter()
            call()
            worst[0] = time.perf_counter() - begun
            comm.all_reduce(worst, op="max")
            if turn >= WARM_UP:
                times[name].append(float(worst[0]))
        stop[0] = turn > 2 * WARM_UP and time.perf_counter() > end
        comm.all_reduce(stop, op="max")
        if stop[0]:
            break
    gc.enable()
    for name, (_, _, check) in made.items():
        if not check():
            raise SystemExit(f"{operation} of {size} bytes by {name}: the result is wrong")
    return times


def floats(size: int, ranks: int = 1) -> torch.Tensor:
    """So many bytes of ones for each of so many ranks."""
    return torch.ones(max(1, size // 4) * ranks)


def all_reduce(size: int, group: Any) -> Made:
    """Size: of the tensor."""
    data = floats(size)
    return lambda: dist.all_reduce(data, group=group), data, lambda: bool((data == dist.get_world_size()).all())


def broadcast(size: int, group: Any) -> Made:
    """Size: of the tensor."""
    data = floats(size)
    return lambda: dist.broadcast(data, 0, group=group), data, lambda: bool((data == 1).all())


def reduce(size: int, group: Any) -> Made:
    """Size: of the tensor."""
    data = floats(size)
    return lambda: dist.reduce(data, 0, group=group), data, lambda: dist.get_rank() != 0 or bool((data == dist.get_world_size()).all())


def all_gather(size: int, group: Any) -> Made:
    """Size: of one rank's tensor; into a list."""
    data, into = floats(size), [floats(size) * 0 for _ in range(dist.get_world_size())]
    return lambda: dist.all_gather(into, data, group=group), data, lambda: all(bool((one == 1).all()) for one in into)


def all_gather_single(size: int, group: Any) -> Made:
    """Size: of one rank's tensor."""
    data, into = floats(size), floats(size, dist.get_world_size()) * 0
    return lambda: dist.all_gather_single(into, data, group=group), data, lambda: bool((into == 1).all())


def reduce_scatter_single(size: int, group: Any) -> Made:
    """Size: of one rank's result."""
    data, into = floats(size, dist.get_world_size()), floats(size) * 0
    return lambda: dist.reduce_scatter_single(into, data, group=group), data, lambda: bool((into == dist.get_world_size()).all())


def all_to_all_single(size: int, group: Any) -> Made:
    """Size: of what one rank sends to one other."""
    data, into = floats(size, dist.get_world_size()), floats(size, dist.get_world_size()) * 0
    return lambda: dist.all_to_all_single(into, data, group=group), data, lambda: bool((into == 1).all())


def send_recv(size: int, group: Any) -> Made:
    """Size: of the tensor, from each even rank to the next one and back."""
    data, peer = floats(size), dist.get_rank() ^ 1

    def call() -> None:
        for odd in (0, 1):
            if dist.get_rank() % 2 == odd:
                dist.send(data, peer, group=group)
            else:
                dist.recv(data, peer, group=group)

    return call, data, lambda: bool((data == 1).all())


OPERATIONS = {
    function.__name__: function
    for function in (all_reduce, broadcast, reduce, all_gather, all_gather_single, reduce_scatter_single, all_to_all_single, send_recv)
}


def steps(comm: Communicator, groups: dict[str, Any], seconds: float) -> dict[str, list[float]]:
    """Seconds of each step of training a perceptron: with DistributedDataParallel by each backend, and each rank for itself."""
    trained = {"alone": perceptron()}
    trained.update({name: torch.nn.parallel.DistributedDataParallel(perceptron(), process_group=group) for name, group in groups.items()})
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, model in trained.items()}
    samples, labels = torch.randn(32, LAYERS[0]), torch.randint(0, LAYERS[-1], (32,))
    times: dict[str, list[float]] = {name: [] for name in trained}
    stop, end = torch.zeros(1), time.perf_counter() + seconds
    while not stop:
        for name, model in trained.items():
            comm.barrier()
            begun = time.perf_counter()
            for _ in range(STEPS):
                optimizers[name].zero_grad()
                torch.nn.functional.cross_entropy(model(samples), labels).backward()
                optimizers[name].step()
            times[name].append((time.perf_counter() - begun) / STEPS)
        stop[0] = len(times["alone"]) > WARM_UP and time.perf_counter() > end
        comm.all_reduce(stop, op="max")
    return {name: found[2:] for name, found in times.items()}


def perceptron() -> torch.nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inner, outer in itertools.pairwise(LAYERS):
        layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


if __name__ == "__main__":
    main()
