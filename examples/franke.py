"""Regression of the Franke function by several processes: `pynickel run -n 2 python examples/franke.py --comm pynickel`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import experiment
import numpy as np
import torch
from torch import nn

TRAINING, TESTS = 10_000, 1_000
GRID = 200


def franke(x: Any, y: Any) -> Any:
    """Four exponentials: two peaks, a dip, a slope."""
    return (
        0.75 * np.exp(-((9 * x - 2) ** 2) / 4 - ((9 * y - 2) ** 2) / 4)
        + 0.75 * np.exp(-((9 * x + 1) ** 2) / 49 - (9 * y + 1) / 10)
        + 0.5 * np.exp(-((9 * x - 7) ** 2) / 4 - ((9 * y - 3) ** 2) / 4)
        - 0.2 * np.exp(-((9 * x - 4) ** 2) - (9 * y - 7) ** 2)
    )


class Franke(experiment.Experiment):
    """Points of the square from -1 to 1; a net of 2-100-100-1."""

    name, weight_decay = "franke", 1e-6

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        def points(count: int, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
            # Training and test points are from streams of their own: the same one would test what was learned by heart.
            at = np.random.default_rng([options.seed, stream]).uniform(-1, 1, (count, 2))
            values = franke(at[:, :1], at[:, 1:])
            x, y = (torch.from_numpy(values).to(device, getattr(torch, options.dtype)) for values in (at, values))
            return x, y

        self.x, self.y = points(TRAINING, 0)
        self.test_x, self.test_y = points(TESTS, 1)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1))

    def loss(self, model: Any, x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(x), y)

    def output(self, model: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x)
        return found

    def draw(self, model: Any, folder: Path, epoch: int) -> None:
        """Target, prediction and error as surfaces."""
        from matplotlib import pyplot as plt

        side = np.linspace(-1, 1, GRID)
        x, y = np.meshgrid(side, side)
        target = franke(x, y)
        points = torch.from_numpy(np.stack([x.ravel(), y.ravel()], axis=1)).to(self.x)
        with torch.no_grad():
            prediction = model(points).double().cpu().numpy().reshape(target.shape)
        np.save(folder / f"predictions_{epoch}.npy", prediction)
        off = abs(prediction - target)
        figure, panels = plt.subplots(1, 3, figsize=(15, 5), subplot_kw={"projection": "3d"}, layout="constrained")
        top = float(target.max())
        for panel, values, title in zip(panels, (target, prediction, off), ("target", "prediction", "absolute error"), strict=True):
            panel.plot_surface(x, y, values, cmap="viridis", vmin=0, vmax=top, rcount=60, ccount=60)
            panel.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(0, top), title=f"{title}, at most {values.max():.3g}")
        figure.suptitle(f"epoch {epoch}")
        figure.savefig(folder / f"surfaces_{epoch}.png", dpi=100)
        plt.close(figure)


if __name__ == "__main__":
    usage = experiment.parser(__doc__.split(":")[0] + ".", epochs=100, batch=256)
    sys.exit(experiment.main(Franke, usage.parse_args(), usage))
