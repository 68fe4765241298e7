"""Arrays behind each other in memory from ncclMemAlloc, so that few calls sum them all; the memory is kept from step to step."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..enums import DataType
from ..memory import mem_alloc
from .kinds import Kind, check_side, of, real_size, summed_in
from .settling import settle

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
        self.whole = kind.flat(self.memory, dtype, kind.place(likes[0]))
        self.values, self.notes = self.whole[:size], self.whole[size:]
        self.pieces = kind.pieces(self.values, likes)


class Buckets:
    """All buckets of a set of arrays. The first has a note for the weight, and one for each array: how many ranks have it."""

    def __init__(self, comm: Communicator, kind: Kind, likes: Sequence[Any]) -> None:
        for like in likes:
            check_side(comm, kind, like)
        self.kind, self.place = kind, kind.place(likes[0])
        self.on_gpu = kind.on_gpu(self.place)
        with kind.lasting():
            self.buckets = [
                Bucket(comm, kind, likes, which, dtype, 0 if number else 1 + len(likes))
                for number, (dtype, which) in enumerate(dealt(kind, likes))
            ]
            self.notes = self.buckets[0].notes
            self.own_notes = kind.dense_copy(self.notes)  # this rank's
            self.usual = kind.usual(self.buckets[0].values, self.buckets[0].pieces, self.notes, self.own_notes, likes)
        self._noted: tuple[float, Sequence[int]] | None = None  # what is written there
        placed = {i: piece for bucket in self.buckets for i, piece in zip(bucket.which, bucket.pieces, strict=True)}
        self.pieces = [placed[i] for i in range(len(likes))]

    def fill(self, arrays: Sequence[Any], weight: float = 1.0, factor: float = 1.0) -> None:
        """Copy the arrays in, times a factor; note the weight, and which of them are there: None counts as zeros."""
        self.note(weight, [i for i, array in enumerate(arrays) if array is None])
        arrays = self.kind.own_or_apart(arrays, self.pieces, [bucket.whole for bucket in self.buckets])
        pieces, here = [self.notes], [self.own_notes]
        for bucket in self.buckets:
            self.kind.pack(bucket.whole, bucket.pieces + pieces, [arrays[i] for i in bucket.which] + here)
            scale(bucket.values, factor)
            pieces, here = [], []

    def fill_usual(self, arrays: Sequence[Any], weight: float, factor: float) -> bool:
        """What `fill` does, in few calls, which a small net notices; False if these arrays are not what is usual."""
        if self.usual is None or not self.usual.fits(arrays):
            return False
        self.note(weight, [])
        self.usual.pack(arrays)
        if factor == weight != 0.0:
            self.usual.scale_by_weight()
        else:
            scale(self.buckets[0].values, factor)
        return True

    def note(self, weight: float, missing: Sequence[int]) -> None:
        """Write this rank's notes: its weight, and which arrays it does not have."""
        if self._noted != (weight, missing):  # seldom, and telling a GPU takes a while
            self._noted = None  # an interrupt may leave them half written
            self.kind.numbers([weight, *(float(i not in missing) for i in range(len(self.own_notes) - 1))], self.own_notes)
            self._noted = weight, missing

    def sum(self, comm: Communicator) -> None:
        """Every rank ends up with the sums over all ranks in its buckets."""
        stream = self.kind.stream(self.place) if self.on_gpu else None
        for bucket in self.buckets:
            address = self.kind.address(bucket.whole, bucket.memory)
            comm.all_reduce(address, address, count=bucket.count, dtype=bucket.type, stream=stream)
        settle(comm, stream)

    def nowhere(self, arrays: Sequence[Any]) -> set[int]:
        """Which arrays no rank has. Who has all of its own need not look, nor wait for a GPU."""
        missing = {i for i, array in enumerate(arrays) if array is None}
        if missing:
            counts = self.notes[1:].tolist()
            missing = {i for i in missing if counts[i] == 0}
        return missing


def scale(vector: Any, factor: float) -> None:
    """Multiply in place; times 0 is 0 even for NaN, which a mean over no samples is."""
    if factor == 0.0:
        vector[...] = 0
    elif factor != 1.0:
        vector *= factor


def dealt(kind: Kind, likes: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """The type of each bucket, and which arrays go there: same device, same type, not too many.

    float64 comes first, because weights are noted in the first bucket, and all are divided by their sum.
    """
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
    return sorted(found, key=lambda one: one[0] != "float64")


class OfModule(NamedTuple):
    """The buckets of a module, and for which parameters they are."""

    parameters: Sequence[Any]
    form: tuple[Any, ...]
    buckets: Buckets


# By communicator: by module, or for arrays by their shapes, types and devices. What dies takes its buckets along.
by_module: WeakKeyDictionary[Any, WeakKeyDictionary[Any, OfModule]] = WeakKeyDictionary()
by_form: WeakKeyDictionary[Any, dict[Any, Buckets]] = WeakKeyDictionary()


def known_buckets(comm: Communicator, module: Any, parameters: Sequence[Any]) -> Buckets | None:
    """The buckets of the module's last call, if these are the same parameters, whatever they hold by now."""
    known = mine.get(module) if (mine := by_module.get(comm)) else None
    if known is None or len(known.parameters) != len(parameters) or not all(map(is_, known.parameters, parameters)):
        return None
    return known.buckets


def buckets_of_module(comm: Communicator, kind: Kind, module: Any, parameters: Sequence[Any]) -> Buckets:
    """The buckets that are for the gradients of this module alone."""
    mine = by_module.setdefault(comm, WeakKeyDictionary())
    now = form_of(kind, parameters)
    if known_buckets(comm, module, parameters) is None or mine[module].form != now:
        of(parameters)  # refuses those that hold no values
        mine[module] = OfModule(parameters, now, Buckets(comm, kind, parameters))
    return mine[module].buckets


def form_of(kind: Kind, likes: Sequence[Any]) -> tuple[Any, ...]:
    """What buckets depend on."""
    return tuple((tuple(like.shape), kind.dtype(like), kind.place(like)) for like in likes)


def buckets_for(comm: Communicator, kind: Kind, likes: Sequence[Any]) -> Buckets:
    """The buckets of arrays like these."""
    form = kind.name, form_of(kind, likes)
    forms = by_form.setdefault(comm, {})
    found = forms.pop(form, None) or Buckets(comm, kind, likes)
    forms[form] = found  # the last one used is the last one
    while len(forms) > SETS:
        del forms[next(iter(forms))]
    return found
