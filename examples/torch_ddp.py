"""Handwritten digits by DistributedDataParallel: `torchrun --nproc-per-node 2 examples/torch_ddp.py --backend pynickel`, or gloo.

The loss is the same to rounding for each backend and each number of ranks: every update is made from the same samples.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed.nn  # noqa: F401  # before there is a group, which it would keep alive until the process ends
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn

TRAINING = 1_500  # of the 1,797 digits; the others are for the test
BATCH = 60  # samples of all ranks together in an update


def main() -> None:
    """Train, then count what is recognised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="pynickel", help="of torch.distributed (pynickel)")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    if options.backend == "pynickel":
        import pynickel.torch  # noqa: F401  # registers the backend
    if not os.environ.get("RANK"):
        parser.error("its ranks are started by a launcher: torchrun --nproc-per-node 2 examples/torch_ddp.py")
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, timeout=timedelta(seconds=60))
    begun = time.perf_counter()
    loss, accuracy = train(options.epochs)
    if dist.get_rank() == 0:
        seconds = time.perf_counter() - begun
        print(f"{options.backend}, {dist.get_world_size()} ranks: loss {loss:.6f}, accuracy {accuracy:.1%}, {seconds:.1f} s")
    dist.destroy_process_group()


def train(epochs: int) -> tuple[float, float]:
    """The loss of the last epoch, and the share of the test digits that are recognised."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    if BATCH % nranks:
        raise SystemExit(f"{BATCH} samples cannot be shared equally among {nranks} ranks")
    torch.manual_seed(0)  # the same weights and the same order on all ranks
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.from_numpy(digits.images / 16).float().flatten(1)[order]
    labels = torch.from_numpy(digits.target)[order]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    total = torch.zeros(())
    for _ in range(epochs):
        total.zero_()
        for batch in torch.randperm(TRAINING).split(BATCH):
            mine = batch.chunk(nranks)[rank]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()  # DDP averages the gradients over the ranks
            optimizer.step()
            total += loss.detach() * len(mine) / TRAINING
        dist.all_reduce(total)
    with torch.no_grad():
        mine = torch.arange(TRAINING + rank, len(labels), nranks)
        right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    dist.all_reduce(right)
    return float(total), float(right) / (len(labels) - TRAINING)


if __name__ == "__main__":
    main()
