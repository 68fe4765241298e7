"""A hundred images of 640 x 480 numbers travel from a child into one array of its parent, without an array being made for each.

`python examples/parallel/big_transfer.py` prints:

    100 images of (480, 640) float32 (1.2 MB) received, 0.71 ms each, 1731 MB/s
    the last image holds 99 everywhere
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time

import numpy as np

from pynickel import parallel

IMAGES = 100


def take_pictures() -> None:
    """What a child does: at every meeting, send one image."""
    image = np.empty((480, 640), np.float32)
    for number in range(IMAGES):
        image.fill(number)
        parallel.yield_()
        parallel.send(image)


def main() -> None:
    child = parallel.run(take_pictures)
    image = np.empty((480, 640), np.float32)
    total = 0.0
    for _ in range(IMAGES):
        child.join()
        begun = time.perf_counter()
        child.receive(into=image)
        total += time.perf_counter() - begun
    child.sync()
    each = total / IMAGES
    size = image.nbytes / 1e6
    print(f"{IMAGES} images of {image.shape} {image.dtype} ({size:.1f} MB) received, {1e3 * each:.2f} ms each, {size / each:.0f} MB/s")
    if (image != IMAGES - 1).any():
        raise SystemExit("the last image is wrong")
    print(f"the last image holds {IMAGES - 1} everywhere")


if __name__ == "__main__":
    try:
        main()
    finally:
        parallel.close()
