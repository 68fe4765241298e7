"""Every rank gives a one and gets the sum; the same file runs under mpirun, srun, torchrun, `pynickel run`, and alone."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import socket
from typing import Any

from pynickel import Communicator, rendezvous


def a_one(comm: Communicator) -> Any:
    """An array with one element where the communicator's library can reach it. The GPU's side is not yet run."""
    if comm.library.kind == "host":
        import numpy as arrays
    else:
        import cupy as arrays  # on the device that init() has chosen
    return arrays.ones(1, "float32")


def main() -> None:
    """Meet, add up, and say so in one line, so that lines of several ranks do not mix."""
    with rendezvous.init() as comm:
        value = comm.all_reduce(a_one(comm))
        print(f"rank {comm.rank} of {comm.nranks} on {socket.gethostname()}: sum {int(value[0])}\n", end="", flush=True)


if __name__ == "__main__":
    main()
