"""Communicators made from communicators: split, duplicate, shrink, grow; and which rank is who in them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import make
from ._nccl import ffi, lib
from .arguments import LARGEST, as_flag, as_index, as_name
from .batch import refuse_in_group
from .calls import Calls
from .config import Config
from .deadline import checked_timeout
from .exchange import gathered
from .lifetime import FAILED, FINE, READY, REVOKED, Lifetime
from .unique_id import UniqueId

if TYPE_CHECKING:
    from typing import Literal

    from .library import Library

Self = TypeVar("Self", bound="Family")


class Family(Calls):
    """Parents and children."""

    __slots__ = ()

    def split(self: Self, color: int | None, key: int = 0, *, config: Config | None = None, name: str | None = None) -> Self | None:
        """The ranks that pass one color get a communicator, in order of key, then of their rank here; all ranks call it.

        `color`: at least 0, or None for no part, which returns None. The parent stays usable; each is closed by itself.
        `config`: None for the parent's. WaitTimeoutError: a rank did not call it. (ncclCommSplit)
        """
        refuse_in_group("split()")
        number = lib.NCCL_SPLIT_NOCOLOR if color is None else as_index(color, "color", 0, LARGEST, "at least 0, or None")
        order = as_index(key, "key", -LARGEST - 1, LARGEST, "an int of 32 bits")
        settings, out = self._settings(config, name, "ncclCommSplit"), ffi.new("ncclComm_t *")
        table = self.library.table
        self._derive("ncclCommSplit", (READY, REVOKED), lambda comm: lib.ncclCommSplit(table, comm, number, order, out, settings))
        if color is None:
            return None
        child = self._child(out, config, name)
        return child._descend(self, gathered(child, self._rank))

    @overload
    def duplicate(self: Self, n: Literal[1] = 1, *, config: Config | None = None) -> Self: ...
    @overload
    def duplicate(self: Self, n: int, *, config: Config | None = None) -> Self | list[Self]: ...
    def duplicate(self: Self, n: int = 1, *, config: Config | None = None) -> Self | list[Self]:
        """Every rank gets another communicator of the same ranks in the same order; a list of n where n is not 1. (ncclCommSplit)"""
        number = as_index(n, "n", 1, LARGEST, "at least 1")
        copies = []
        for _ in range(number):
            copies += [copy for copy in [self.split(0, self._rank, config=config, name=self._name)] if copy is not None]
        return copies[0] if number == 1 else copies

    def shrink(
        self: Self, exclude: Iterable[int], *, abort: bool | None = None, config: Config | None = None, name: str | None = None
    ) -> Self:
        """The ranks that are not in `exclude` get a communicator without those; only they call it, all with the same list.

        It also works on a failed or revoked communicator, and is how the living go on without the dead. `abort`: end what
        still runs in this communicator first; None does so if it has failed. It is still to be closed or aborted itself.
        (ncclCommShrink)
        """
        refuse_in_group("shrink()")
        if not isinstance(exclude, Iterable):
            raise TypeError(f"exclude must be a list of ranks, not {exclude!r}")
        leaving = sorted({self._one_of(rank, "exclude") for rank in exclude})
        if not leaving or self._rank in leaving:
            found = f"{leaving}, which has this rank, {self._rank}: only those that stay call it" if leaving else "empty"
            raise ValueError(f"exclude must be the ranks that are left out, but is {found}")
        ends = self._guard.state == FAILED if abort is None else as_flag(abort, "abort")
        flags = lib.NCCL_SHRINK_ABORT if ends else lib.NCCL_SHRINK_DEFAULT
        settings, out = self._settings(config, name, "ncclCommShrink"), ffi.new("ncclComm_t *")
        table, ranks = self.library.table, ffi.new("int[]", leaving)  # the library sorts the list in place; this one is ours
        states = (READY, FAILED, REVOKED)
        self._derive("ncclCommShrink", states, lambda comm: lib.ncclCommShrink(table, comm, ranks, len(leaving), out, settings, flags))
        child = self._child(out, config, name)
        return child._descend(self, [rank for rank in range(self._nranks) if rank not in leaving])

    def growth_id(self) -> UniqueId:
        """The id by which new ranks come in: made by one rank, given to its own grow() and to `grow_into` of every new rank.

        (ncclCommGetUniqueId)
        """
        refuse_in_group("growth_id()")
        made = ffi.new("ncclUniqueId *")
        self._finish(lib.comm_ncclCommGetUniqueId, made)
        return UniqueId(bytes(ffi.buffer(made)))

    def grow(
        self: Self,
        nranks: int,
        unique_id: UniqueId | bytes | None = None,
        *,
        config: Config | None = None,
        name: str | None = None,
    ) -> Self:
        """Every rank gets a communicator of nranks ranks, its own number unchanged; the rest are those that call `grow_into`.

        `unique_id`: on the one rank that has made it with growth_id(). This communicator is to be closed afterwards.
        (ncclCommGrow)
        """
        refuse_in_group("grow()")
        number = as_index(nranks, "nranks", self._nranks + 1, LARGEST, f"above the {self._nranks} ranks that there are")
        identity = ffi.NULL if unique_id is None else make.checked_id(unique_id, self.library)
        settings, out = self._settings(config, name, "ncclCommGrow"), ffi.new("ncclComm_t *")
        table = self.library.table
        self._derive("ncclCommGrow", (READY,), lambda comm: lib.ncclCommGrow(table, comm, number, identity, -1, out, settings))
        child = self._child(out, config, name)
        child._places |= {place: (*ranks, *[None] * (number - self._nranks)) for place, ranks in self._places.items()}
        return child

    @classmethod
    def grow_into(
        cls: type[Self],
        nranks: int,
        unique_id: UniqueId | bytes,
        rank: int,
        *,
        config: Config | None = None,
        library: str | os.PathLike[str] | Library | None = None,
        device: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Self:
        """A new rank of a communicator whose ranks call grow() with the same nranks; its number is one that they do not have.

        The other arguments are those of the class. (ncclCommGrow)
        """
        comm = cls.__new__(cls)
        comm._set_up(make.chosen(library), name, checked_timeout(timeout))
        make.join(comm, nranks, unique_id, rank, device, config, grow=True)
        return comm

    def translate(self, rank: int, to: Lifetime) -> int | None:
        """The number that this communicator's `rank` has in the communicator `to`; None if it is not there.

        Both must descend from one communicator by split, duplicate, shrink or grow (or be it); nothing is communicated.
        """
        own = self._one_of(rank, "rank")
        if not isinstance(to, Lifetime):
            raise TypeError(f"to must be a Communicator, not {to!r}")
        shared = [place for place in self._places if place in to._places]
        if not shared:
            raise ValueError(f"{self!r} and {to!r} descend from no common communicator, so their ranks cannot be compared")
        for place in shared:
            there = self._places[place][own]
            if there is not None and there in to._places[place]:
                return to._places[place].index(there)
        return None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _settings(self, config: Config | None, name: Any, function: str) -> Any:
        """The configuration of a child as a C struct, NULL for the parent's; its name is looked at, too, before anybody waits for us."""
        as_name(name)
        if not self.library.has(function):
            raise self.library.missing(function)
        if config is None:
            return ffi.NULL
        return make.checked_config(config).struct(self.library, function, self._blocking)

    def _derive(self, function: str, states: tuple[int, ...], call: Callable[[Any], int]) -> None:
        """Make a call that a communicator in any of these states may make, and wait for it: NCCL works on it in the parent."""
        self._wait_if_in_progress(function)
        if self._guard.state not in states:
            self._require_ready(function)
        code = self._inside(function, call)
        if code not in FINE:
            raise self._error(code, function)
        if not self._blocking and self._guard.state != FAILED:
            self._until_done(function, [call])

    def _child(self: Self, out: Any, config: Config | None, name: str | None) -> Self:
        """The object for a new handle."""
        child = type(self).__new__(type(self))
        child._set_up(self.library, name, self._timeout)
        asked = None if config is None else config.blocking
        child._blocking = self._blocking if asked is None else asked
        child._waits = self._waits if asked is None else asked
        child._guard.comm = out[0]
        if not child._blocking:
            child._guard.state = READY  # so that polls get through
            try:
                child._poll("the new communicator", None)
            except BaseException:
                child.abort()
                raise
        child._begin(out[0], self._device)
        return child

    def _descend(self: Self, parent: Lifetime, ranks: Iterable[int]) -> Self:
        """Remember who the ranks are in the parent and in its ancestors."""
        found = list(ranks)
        self._places = {place: tuple(there[rank] for rank in found) for place, there in parent._places.items()}
        return self
