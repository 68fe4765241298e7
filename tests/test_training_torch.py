"""The training helpers with torch: tensors, modules, optimizers; the ranks' part is in helpers/training_claims.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
from helpers import torch_claims

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]
Claims = Callable[[str], None]


@pytest.fixture(scope="module")
def claims() -> Claims:
    """Four ranks have gone through helpers/training_claims.py; raises what went wrong with a claim."""
    return torch_claims.checker("training_claims")


def test_same_curve(claims: Claims) -> None:
    """Scenario 77: 1 to 4 ranks have one loss curve up to rounding, with Adam, in float64 and float32; equal bits after each step."""
    claims("same_curve")


def test_module_is_parameters(claims: Claims) -> None:
    """Scenario 76: uneven shares weighted by samples give one process's gradients, for a module, its parameters, and tensors."""
    claims("module_is_parameters")


def test_no_copy_next_time(claims: Claims) -> None:
    """Gradients of a module that are zeroed, not dropped, stay in the bucket."""
    claims("no_copy_next_time")


def test_missing_gradients(claims: Claims) -> None:
    """A gradient that no rank has stays None; one that some have is averaged with zeros."""
    claims("missing_gradients")


def test_narrow_and_complex(claims: Claims) -> None:
    """float16 and bfloat16 sums neither overflow nor round on the way; integers and sparse gradients are refused by name."""
    claims("narrow_and_complex")


def test_in_step(claims: Claims) -> None:
    """A broadcast brings parameters and buffers of every type in step."""
    claims("in_step")


def test_batch_statistics(claims: Claims) -> None:
    """Normalizing with the statistics of all ranks is batch normalization of the whole batch, with its gradients."""
    claims("batch_statistics")


def test_shards(claims: Claims) -> None:
    """Shares of tensors and data sets."""
    claims("shards")


def test_deep_copies_have_their_own(claims: Claims) -> None:
    """Each module has its own buckets."""
    claims("deep_copies_have_their_own")


@pytest.fixture(scope="module")
def short() -> Claims:
    """The same for helpers/training_short_way.py."""
    return torch_claims.checker("training_short_way")


def test_ranks_take_different_ways(short: Claims) -> None:
    """Gradients with gaps, with a graph, missing ones, on one rank: all ranks have the same right bits."""
    short("ranks_take_different_ways")


def test_gradients_change_places(short: Claims) -> None:
    """Gradients of the last call that are another parameter's by now, or turned, are averaged as what they are."""
    short("gradients_change_places")


def test_gradients_are_replaced(short: Claims) -> None:
    """Whatever is done to the gradients of the last call, the next averages are right: .data, shapes, memory formats, shared memory."""
    short("gradients_are_replaced")


def test_inference_mode_first(short: Claims) -> None:
    """A first call in inference mode leaves nothing behind that a later one may not change."""
    short("inference_mode_first")


def test_weights_of_many_digits(short: Claims) -> None:
    """Weighted float64 gradients are right to float64 rounding beside float32 ones, too."""
    short("weights_of_many_digits")


def test_weights_of_all_kinds(short: Claims) -> None:
    """Weights that change, are 0, are all 0, are none; a rank without samples may have NaN."""
    short("weights_of_all_kinds")


def test_module_changes(short: Claims) -> None:
    """Other types, shapes, parameters and layers between two calls are noticed."""
    short("module_changes")


def test_parameters_of_any_module(short: Claims) -> None:
    """The parameters are those that the module itself tells, in its order, each once."""
    short("parameters_of_any_module")


def test_refused_on_the_way(short: Claims) -> None:
    """Expanded and sparse gradients of a module are refused at any step, and the next step is right."""
    short("refused_on_the_way")


def test_graph_or_not(short: Claims) -> None:
    """Averages have no autograd history, whatever mode the call is made in."""
    short("graph_or_not")
