"""Collectives whose ranks have parts of different sizes, as groups of NCCL's calls: a list of counts says how large each is."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from . import batch
from ._nccl import lib
from .batch import Operation
from .buffer import Element, checked_count, element_of, look
from .calls import Calls
from .config import CollConfig
from .enums import SUM, Pairs, width
from .errors import OverlapError
from .layout import View

NOTHING = View(0, 0, None)
Recv = TypeVar("Recv")  # whatever object the caller receives into


class VariableCounts(Calls):
    """The variable-count forms. Parts lie side by side in rank order; counts are the same on all ranks, and may be 0.

    `config` is for those that are groups of broadcasts or reductions; sends and receives take none.
    """

    __slots__ = ()

    def all_gather_v(
        self, send: Any, recv: Recv, counts: Sequence[int], *, dtype: Any = None, stream: Any = None, config: CollConfig | None = None
    ) -> Recv:
        """Every rank ends up with all ranks' send buffers in recv, in rank order; rank i sends counts[i] elements.

        In place: send is this rank's part of recv. It is a group of broadcasts. `send`: counts[rank], `recv`: sum(counts).
        """
        parts = self._parts(counts, "counts")
        s, r, t, keep = self._located(send, parts[self._rank][1], recv, total(parts), dtype, stream)
        parts = in_reals(parts, t)
        check_apart(s, parts[self._rank][1], r, total(parts), t, (s, r + parts[self._rank][0] * t.itemsize))
        operations = [
            self._one(lib.comm_ncclBroadcast, (s if root == self._rank else 0, r + at * t.itemsize, n, t, root), stream, keep, config)
            for root, (at, n) in enumerate(parts)
            if n
        ]
        batch.run(operations)
        return recv

    def reduce_scatter_v(
        self,
        send: Any,
        recv: Recv,
        counts: Sequence[int],
        op: Any = SUM,
        *,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Rank r ends up with its part, counts[r] elements, of the reduction of all send buffers.

        In place: recv is this rank's part of send. It is a group of reductions. `send`: sum(counts), `recv`: counts[rank].
        """
        parts = self._parts(counts, "counts")
        s, r, t, keep = self._located(send, total(parts), recv, parts[self._rank][1], dtype, stream)
        parts = in_reals(parts, t)
        check_apart(s, total(parts), r, parts[self._rank][1], t, (r, s + parts[self._rank][0] * t.itemsize))
        number = self._op(op, t)
        operations = [
            self._one(lib.comm_ncclReduce, (s + at * t.itemsize, r if root == self._rank else 0, n, t, number, root), stream, keep, config)
            for root, (at, n) in enumerate(parts)
            if n
        ]
        batch.run(operations)
        return recv

    def gather_v(
        self,
        send: Any,
        recv: Any,
        counts: Sequence[int],
        root: int = 0,
        *,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """The root ends up with all ranks' send buffers in recv, in rank order; rank i sends counts[i]. Elsewhere recv is not used.

        In place at the root: send is the root's part of recv. It is a group of sends and receives.
        """
        root, parts = self._one_of(root, "root"), self._parts(counts, "counts")
        at_root, mine = self._rank == root, parts[self._rank][1]
        s, r, t, keep = self._located(send, mine, recv if at_root else None, total(parts) if at_root else 0, dtype, stream)
        parts = in_reals(parts, t)
        own, mine = parts[self._rank]
        check_apart(s, mine, r, total(parts) if at_root else 0, t, (s, r + own * t.itemsize))
        operations = [self._one(lib.comm_ncclSend, (s, mine, t, root), stream, keep, config)] if mine else []
        for peer, (at, n) in enumerate(parts):
            if at_root and n:
                operations.append(self._one(lib.comm_ncclRecv, (r + at * t.itemsize, n, t, peer), stream, keep, config))
        batch.run(operations)
        return recv

    def scatter_v(
        self,
        send: Any,
        recv: Recv,
        counts: Sequence[int],
        root: int = 0,
        *,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Rank r ends up with its part, counts[r] elements, of the root's send buffer; elsewhere send is not used and may be None.

        In place at the root: recv is the root's part of send. It is a group of sends and receives.
        """
        root, parts = self._one_of(root, "root"), self._parts(counts, "counts")
        at_root, mine = self._rank == root, parts[self._rank][1]
        s, r, t, keep = self._located(send if at_root else None, total(parts) if at_root else 0, recv, mine, dtype, stream)
        parts = in_reals(parts, t)
        own, mine = parts[self._rank]
        check_apart(s, total(parts) if at_root else 0, r, mine, t, (r, s + own * t.itemsize))
        operations = [self._one(lib.comm_ncclRecv, (r, mine, t, root), stream, keep, config)] if mine else []
        for peer, (at, n) in enumerate(parts):
            if at_root and n:
                operations.append(self._one(lib.comm_ncclSend, (s + at * t.itemsize, n, t, peer), stream, keep, config))
        batch.run(operations)
        return recv

    def all_to_all_v(
        self,
        send: Any,
        recv: Recv,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Part i of recv, recv_counts[i] elements, is what rank i had as part r of its send buffer, r being this rank.

        send_counts[i] here is recv_counts[r] on rank i. There is no in-place form. It is a group of sends and receives.
        """
        parts, places = self._parts(send_counts, "send_counts"), self._parts(recv_counts, "recv_counts")
        if parts[self._rank][1] != places[self._rank][1]:
            raise ValueError(
                f"send_counts[{self._rank}] is {parts[self._rank][1]} and recv_counts[{self._rank}] is {places[self._rank][1]}, "
                "but both are what this rank sends to itself"
            )
        s, r, t, keep = self._located(send, total(parts), recv, total(places), dtype, stream)
        parts, places = in_reals(parts, t), in_reals(places, t)
        check_apart(s, total(parts), r, total(places), t, None)
        operations = []
        for peer, ((at, n), (to, m)) in enumerate(zip(parts, places, strict=True)):
            if n:
                operations.append(self._one(lib.comm_ncclSend, (s + at * t.itemsize, n, t, peer), stream, keep, config))
            if m:
                operations.append(self._one(lib.comm_ncclRecv, (r + to * t.itemsize, m, t, peer), stream, keep, config))
        batch.run(operations)
        return recv

    # -- inside ------------------------------------------------------------------------------------------------------

    def _parts(self, counts: Sequence[int], name: str) -> list[tuple[int, int]]:
        """Where each rank's part starts and how large it is, in elements."""
        if isinstance(counts, (str, bytes)) or not hasattr(counts, "__len__"):
            raise TypeError(f"{name} must be a list of {self._nranks} counts, one for each rank, not {counts!r}")
        if len(counts) != self._nranks:
            raise ValueError(f"{name} has {len(counts)} counts, but one for each of {self._nranks} ranks is needed")
        return list(placed(map(checked_count, counts)))

    def _located(self, send: Any, sent: int, recv: Any, received: int, dtype: Any, stream: Any) -> tuple[int, int, Element, Any]:
        """Both addresses, the type, and what keeps the memory alive; a buffer of no elements may be None."""
        views = []
        for name, buffer, elements in (("send", send, sent), ("recv", recv, received)):
            view = NOTHING if buffer is None and elements == 0 else look(buffer, name, name == "recv", self._memory, stream)
            views.append((name, view, elements))
        element = element_of(dtype, [(name, view) for name, view, _ in views])
        for name, view, elements in views:
            held = view.nbytes // width(element)
            if view.dtype is not None and (held != elements or view.nbytes % width(element)):
                raise ValueError(f"{name} has {held} elements of {element.name}, but the counts say {elements}")
            if elements and not view.address:
                raise ValueError(f"{name} is 0 (NULL), but the counts say {elements} elements")
        (_, s, _), (_, r, _) = views
        return s.address, r.address, element, (send, recv, s.keep, r.keep, stream)

    def _one(self, call: Any, args: tuple[Any, ...], stream: Any, keep: Any, config: CollConfig | None = None) -> Operation:
        """One call of the group."""
        args = (*args, self._stream(stream))
        if config is not None:
            call, args, keep = self._configured(call, args, keep, config)
        return Operation(self, call, args, keep)


def placed(counts: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Start and size of parts that lie side by side."""
    at = 0
    for count in counts:
        yield at, count
        at += count


def in_reals(parts: list[tuple[int, int]], element: Element) -> list[tuple[int, int]]:
    """The same parts as the library counts them: a complex number is two elements."""
    return [(2 * at, 2 * n) for at, n in parts] if type(element) is Pairs else parts


def total(parts: list[tuple[int, int]]) -> int:
    """The elements of all parts."""
    return sum(parts[-1])


def check_apart(s: int, sent: int, r: int, received: int, element: Element, in_place: tuple[int, int] | None) -> None:
    """Refuse an overlap that is not the in-place form: `in_place` is where this rank's part starts, and where it then would."""
    if not sent or not received or s + sent * element.itemsize <= r or r + received * element.itemsize <= s:
        return
    if in_place is not None and in_place[0] == in_place[1]:
        return
    form = "there is no in-place form" if in_place is None else f"in place, this rank's part would start at {in_place[1]:#x}"
    raise OverlapError(f"send ({s:#x}, {sent} elements) and recv ({r:#x}, {received} elements) overlap; {form}")
