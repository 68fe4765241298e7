"""The odd-or-even example's workers among themselves: after every step they agree, and their number changes nothing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ranks import run

import pynickel

ODD_EVEN = Path(__file__).resolve().parent.parent / "examples" / "odd_even"
sys.path.insert(0, str(ODD_EVEN))  # the example's modules find each other as they do when it is run
arrays, model, network, settings = map(import_module, ["arrays", "model", "network", "settings"])

Worker = tuple[list[bytes], list[float]]


def work(comm: pynickel.Communicator, updates: int, given: dict[str, Any]) -> Worker:
    """One worker: its parameters' bytes and its loss after each update."""
    chosen = settings.fresh({"seed": 5, "workers": comm.nranks, **given}, "float64")
    net = network.Network(arrays.HostArrays(comm.library, chosen.dtype), chosen)
    net.take_part(chosen.shares, comm.rank)
    net.arrays.write(net.parameters, model.initial_parameters(5))
    net.comm = comm
    steps, losses = [], []
    for _ in range(updates):
        losses.append(net.update(lambda message: None).loss)
        steps.append(net.parameters.tobytes())
    return steps, losses


def differing(workers: list[Worker]) -> list[int]:
    """After which updates, counted from 1, the workers' parameters are not the same to the last bit."""
    return [number for number, bits in enumerate(zip(*(steps for steps, _ in workers), strict=True), 1) if len(set(bits)) > 1]


@pytest.mark.parametrize("share", ["gradients", "parameters"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_bits_after_every_step(share: str, dtype: str) -> None:
    """Three workers with 3, 2 and 2 samples have the same parameters to the last bit after each of 200 updates."""
    workers = run(3, work, 200, {"share": share, "batch": 7, "dtype": dtype})
    assert differing(workers) == []
    assert len(set(workers[0][0])) == 200


def test_averaging_now_and_then() -> None:
    """With --every 4 the workers differ between two averagings, and are the same to the last bit after each."""
    workers = run(3, work, 40, {"share": "parameters", "every": 4, "optimizer": "adam"})
    assert differing(workers) == [number for number in range(1, 41) if number % 4]


def test_number_of_workers_changes_nothing() -> None:
    """1 to 4 workers with 10 samples together have the same losses and parameters up to rounding, in both modes."""
    (alone,) = run(1, work, 100, {"batch": 10})
    curve, end = np.array(alone[1]), np.frombuffer(alone[0][-1])
    for nranks in (2, 3, 4):
        for share in ("gradients", "parameters"):
            workers = run(nranks, work, 100, {"batch": 10, "share": share})
            np.testing.assert_allclose(sum(np.array(losses) for _, losses in workers), curve, rtol=1e-9, atol=1e-13)
            np.testing.assert_allclose(np.frombuffer(workers[0][0][-1]), end, rtol=0, atol=1e-13)
