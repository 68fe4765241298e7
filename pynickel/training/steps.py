"""How many steps the ranks do together, agreed before the first one, since a rank with one more would wait for ever."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnevenBatchesError
from ..exchange import gathered
from .settling import check_comm
from .shares import whole_number

if TYPE_CHECKING:
    from ..communicator import Communicator

POLICIES = ("min", "pad", "error")
MOST = 2**31 - 1


def agree_on_steps(comm: Communicator, n: int, policy: str = "min") -> int:
    """The number of steps that every rank does, where this rank has `n` batches; the same on all ranks.

    `policy`: "min", as many as all have; "pad", as many as any has, and whoever has fewer goes through theirs again
    (itertools.cycle does); "error", UnevenBatchesError on every rank if they differ, with all numbers in `batches`.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
    check_comm(comm, "agree_on_steps()")
    n = whole_number("n", n)
    if not 0 <= n <= MOST:
        raise ValueError(f"n must be at least 0 and at most {MOST}, not {n}")
    batches = gathered(comm, n)
    if policy == "error" and len(set(batches)) > 1:
        raise UnevenBatchesError(
            f"the ranks have different numbers of batches: {batches}, by rank; give all the same (shard(..., remainder='drop')), "
            "or choose policy 'min' or 'pad'",
            batches=batches,
        )
    if policy == "pad" and 0 in batches and any(batches):
        raise UnevenBatchesError(f"rank {batches.index(0)} has no batch to go through again: {batches}, by rank", batches=batches)
    return max(batches) if policy == "pad" else min(batches)
