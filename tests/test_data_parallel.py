"""DataParallel; the ranks' part is in helpers/data_parallel_claims.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
from helpers import torch_claims

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
Claims = Callable[[str], None]


@pytest.fixture(scope="module")
def claims() -> Claims:
    """Four ranks have gone through helpers/data_parallel_claims.py; raises what went wrong with a claim."""
    return torch_claims.checker("helpers.data_parallel_claims")


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
