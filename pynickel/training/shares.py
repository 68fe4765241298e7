"""Each rank's share of a data set: the same shuffle on every rank, then one stretch of it for each."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pynickel.arguments import as_int

REMAINDERS = ("drop", "pad", "uneven")


class Shard(Sequence[Any]):
    """The items of `data` at `indices`, in that order; nothing is copied, items are fetched when they are asked for."""

    def __init__(self, data: Any, indices: Any) -> None:
        self.data, self.indices = data, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Shard(self.data, self.indices[place])
        return self.data[int(self.indices[place])]

    def __iter__(self) -> Iterator[Any]:
        return (self.data[index] for index in self.indices.tolist())

    def __repr__(self) -> str:
        return f"<Shard of {len(self)} of {len(self.data)} items>"


def shard(data: Any, rank: int, nranks: int, seed: int | Sequence[int] = 0, shuffle: bool = True, remainder: str = "drop") -> Any:
    """This rank's share of `data`, its own stretch of an order that is the same on all ranks.

    `data`: an array or tensor (the share is a copy of its rows), any object with a length and items (a Shard, which is a
    sequence too), or a number n (the share is an array of indices below n). `seed` decides the order and must be the same on
    all ranks; a list such as [seed, epoch] makes a new one for each epoch. `remainder`, where the ranks do not divide the
    data: "drop" leaves the last items of the order out, "pad" begins again with the first ones, "uneven" gives the first
    ranks one more. With "drop" and "pad" all shares have the same length. No rank talks to another.
    """
    rank, nranks = checked_place(rank, nranks)
    if is_number := hasattr(data, "__index__") and not isinstance(data, bool) and not getattr(data, "shape", ()):
        data = whole_number("data", data)
    total = data if is_number else length(data)
    if total < 0:
        raise ValueError(f"data must be at least 0 as a number of items, not {total}")
    indices = own(order(total, seed, shuffle), rank, nranks, remainder)
    if is_number:
        return indices
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return data[indices]  # NumPy, CuPy and torch all take NumPy's indices
    return Shard(data, indices)


def order(total: int, seed: int | Sequence[int], shuffle: bool) -> Any:
    """All indices, in the order in which they are dealt out."""
    import numpy

    indices = numpy.arange(total)
    return numpy.random.default_rng(seed).permutation(indices) if shuffle else indices


def own(indices: Any, rank: int, nranks: int, remainder: str) -> Any:
    """The rank's stretch."""
    import numpy

    each, rest = divmod(len(indices), nranks)
    if remainder == "uneven":
        start, stop = stretch(len(indices), rank, nranks)
        return indices[start:stop]
    if remainder == "pad":
        each += rest > 0
        return numpy.resize(indices, each * nranks)[rank * each : (rank + 1) * each]  # resize repeats from the start
    if remainder == "drop":
        return indices[rank * each : (rank + 1) * each]
    raise ValueError(f"remainder must be one of {', '.join(REMAINDERS)}, not {remainder!r}")


def stretch(total: int, rank: int, nranks: int) -> tuple[int, int]:
    """From where to where the rank's share of `total` items goes, when the first ranks get one more."""
    each, rest = divmod(total, nranks)
    start = rank * each + min(rank, rest)
    return start, start + each + (rank < rest)


def checked_place(rank: Any, nranks: Any) -> tuple[int, int]:
    """Both as ints; refuse a rank that there is not."""
    rank, nranks = whole_number("rank", rank), whole_number("nranks", nranks)
    if nranks < 1:
        raise ValueError(f"nranks must be at least 1, not {nranks}")
    if not 0 <= rank < nranks:
        raise ValueError(f"rank must be 0 to {nranks - 1} with {nranks} ranks, not {rank}")
    return rank, nranks


def whole_number(name: str, value: Any) -> int:
    """An argument that is an int, of Python or of NumPy."""
    try:
        return as_int(value, name)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {value!r}") from None


def length(data: Any) -> int:
    """How many items there are."""
    try:
        return len(data)
    except TypeError:
        raise TypeError(f"data must be an int, an array, or have a length and items, not {type(data).__name__}") from None
