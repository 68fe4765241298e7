"""DataParallel; the ranks' part is in helpers/data_parallel_claims.py and data_parallel_graphs.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from helpers import torch_claims
from helpers.ranks import run

from pynickel import Communicator

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]
Claims = Callable[[str], None]


@pytest.fixture(scope="module")
def claims() -> Claims:
    """Four ranks have gone through helpers/data_parallel_claims.py; raises what went wrong with a claim."""
    return torch_claims.checker("data_parallel_claims")


def test_as_one_process(claims: Claims) -> None:
    """Batches of 1 to 15 on 1 to 4 ranks, empty shares too, give one process's output and gradients, equal bits on all ranks."""
    claims("as_one_process")


def test_same_curve(claims: Claims) -> None:
    """Scenario 77: 1 to 4 ranks have one loss curve, and equal bits after every step."""
    claims("same_curve")


def test_containers(claims: Claims) -> None:
    """Containers of tensors are split and joined; empty batches pass."""
    claims("containers")


def test_other_dimensions(claims: Claims) -> None:
    """The batch need not be the first dimension."""
    claims("other_dimensions")


def test_part_of_a_model(claims: Claims) -> None:
    """A wrapped part of a model leaves right gradients before, in and behind it."""
    claims("part_of_a_model")


def test_accumulation(claims: Claims) -> None:
    """Gradients of several backward passes add up."""
    claims("accumulation")


def test_frozen_and_unused(claims: Claims) -> None:
    """Frozen and unused parameters are left alone."""
    claims("frozen_and_unused")


def test_state(claims: Claims) -> None:
    """Saved from rank 0, loaded on any number of ranks, with and without the wrapper."""
    claims("state")


def test_copies(claims: Claims) -> None:
    """Deep copies, other types, apply; a 10-5 layer has 55 parameters."""
    claims("copies")


def test_weak_scaling(claims: Claims) -> None:
    """scaling='weak': a batch per rank."""
    claims("weak_scaling")


def test_disabled(claims: Claims) -> None:
    """enabled=False opts out."""
    claims("disabled")


def test_refusals(claims: Claims) -> None:
    """Wrong types and shapes are refused by name."""
    claims("refusals")


def compiled(comm: Communicator) -> None:
    """torch.compile around DataParallel, around a model with one in it, and inside of it."""
    import torch
    from helpers.data_parallel_claims import filled, gradients, net, numbers, same
    from torch import nn

    from pynickel.training import DataParallel

    def model() -> Any:
        return nn.Sequential(net(1), filled(nn.Linear(1, 2), 5))

    def compiled_by(thing: Any) -> Any:
        return torch.compile(thing, backend="eager")

    alone, part = model(), model()
    part[0] = DataParallel(part[0], comm, gather_output=True)
    for split in (
        compiled_by(DataParallel(model(), comm, gather_output=True)), compiled_by(part),
        DataParallel(compiled_by(model()), comm, gather_output=True),
    ):  # fmt: skip
        for step in range(2):
            for each in (alone, split):
                each.zero_grad()
                each(numbers(step, 7, 10)).pow(2).sum().backward()
            same(gradients(split), gradients(alone))


@pytest.mark.slow
def test_compiled() -> None:
    """torch.compile may be around DataParallel or inside: the compiler leaves alone what crosses ranks, and gradients are one process's."""
    run(2, compiled, deadline=60)


@pytest.fixture(scope="module")
def graphs() -> Claims:
    """The same for helpers/data_parallel_graphs.py."""
    return torch_claims.checker("data_parallel_graphs")


def test_second_derivatives(graphs: Claims) -> None:
    """Gradients of gradients are those of one process, with the whole batch's loss on every rank and with each share's own."""
    graphs("second_derivatives")
    graphs("second_derivatives_of_shares")


def test_kept_graphs(graphs: Claims) -> None:
    """retain_graph, checkpoints and shared parameters."""
    graphs("kept_graphs")


def test_ranks_differ(graphs: Claims) -> None:
    """Ranks that use a part of the parameters, or none, go back together with the others."""
    graphs("ranks_differ")


def test_in_place(graphs: Claims) -> None:
    """Layers that work in place may be first in the wrapped part, and next behind it."""
    graphs("in_place")


def test_mixed_types(graphs: Claims) -> None:
    """float64, float32, bfloat16 and float16 parameters in one module."""
    graphs("mixed_types")


def test_other_containers(graphs: Claims) -> None:
    """Subclasses of dict, and data classes."""
    graphs("other_containers")


def test_apply_draws(graphs: Claims) -> None:
    """apply with random numbers does not leave the ranks apart."""
    graphs("apply_draws")


def test_no_gradients(graphs: Claims) -> None:
    """no_grad, inference mode, eval, frozen modules."""
    graphs("no_gradients")


def test_troubles(graphs: Claims) -> None:
    """Exceptions in the middle of backward, sparse gradients, a closed communicator."""
    graphs("troubles")
