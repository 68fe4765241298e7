"""Test your own NCCL code on any machine: run a function on n ranks, each with a ready communicator, and never hang.

    from pynickel.testing import run

    def body(comm, scale):
        data = np.full(3, scale * comm.rank, np.float32)
        return comm.all_reduce(data).tolist()

    assert run(2, body, 10) == [[10.0] * 3] * 2

With pytest, the marker `nickel_ranks` and the fixtures `nickel_comm` and `nickel_run` are there as soon as pynickel is installed.
"""
# SPDX-License-Identifier: Apache-2.0

from .outcome import Outcome, RankError
from .ranks import outcomes, run

__all__ = ["Outcome", "RankError", "outcomes", "run"]

for public in (Outcome, RankError):
    public.__module__ = __name__  # where users import them from, and what their reports show
