"""A variational auto-encoder of handwritten digits: `pynickel run -n 2 python examples/digits_vae.py --comm pynickel`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import experiment
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

TRAINING = 1_500  # of the 1,797 digits; the others are for validation
LATENT = 2
SHOWN, STEPS = 8, 10
SIZES = {False: (8, 128, 64), True: (28, 512, 256)}  # side of the images, and the hidden layers; True: as in the original


class Autoencoder(nn.Module):
    """Images to the mean and the logarithm of the variance of a normal distribution in the plane, and back."""

    def __init__(self, pixels: int, first: int, second: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(second, LATENT), nn.Linear(second, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, second), nn.ReLU(), nn.Linear(second, first), nn.ReLU(), nn.Linear(first, pixels), nn.Sigmoid()
        )

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and logarithm of the variance."""
        hidden = self.encoder(x)
        return self.mean(hidden), self.log_variance(hidden)


class DigitsVae(experiment.Experiment):
    """The images that scikit-learn brings along, 8 x 8 pixels, or enlarged to the 28 x 28 of the original."""

    name, weight_decay, noise = "digits_vae", 1e-5, LATENT

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.side, self.first, self.second = SIZES[options.original]
        self.name += "_original" if options.original else ""
        images = torch.from_numpy(load_digits().images / 16).to(device, getattr(torch, options.dtype))
        if self.side != 8:
            images = nn.functional.interpolate(images[:, None], (self.side, self.side), mode="bilinear")[:, 0].clamp(0, 1)
        # The digits come writer by writer; the shuffle is the same on all ranks and independent of --seed, as data are.
        order = np.random.default_rng(0).permutation(len(images))
        x = images.flatten(1)[order]
        self.x, self.test_x = x[:TRAINING], x[TRAINING:]
        self.y, self.test_y = self.x, self.test_x

    def model(self) -> nn.Module:
        return Autoencoder(self.side**2, self.first, self.second)

    def loss(self, model: Any, x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """What the images lack, and how far their codes are from a standard normal distribution, both summed, over the batch."""
        mean, log_variance = model.encode(x)
        found = model.decoder(mean + noise * torch.exp(0.5 * log_variance))
        missing = nn.functional.binary_cross_entropy(found, y, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp())
        return (missing + divergence) / len(x)

    def output(self, model: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model.decoder(model.encode(x)[0])
        return found

    def draw(self, model: Any, folder: Path, epoch: int) -> None:
        """Test images, what becomes of them, and the difference; and the way from one image to another."""
        with torch.no_grad():
            target = self.test_x[:SHOWN]
            found = self.output(model, target)
            ends = model.encode(torch.stack([self.test_x[0], self.test_x[-1]]))[0]
            weights = torch.linspace(0, 1, STEPS).to(ends)[:, None]  # both ends are reached
            way = model.decoder((1 - weights) * ends[0] + weights * ends[1])
        np.save(folder / f"predictions_{epoch}.npy", found.cpu().numpy())
        rows = {"target": target, "reconstruction": found, "absolute error": abs(found - target)}
        self._images(rows, folder / f"reconstructions_{epoch}.png", epoch)
        self._images({"interpolation": way}, folder / f"interpolation_{epoch}.png", epoch)

    def _images(self, rows: dict[str, torch.Tensor], path: Path, epoch: int) -> None:
        """Rows of images, one scale for all."""
        from matplotlib import pyplot as plt

        columns = max(map(len, rows.values()))
        size = 1.2 * columns, 1.35 * len(rows) + 0.4
        figure, panels = plt.subplots(len(rows), columns, figsize=size, squeeze=False, layout="constrained")
        for row, (title, images) in zip(panels, rows.items(), strict=True):
            for panel, image in zip(row, images.cpu().reshape(-1, self.side, self.side), strict=True):
                panel.imshow(image, cmap="gray", vmin=0, vmax=1)
                panel.set(xticks=[], yticks=[])
            row[0].set_title(title, loc="left", fontsize="small")
        figure.suptitle(f"epoch {epoch}", fontsize="small")
        figure.savefig(path, dpi=100)
        plt.close(figure)


if __name__ == "__main__":
    usage = experiment.parser(__doc__.split(":")[0] + ".", epochs=300, batch=64)
    usage.add_argument("--original", action="store_true", help="the net of the original, 784-512-256 on 28 x 28 pixels")
    sys.exit(experiment.main(DigitsVae, usage.parse_args(), usage))
