"""Tests on torch, many in one process with ranks as threads, because importing torch takes longer than all of them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from pynickel import Communicator

from . import ranks

NRANKS = 4
MODULES = ("training_claims", "training_short_way", "data_parallel_claims", "data_parallel_graphs")


@cache
def run() -> dict[str, list[str]]:
    """For each function whose name begins with "claim_": what went wrong on the ranks on which something did."""
    found: dict[str, list[str]] = {}
    for told in ranks.run(NRANKS, all_claims, kind="threads", deadline=60, env={"NICKEL_TIMEOUT": "10"}):
        for name, trouble in told.items():
            found.setdefault(name, []).extend([trouble] if trouble else [])
    return found


def all_claims(comm: Communicator) -> dict[str, str]:
    """One rank's part: every claim with a communicator of its own, which is aborted if the claim fails."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for module in MODULES:
        claims = importlib.import_module(f"helpers.{module}")
        for name in [name for name in dir(claims) if name.startswith("claim_")]:
            part = comm.duplicate()
            try:
                with part:
                    getattr(claims, name)(part)
            except Exception:
                found[f"{module}.{name}"] = f"rank {comm.rank}:\n{traceback.format_exc()}"
            else:
                found[f"{module}.{name}"] = ""
    return found


def checker(module: str) -> Callable[[str], None]:
    """Raises, by name, what went wrong with a claim."""
    results = run()

    def check(name: str) -> None:
        troubles = results[f"{module}.claim_{name}"]
        assert not troubles, "\n".join(troubles)

    return check


def parts(comm: Communicator) -> Iterator[Communicator]:
    """Communicators of 1, 2, 3 and 4 ranks, on the ranks that are in them."""
    for nranks in range(1, comm.nranks + 1):
        part = comm.split(0 if comm.rank < nranks else None)
        if part is not None:
            with part:
                yield part


def refused(kind: type[BaseException], words: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Assert that a call raises this, with these words."""
    try:
        call(*arguments, **options)
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{call} did not raise {kind.__name__}")


def everywhere_equal(comm: Communicator, values: list[Any]) -> None:
    """Assert that all ranks have these tensors with the same bits."""
    import numpy

    mine = numpy.concatenate([value.detach().double().reshape(-1).numpy() for value in values])
    everyone = numpy.empty((comm.nranks, mine.size))
    comm.all_gather(mine, everyone)
    assert (everyone.view("u8") == mine.view("u8")).all()
