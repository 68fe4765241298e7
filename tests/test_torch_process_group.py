"""torch.distributed's operations by the backend pynickel, on 1 to 4 ranks, which run helpers/torch_process_group.py and torch_orders.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import torch_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
Claims = Callable[[str], None]
NRANKS = 4


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Claims:
    """Four processes have gone through all claims; raises what went wrong with one of them."""
    folder = tmp_path_factory.mktemp("torch")
    script, modules = Path(torch_ranks.__file__), ("helpers.torch_process_group", "helpers.torch_orders", "helpers.torch_come_claims")
    with torch_ranks.started(script, NRANKS, folder, *modules, env=torch_ranks.tests_path()) as ranks:
        ends = [rank.finish(100) for rank in ranks]
    assert [(end.returncode, end.left) for end in ends] == [(0, [])] * NRANKS, "\n".join(end.stderr for end in ends)
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert len(told) == NRANKS

    def claim(name: str) -> None:
        troubles = [trouble for found in told for trouble in found[name]]
        assert not troubles, "\n".join(troubles)

    return claim


def test_all_reduce(claims: Claims) -> None:
    """All reductions of all types are those of torch's own operators; averages, and sums with factors."""
    claims("all_reduce")


def test_refused_types(claims: Claims) -> None:
    """What NCCL cannot do exactly is a TypeError that says so, and no other rank is told."""
    claims("refused_types")


def test_layouts(claims: Claims) -> None:
    """Views with strides, channels-last, conjugates, parameters, scalars and empty tensors come out right, in their own memory."""
    claims("layouts")


def test_one_root(claims: Claims) -> None:
    """broadcast, reduce, gather and scatter from and to each rank."""
    claims("one_root")


def test_all_gather(claims: Claims) -> None:
    """Into lists, of equal and of different sizes, into one tensor, in place, and objects."""
    claims("all_gather")


def test_reduce_scatter(claims: Claims) -> None:
    """From lists, of equal and of different sizes, and from one tensor."""
    claims("reduce_scatter")


def test_all_to_all(claims: Claims) -> None:
    """Equal parts, parts of different sizes, none among them, and lists."""
    claims("all_to_all")


def test_messages(claims: Claims) -> None:
    """send, recv, isend, irecv, batches, tags; all ranks may send before they receive."""
    claims("messages")


def test_nobody_waits(claims: Claims) -> None:
    """Messages that are only asked about, or waited for after a collective, are begun all the same."""
    claims("nobody_waits")


def test_asynchronous(claims: Claims) -> None:
    """Works are done in order, can be waited for with a deadline and again, and have futures whose callbacks may call collectives."""
    claims("asynchronous")


def test_all_have_come(claims: Claims) -> None:
    """Where ranks have no core for a second thread, the one that finds all others there does an asynchronous collective itself."""
    claims("all_have_come")


def test_crossed(claims: Claims) -> None:
    """Ranks may begin the asynchronous operations of two groups in different orders, though each looks for the others in its first."""
    claims("crossed")


def test_late_rank(claims: Claims) -> None:
    """An asynchronous call returns soon though a rank is missing, which has failed or was interrupted before, or had no messages."""
    claims("late_rank")


def test_odd_orders(claims: Claims) -> None:
    """A group of a destroyed one's name; callbacks that wait; signal handlers; idle threads, none at all; ends; who is alive."""
    claims("odd_orders")


def test_coalescing(claims: Claims) -> None:
    """The coalescing manager, with and without a device, and the coalesced operations."""
    claims("coalescing")


def test_sparse(claims: Claims) -> None:
    """Sparse tensors with entries at different places are summed."""
    claims("sparse")


def test_functional(claims: Claims) -> None:
    """Functional collectives find the group by its name."""
    claims("functional")


def test_threads(claims: Claims) -> None:
    """Three threads, each with a group of its own, mix waiting and not waiting."""
    claims("threads")


def test_mismatch(claims: Claims) -> None:
    """Calls that differ are a DistBackendError on all ranks, now, at wait() and in the future; then the group works as before."""
    claims("mismatch")
