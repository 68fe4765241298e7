"""A child as a work queue: it runs the functions that it is sent, each of which asks for its own data; here it writes images to files.

`python examples/parallel/process_queue.py` prints:

    5 images given away, the parent goes on
    the child wrote 5 files: image_0.pgm image_1.pgm image_2.pgm image_3.pgm image_4.pgm
    image_4.pgm: 640 x 480, 307215 bytes
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from pynickel import parallel

HEAD = b"P5\n640 480\n255\n"  # of a grey image in the PGM format, which needs no library


def queue() -> None:
    """What the child does: run functions until None comes."""
    while (function := parallel.receive()) is not None:
        function()


def write_image() -> None:
    """One piece of work: its data is the next thing that the parent sends."""
    path, image = parallel.receive()
    path.write_bytes(HEAD + image.tobytes())


def main(folder: Path) -> None:
    child = parallel.run(queue)
    for number in range(5):
        child.send(write_image)
        child.send((folder / f"image_{number}.pgm", np.full((480, 640), 50 * number, np.uint8)))
    print("5 images given away, the parent goes on")

    child.send(lambda: parallel.send(sorted(path.name for path in folder.iterdir())))  # any function will do
    names = child.receive()
    print(f"the child wrote {len(names)} files:", *names)
    width, height = (folder / names[-1]).read_bytes().split(b"\n")[1].decode().split()
    print(f"{names[-1]}: {width} x {height}, {(folder / names[-1]).stat().st_size} bytes")
    child.send(None)
    child.sync()


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
    finally:
        parallel.close()
