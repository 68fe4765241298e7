"""Many children: a list of them, as nfork gives it, and the table of all of them by id."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

from pynickel.parallel import given
from pynickel.parallel.child import Child
from pynickel.parallel.commands import Commands


class Group(Commands):
    """Children that are asked together."""

    def receive(self, into: Any = None, wait: bool = True, *, timeout: float | None = None) -> dict[int, Any]:
        """Return the next object of each child, by child id; if one is missing, none is taken.

        `into`: one array (or list of arrays) per child, in their order or in a dict by id, that what the child sent is
        written into and that is returned. `wait=False`: only from the children that have sent something, perhaps none;
        ChildError once none of them can send any more.
        """
        ids = [child.id for child in self._members()]
        return self._receive(None if into is None else given.one_per_child(into, ids), wait, timeout)


class Children(list[Child], Group):
    """A list of children."""

    def _members(self) -> list[Child]:
        return list(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Child: ...
    @overload
    def __getitem__(self, index: slice) -> Children: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Child | Children:
        """Return a child, or for a slice the children in it with the same methods."""
        if isinstance(index, slice):
            return Children(super().__getitem__(index))
        return super().__getitem__(index)

    def __add__(self, more: list[Child]) -> Children:  # type: ignore[override]  # list itself would take others, and lose the methods
        """Return these children and more of them, with the same methods: those of two hosts, say."""
        return Children([*self, *more])


class Table(Mapping[int, Child], Group):
    """The children of this process by id, in the order in which they were forked."""

    def __init__(self, children: Sequence[Child] = ()) -> None:
        self._by_id = {child.id: child for child in children}

    def __getitem__(self, id: int) -> Child:
        """Return the child with this id."""
        try:
            return self._by_id[id]
        except KeyError:
            known = ", ".join(map(str, self._by_id)) or "none"
            raise KeyError(f"no child has the id {id!r}; ids: {known}") from None

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_id))

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, child: Child) -> None:
        """Take a new child in."""
        self._by_id[child.id] = child

    def remove(self, child: Child) -> None:
        """Take a child out. Harmless twice."""
        self._by_id.pop(child.id, None)

    def _members(self) -> list[Child]:
        return list(self._by_id.values())
