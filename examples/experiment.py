"""What the experiments share: options, the training loop, three timed runs, the validation curve, files and pictures."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from comms import MODULES, Comm, open_comm
from tqdm import tqdm

from pynickel.training import shard

matplotlib.use("agg")

RATE, DECAY = 1e-3, 0.98  # Adam's first learning rate, and what becomes of it with each epoch
VALIDATE_EVERY, SAVE_EVERY = 5, 25  # epochs; the first one and the last one count too


class Experiment(ABC):
    """Data, a net, and how good it is. `x` and `y` are all training samples, `test_x` and `test_y` those for validation."""

    name: str
    weight_decay: float
    noise = 0  # random numbers for each sample of a step
    x: torch.Tensor
    y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """A fresh net, by torch's seed."""

    @abstractmethod
    def loss(self, model: Any, x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The mean loss of these samples."""

    @abstractmethod
    def output(self, model: Any, x: torch.Tensor) -> torch.Tensor:
        """What shall be like the target."""

    @abstractmethod
    def draw(self, model: Any, folder: Path, epoch: int) -> None:
        """Write pictures, and the predictions that they show."""


class Run:
    """One training run, from a fresh net to the last epoch."""

    def __init__(self, experiment: Experiment, comm: Comm, options: argparse.Namespace, folder: Path | None, title: str) -> None:
        self.experiment, self.comm, self.options, self.folder, self.title = experiment, comm, options, folder, title
        # Ranks begin with nets of their own; the copy makes them one.
        torch.manual_seed(options.seed + comm.rank)
        self.model = experiment.model().to(comm.device, experiment.x.dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE, weight_decay=experiment.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, DECAY)
        self.curve: list[tuple[int, float]] = []
        self.training_loss = float("nan")
        self.seconds = self.updates = 0.0

    def train(self) -> None:
        """All epochs; seconds are those of training and validation, without pictures and files."""
        self.comm.copy_model(self.model)
        epochs = range(1, self.options.epochs + 1)
        bar = tqdm(epochs, self.title, unit="epoch", disable=None if self.comm.rank == 0 else True, leave=False)
        for epoch in bar:
            self.comm.barrier()
            began = time.perf_counter()
            self.epoch(epoch)
            if due(epoch, VALIDATE_EVERY, self.options.epochs):
                self.curve.append((epoch, self.validate()))
                bar.set_postfix(loss=f"{self.training_loss:.4g}", validation=f"{self.curve[-1][1]:.4g}")
            self.seconds += time.perf_counter() - began
            if self.folder and due(epoch, SAVE_EVERY, self.options.epochs):
                torch.save({"epoch": epoch, "model": self.model.state_dict()}, self.folder / f"epoch_{epoch}.pt")
                self.experiment.draw(self.model.eval(), self.folder, epoch)

    def epoch(self, epoch: int, most: int | None = None) -> None:
        """All batches once, or the first so many.

        Every rank knows the whole order and takes its part of each batch, so the number of ranks changes nothing.
        """
        experiment, batch, count = self.experiment, self.options.batch, len(self.experiment.x)
        steps = min(count // batch, most or count)  # the last batch, if it is not whole, is left out
        order = shard(count, 0, 1, [self.options.seed, epoch])[: steps * batch].reshape(steps, batch)
        generator = torch.Generator().manual_seed(self.options.seed * 10007 + epoch)
        noise = torch.randn(batch, steps, experiment.noise, generator=generator, dtype=torch.float64)
        place = self.comm.rank, self.comm.size
        mine = shard(order.T, *place, shuffle=False, remainder="uneven").T
        own_noise = shard(noise, *place, shuffle=False, remainder="uneven").transpose(0, 1).to(experiment.x)
        x, y = experiment.x[mine], experiment.y[mine]
        self.model.train()
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for step in range(steps):
            loss = experiment.loss(self.model, x[step], y[step], own_noise[step])
            self.optimizer.zero_grad()
            loss.backward()
            self.comm.average_gradients(self.model, len(mine[step]))
            self.optimizer.step()
            total += loss.detach()
        self.scheduler.step()
        self.updates += steps
        self.training_loss = self.comm.sum([float(total) * mine.shape[1]])[0] / (steps * batch)

    def validate(self) -> float:
        """The mean square error on the test samples, of which each rank takes its part."""
        mine = shard(len(self.experiment.test_x), self.comm.rank, self.comm.size, shuffle=False, remainder="uneven")
        self.model.eval()
        with torch.no_grad():
            off = self.experiment.output(self.model, self.experiment.test_x[mine]) - self.experiment.test_y[mine]
        return self.comm.sum([float((off.double() ** 2).sum())])[0] / self.experiment.test_y.numel()


def due(epoch: int, every: int, last: int) -> bool:
    """The first epoch, the last one, and every so many."""
    return epoch in (1, last) or epoch % every == 0


def run(experiment: Experiment, comm: Comm, options: argparse.Namespace) -> None:
    """The timed runs; rank 0 writes and prints."""
    root = comm.rank == 0
    folder = Path(options.output or f"{experiment.name}_outputs") / comm.name / f"ntrain{len(experiment.x)}_batch{options.batch}"
    if root:
        folder.mkdir(parents=True, exist_ok=True)
        parameters = sum(parameter.numel() for parameter in experiment.model().parameters())
        print(f"{experiment.name}: {comm.name}, {comm.size} processes, {parameters:,} parameters, batch {options.batch} in all", flush=True)
    Run(experiment, comm, options, None, "").epoch(1, most=5)  # torch has things to load, which no run shall have to wait for
    runs = []
    for number in range(1, options.runs + 1):
        last = number == options.runs
        made = Run(experiment, comm, options, folder if root and last and not options.no_pictures else None, f"run {number}/{options.runs}")
        made.train()
        runs.append(made)
    error = comm.comm_error(made.model)
    if any(other.curve != made.curve for other in runs):
        print(f"rank {comm.rank}: the runs' validation curves differ", file=sys.stderr)
    if root:
        report(experiment, comm, options, runs, error, folder)


def report(experiment: Experiment, comm: Comm, options: argparse.Namespace, runs: list[Run], error: float, folder: Path) -> None:
    """What came of it: on the screen, as JSON, the curve as numbers and as a picture."""
    seconds, end = [run.seconds for run in runs], runs[-1]
    spread = statistics.stdev(seconds) if len(seconds) > 1 else 0.0
    print(f"training loss {end.training_loss:.4e}, validation loss {end.curve[-1][1]:.4e} after {end.updates:.0f} updates")
    print(f"{statistics.mean(seconds):.3f} +- {spread:.3f} s, mean and standard deviation of {len(seconds)} runs; comm_error {error:g}")
    np.save(folder / "valid.npy", np.array(end.curve))
    found = {
        "experiment": experiment.name, "comm": comm.name, "processes": comm.size, "batch": options.batch, "seconds": seconds,
        "updates": end.updates, "training_loss": end.training_loss, "curve": end.curve, "comm_error": error,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(found) + "\n")
    if not options.no_pictures:
        draw_curve(end.curve, folder / "valid.png", experiment.name)
    print(f"saved in {folder}", flush=True)


def draw_curve(curve: list[tuple[int, float]], path: Path, title: str) -> None:
    """Validation loss over epochs."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(*zip(*curve, strict=True), marker=".")
    axes.set(xlabel="epoch", ylabel="mean square error", title=f"{title}: validation")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def parser(description: str, epochs: int, batch: int) -> argparse.ArgumentParser:
    """The options that all experiments have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--comm", choices=list(MODULES), default="serial", help="who carries the gradients (default: %(default)s)")
    made.add_argument("--epochs", type=positive, default=epochs, help="default: %(default)s")
    made.add_argument("--batch", type=positive, default=batch, help="samples of all processes together in an update (default: %(default)s)")
    made.add_argument("--runs", type=positive, default=3, help="timed runs (default: %(default)s)")
    made.add_argument("--seed", type=int, default=12345, help="default: %(default)s")
    made.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="default: %(default)s")
    made.add_argument("--threads", type=positive, default=1, help="cores of each process (default: %(default)s)")
    made.add_argument("--output", metavar="FOLDER", help="default: NAME_outputs here")
    made.add_argument("--no-pictures", action="store_true", help="no pictures and no saved models")
    return made


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def main(kind: Any, options: argparse.Namespace, usage: argparse.ArgumentParser) -> int:
    """Start; the exit status is 2 if the options do not fit, 1 if a rank fails, which brings the others down too."""
    torch.set_num_threads(options.threads)
    try:
        comm = open_comm(options.comm)
    except (ImportError, RuntimeError) as error:
        usage.error(str(error))
    fits = failed = False
    try:
        experiment: Experiment = kind(options, comm.device)
        fits = comm.size <= options.batch <= len(experiment.x)
        if fits:
            run(experiment, comm, options)
    except (Exception, KeyboardInterrupt):
        traceback.print_exc()
        failed = True
    # Out of the except clause, because a traceback keeps alive what the end must wait for: torch's threads, say.
    if failed:
        comm.abort()
        return 1
    comm.close()
    if not fits:
        usage.error(f"--batch {options.batch} must be from {comm.size}, the processes, to {len(experiment.x)}, the samples")
    return os.EX_OK
