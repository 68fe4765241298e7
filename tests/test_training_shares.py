"""Shares of data, for NumPy arrays, sequences and numbers; torch's are in helpers/training_claims.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pynickel import training


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 7, 15])
def test_shards_are_the_whole(nranks: int) -> None:
    """The shares of 13 items are parts of one order: "uneven" has each item once, "drop" leaves the last, "pad" repeats the first."""
    order = np.random.default_rng(5).permutation(13)
    shares = {how: [training.shard(13, rank, nranks, 5, remainder=how) for rank in range(nranks)] for how in ("drop", "pad", "uneven")}
    assert np.concatenate(shares["uneven"]).tolist() == order.tolist()
    assert [len(share) for share in shares["uneven"]] == [13 // nranks + (rank < 13 % nranks) for rank in range(nranks)]
    assert np.concatenate(shares["drop"]).tolist() == order[: 13 // nranks * nranks].tolist()
    each = -(-13 // nranks)
    assert {len(share) for share in shares["pad"]} == {each}
    assert np.concatenate(shares["pad"]).tolist() == np.concatenate([order, order])[: each * nranks].tolist()


def test_shard_of_arrays_and_sequences() -> None:
    """Arrays give arrays, anything with a length and items gives a lazy sequence of the same items, another epoch another order."""
    rows = np.arange(20).reshape(10, 2)
    mine = training.shard(10, 1, 3, [4, 0], remainder="uneven")
    np.testing.assert_array_equal(training.shard(rows, 1, 3, [4, 0], remainder="uneven"), rows[mine])
    items = training.shard([str(i) for i in range(10)], 1, 3, [4, 0], remainder="uneven")
    assert list(items) == [str(i) for i in mine] and items[-1] == str(mine[-1]) and list(items[1:]) == list(items)[1:]
    assert len(items) == len(mine) and items.indices.tolist() == mine.tolist()
    assert training.shard(10, 1, 3, [4, 1], remainder="uneven").tolist() != mine.tolist()
    assert training.shard(10, 1, 3, shuffle=False).tolist() == [3, 4, 5]
    assert training.shard([], 0, 2, remainder="pad").indices.size == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((10, 3, 3), "rank must be 0 to 2 with 3 ranks, not 3"),
        ((10, 0, 0), "nranks must be at least 1, not 0"),
        ((-1, 0, 1), "at least 0 as a number of items, not -1"),
        ((10, 0, 2, 0, True, "loose"), "remainder must be one of drop, pad, uneven, not 'loose'"),
    ],
)
def test_shard_refuses(arguments: tuple[Any, ...], words: str) -> None:
    """A share that cannot be is refused by name."""
    with pytest.raises(ValueError, match=words):
        training.shard(*arguments)


def test_shard_refuses_types() -> None:
    """What has no length and no shape, and ranks that are no ints, are TypeErrors; NumPy's integers are ints."""
    assert training.shard(np.int64(10), np.int32(1), np.uint8(2)).tolist() == training.shard(10, 1, 2).tolist()
    assert training.shard(np.array([5.0]), 0, 1).tolist() == [5.0] and training.shard(np.array(3), 0, 1).size == 3
    for arguments in ((None, 0, 1), (10, True, 2), (10, 0, 2.0)):
        with pytest.raises(TypeError, match="must"):
            training.shard(*arguments)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_fewer_items_than_ranks(size: int) -> None:
    """Of 0, 1 or 2 items for 3 ranks "drop" leaves all out, "pad" gives each rank one if there is any, "uneven" the first ranks."""
    for data in (size, np.arange(size), list(range(size))):
        lengths = {how: [len(training.shard(data, rank, 3, remainder=how)) for rank in range(3)] for how in ("drop", "pad", "uneven")}
        assert lengths == {"drop": [0] * 3, "pad": [int(size > 0)] * 3, "uneven": [int(rank < size) for rank in range(3)]}
