"""Arrays behind each other in memory from ncclMemAlloc, so that few calls sum them all; the memory is kept from step to step."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..enums import DataType
from ..memory import mem_alloc
from .kinds import Kind, check_side, real_size, summed_in

if TYPE_CHECKING:
    from ..communicator import Communicator

BUCKET_BYTES = 32 << 20  # at most, unless one array alone is larger
SETS = 16  # so many sets of arrays have buckets in a communicator at the same time


class Bucket:
    """A vector, where in it which arrays are, and behind them `notes` numbers that are summed along with them."""

    def __init__(self, comm: Communicator, kind: Kind, likes: Sequence[Any], which: list[int], dtype: str, notes: int) -> None:
        self.which = which
        likes = [likes[i] for i in which]
        size = sum(real_size(kind, like) for like in likes)
        self.type, self.count = DataType[dtype], size + notes
        self.memory = mem_alloc(self.count * self.type.itemsize, library=comm.library)
        flat = kind.flat(self.memory, dtype, kind.place(likes[0]))
        self.flat, self.notes = flat[:size], flat[size:]
        self.pieces = kind.pieces(self.flat, likes)


class Buckets:
    """All buckets of a set of arrays. The first has a note for the weight, and one for each array: how many ranks have it."""

    def __init__(self, comm: Communicator, kind: Kind, likes: Sequence[Any]) -> None:
        for like in likes:
            check_side(comm, kind, like)
        self.kind, self.place = kind, kind.place(likes[0])
        self.buckets = [
            Bucket(comm, kind, likes, which, dtype, 0 if number else 1 + len(likes))
            for number, (dtype, which) in enumerate(dealt(kind, likes))
        ]
        self.notes = self.buckets[0].notes

    def fill(self, arrays: Sequence[Any], weight: float = 1.0, factor: float = 1.0) -> None:
        """Copy the arrays in, times a factor; note the weight, and which of them are there: None counts as zeros."""
        for bucket in self.buckets:
            self.kind.pack(bucket.flat, bucket.pieces, [arrays[i] for i in bucket.which])
            if factor != 1.0:
                bucket.flat *= factor
        self.kind.numbers([weight, *(float(array is not None) for array in arrays)], self.notes)

    def sum(self, comm: Communicator) -> None:
        """Every rank ends up with the sums over all ranks in its buckets."""
        stream = self.kind.stream(self.place)
        for bucket in self.buckets:
            address = bucket.memory.address
            comm.all_reduce(address, address, count=bucket.count, dtype=bucket.type, stream=stream)

    def nowhere(self, arrays: Sequence[Any]) -> set[int]:
        """Which arrays no rank has. Who has all of its own need not look, nor wait for a GPU."""
        missing = {i for i, array in enumerate(arrays) if array is None}
        if missing:
            counts = self.notes[1:].tolist()
            missing = {i for i in missing if counts[i] == 0}
        return missing


def dealt(kind: Kind, likes: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """The type of each bucket, and which arrays go there: same device, same type, not too many."""
    filling: dict[Any, tuple[list[int], int]] = {}
    found: list[tuple[str, list[int]]] = []
    for i, like in enumerate(likes):
        name = kind.dtype(like)
        dtype = summed_in(name)
        alike = dtype, name.startswith("complex"), kind.place(like)  # a complex number must begin at an even place
        nbytes = real_size(kind, like) * DataType[dtype].itemsize
        which, filled = filling.get(alike, ([], 0))
        if not which or filled + nbytes > BUCKET_BYTES:
            which, filled = [], 0
            found.append((dtype, which))
        which.append(i)
        filling[alike] = which, filled + nbytes
    return found


# By communicator: by module, or for arrays by their shapes, types and devices. What dies takes its buckets along.
by_module: WeakKeyDictionary[Any, WeakKeyDictionary[Any, tuple[Any, Buckets]]] = WeakKeyDictionary()
by_form: WeakKeyDictionary[Any, dict[Any, Buckets]] = WeakKeyDictionary()


def buckets_for(comm: Communicator, kind: Kind, likes: Sequence[Any], owner: Any = None) -> Buckets:
    """The buckets of these arrays; `owner` is the module that has them, if one has, and then they are for it alone."""
    form = tuple((tuple(like.shape), kind.dtype(like), kind.place(like)) for like in likes)
    if owner is not None:
        mine = by_module.setdefault(comm, WeakKeyDictionary())
        if owner not in mine or mine[owner][0] != form:
            mine[owner] = form, Buckets(comm, kind, likes)
        return mine[owner][1]
    forms = by_form.setdefault(comm, {})
    found = forms.pop((kind.name, form), None) or Buckets(comm, kind, likes)
    forms[kind.name, form] = found  # the last one used is the last one
    while len(forms) > SETS:
        del forms[next(iter(forms))]
    return found
