"""One-sided calls, and what they and the collectives can be given in advance: windows, registrations, operators."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._nccl import ffi, lib
from .arguments import LARGEST, as_index
from .batch import refuse_in_group
from .buffer import single
from .calls import Calls
from .redop import PreMulSum
from .registration import Registration, Window, window_flags


class OneSided(Calls):
    """Puts and signals, windows, registrations, operators."""

    __slots__ = ()

    def register(self, buffer: Any, *, count: Any = None, dtype: Any = None) -> Registration:
        """This rank's calls on the buffer need fewer copies until the registration is closed; only this rank calls it.

        (ncclCommRegister, and ncclCommDeregister when it is closed)
        """
        refuse_in_group("register()")
        return Registration(self, buffer, count, dtype)

    def window(
        self,
        buffer: Any,
        *,
        symmetric: bool = True,
        strict_ordering: bool = False,
        gin_only: bool = False,
        cft_counted: bool = False,
        count: Any = None,
        dtype: Any = None,
    ) -> Window:
        """Every rank's buffer can be written to by every rank with put_signal; all ranks call it.

        The buffer is from `empty` or `mem_alloc` and starts at a multiple of 4096 bytes. The other arguments are NCCL's flags
        NCCL_WIN_COLL_SYMMETRIC, _STRICT_ORDERING, _GIN_ONLY and _CFT_COUNTED. (ncclCommWindowRegister)
        """
        refuse_in_group("window()")
        chosen = {"symmetric": symmetric, "strict_ordering": strict_ordering, "gin_only": gin_only, "cft_counted": cft_counted}
        return Window(self, buffer, window_flags(self, chosen), count, dtype)

    def pre_mul_sum(self, scalar: Any, dtype: Any) -> PreMulSum:
        """An operator for op=: the ranks' inputs are summed, each multiplied by the scalar of its own rank.

        `scalar`: a number, or one element of `dtype` in a buffer; one in GPU memory is read whenever the operator is used.
        (ncclRedOpCreatePreMulSum)
        """
        refuse_in_group("pre_mul_sum()")
        return PreMulSum(self, scalar, dtype)

    def put_signal(
        self,
        buffer: Any,
        peer: int,
        window: Window,
        offset: int = 0,
        *,
        index: int = 0,
        context: int = 0,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
    ) -> None:
        """The peer's part of the window holds the buffer from `offset` bytes on, and then a signal with that index is there.

        `buffer`: n elements, which must fit behind `offset`; ValueError for a window of another communicator, or one that the
        library has not made. (ncclPutSignal)
        """
        if not isinstance(window, Window):
            raise TypeError(f"window must be one of Communicator.window(), not {window!r}")
        window._require_open("the window of put_signal()")
        if window.comm is not self:
            raise ValueError(f"window was made by another communicator, {window.comm!r}; make one by window() of this one")
        if not window:
            raise ValueError(f"{window!r}: put_signal() needs one; its memory must be from empty() or mem_alloc() on every rank")
        s, n, t, keep = single(self._memory, buffer, count, dtype, False, "buffer", stream)
        place = as_index(offset, "offset", 0, (1 << 63) - 1, "a number of bytes, at least 0")
        to, index, context = self._one_of(peer, "peer"), signal_number(index, "index"), signal_number(context, "context")
        args = (s, n, t, to, window.handle, place, index, context, 0, self._stream(stream))
        self._run(lib.comm_ncclPutSignal, (buffer, keep, window, stream), *args)

    def signal(self, peer: int, *, index: int = 0, context: int = 0, stream: Any = None) -> None:
        """The peer has one more signal of that index from this rank. (ncclSignal)"""
        to, index, context = self._one_of(peer, "peer"), signal_number(index, "index"), signal_number(context, "context")
        self._run(lib.comm_ncclSignal, None, to, index, context, 0, self._stream(stream))

    def wait_signal(self, peer: int | Sequence[int], count: int = 1, *, index: int = 0, context: int = 0, stream: Any = None) -> None:
        """Returns (with a GPU: the stream goes on) when `count` more signals of that index have come from each peer.

        What was put before a signal is there then. `peer`: one rank or a list of ranks. (ncclWaitSignal)
        """
        peers = [self._one_of(one, "peer") for one in (peer if isinstance(peer, Sequence) else [peer])]
        if not peers:
            raise ValueError("peer is an empty list; at least one rank is needed")
        number = as_index(count, "count", 1, LARGEST, "a number of signals, at least 1")
        index, context = signal_number(index, "index"), signal_number(context, "context")
        descriptions = ffi.new("ncclWaitSignalDesc_t[]", [(number, one, index, context) for one in peers])
        self._run(lib.comm_ncclWaitSignal, descriptions, len(peers), descriptions, self._stream(stream))


def signal_number(value: Any, name: str) -> int:
    """The index of a signal or context."""
    return as_index(value, name, 0, LARGEST, "at least 0 (how many there are, Config says by numRmaSig and numRmaCtx)")
