"""Communicator: every operation is buffers, stream, one call, and a look at its result."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from . import _nccl, batch, direct, make, p2p
from ._nccl import ffi
from .arguments import as_flag
from .batch import Operation
from .buffer import alike, check_apart, pair, single
from .config import CollConfig, Config
from .deadline import checked_timeout
from .enums import RedOp, uint8
from .errors import NotAvailableError
from .facts import Facts
from .family import Family
from .layout import HOST
from .library import Library
from .lifetime import IN_PROGRESS
from .one_sided import OneSided
from .unique_id import UniqueId
from .variable import VariableCounts

c = _nccl.lib
SUM = RedOp.SUM
Recv = TypeVar("Recv")  # whatever object the caller receives into


class Communicator(VariableCounts, OneSided, Family, Facts):
    """One rank of a group of ranks that communicate; all of them call the same operations in the same order.

    Buffers (`send`, `recv`, `buffer`) are int addresses, which need `count` and `dtype`, or arrays: NumPy, DLPack, array
    interfaces, the buffer protocol. They must be contiguous and are never copied; results are in the receive buffer, which
    is also returned. Work on a CUDA device is ordered by the stream, and buffers must stay until it is done; the CPU
    library is done when the call (or the outermost group) returns.

    `count`: elements of one rank's part, when not all of an array is meant. `dtype`: a DataType, its name, or a dtype of
    NumPy, for addresses and for raw bytes. `root`, `peer`: 0 to nranks - 1. `op`: a RedOp or its name. `stream`: None for
    the default stream, a handle, or a stream of CUDA Python, torch or CuPy.

    `config`: a CollConfig, with NCCL 2.31 and later. As a context manager: a clean exit closes, an exception aborts. One
    thread at a time may use a communicator.

    Shapes are told in elements; n is the same number on every rank. What is wrong with an argument is a TypeError or
    ValueError (NonContiguousError, OverlapError), raised before the library is entered; no rank notices it. Then come
    CommunicatorClosedError, BusyError and ForkedError, and what the library says: with the CPU library
    CollectiveMismatchError where the ranks' calls differ, RemoteError where a peer is gone, WaitTimeoutError at the deadline.
    In parentheses: the function of NCCL behind a method.
    """

    __slots__ = ()

    def __init__(
        self,
        nranks: int,
        unique_id: UniqueId | bytes | Sequence[UniqueId | bytes],
        rank: int,
        *,
        config: Config | None = None,
        library: str | os.PathLike[str] | Library | None = None,
        device: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> None:
        """Returns when all nranks have called it with the same id, each with its own rank. (ncclCommInitRank, ...Config, ...Scalable)

        `timeout`: seconds that this, and later every wait of the communicator, may last; with NVIDIA's library it makes the
        communicator non-blocking. `device`: the GPU to use, by default the current one; a label on the CPU library.
        `unique_id`: one id, or a list of several, the same on all ranks, which shares the load of a very large start.

        With `config=Config(blocking=False)` it returns at once, `state` is "in progress", and so does every later call; the
        next call waits within `timeout` and then raises BusyError; `poll` and `wait` look and wait, `abort` ends it.
        Buffers are kept alive until it is seen that the call is done.

        RendezvousError: two ranks of one number, different nranks, an id that is used twice, stale, or of another library;
        WaitTimeoutError: `missing` ranks did not come in time.
        """
        self._set_up(make.chosen(library), name, checked_timeout(timeout))
        make.join(self, nranks, unique_id, rank, device, config)

    @classmethod
    def init_all(cls, devices: int | Sequence[int], library: str | os.PathLike[str] | Library | None = None) -> list[Communicator]:
        """All ranks of a new communicator in this process, in rank order, one for each device or for devices 0 to n - 1.

        One thread makes their calls inside `group()`; or each has its own thread. (ncclCommInitAll)
        """
        found = make.chosen(library)
        comms = []
        for handle in make.all_at_once(found, devices):
            comm = cls.__new__(cls)
            comm._set_up(found, None, None)
            comm._begin(handle)
            comms.append(comm)
        return comms

    @classmethod
    def from_handle(cls, pointer: Any, library: str | os.PathLike[str] | Library | None = None, owned: bool = False) -> Communicator:
        """A communicator that other code has made with the same library; close() and abort() end it only if `owned`.

        `pointer`: its ncclComm_t, as an int or of `ffi`.
        """
        found = make.chosen(library)
        handle = make.as_handle(pointer)
        comm = cls.__new__(cls)
        comm._set_up(found, None, None, as_flag(owned, "owned"))
        comm._begin(handle)
        return comm

    def __enter__(self) -> Communicator:
        if self._guard.state != IN_PROGRESS:
            self._require_ready("with")
        return self

    # -- collectives -------------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        send: Recv,
        recv: Recv | None = None,
        op: Any = SUM,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Every rank ends up with the element-wise reduction of all ranks' send buffers. In place without recv.

        `send` and `recv`: n each. (ncclAllReduce)
        """
        if direct.all_reduce(self, self._entry, send, recv, count, dtype, stream, config, op):
            return send if recv is None else recv
        if recv is None:
            s, n, t, keep = single(self._memory, send, count, dtype, True, "send", stream)
            r, into = s, send
        else:
            s, r, n, t, keep = alike(self._memory, send, recv, count, dtype, stream)
            into = recv
        self._run(c.comm_ncclAllReduce, (send, recv, keep, stream), s, r, n, t, self._op(op, t), self._stream(stream), config=config)
        return into

    def broadcast(
        self,
        send: Recv | None,
        recv: Recv | None = None,
        root: int = 0,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Every rank ends up with the root's send buffer. In place without recv; elsewhere than at the root send may be None.

        `send` and `recv`: n each. (ncclBroadcast)
        """
        into: Any = send if recv is None else recv
        if direct.broadcast(self, self._entry, send, recv, count, dtype, stream, config, root):
            return into  # type: ignore[no-any-return]  # one of the two
        root = self._one_of(root, "root")
        at_root = self._rank == root
        if recv is None:
            s, n, t, keep = single(self._memory, send, count, dtype, not at_root, "send", stream)
            r = s
        elif send is None and not at_root:
            r, n, t, keep = single(self._memory, recv, count, dtype, True, "recv", stream)
            s = 0
        else:
            s, r, n, t, keep = alike(self._memory, send, recv, count, dtype, stream)
        self._run(c.comm_ncclBroadcast, (send, into, keep, stream), s, r, n, t, root, self._stream(stream), config=config)
        return into  # type: ignore[no-any-return]  # one of the two, and single() has refused None

    def bcast(
        self, buffer: Recv, root: int = 0, *, count: Any = None, dtype: Any = None, stream: Any = None, config: CollConfig | None = None
    ) -> Recv:
        """Every rank ends up with the root's buffer; `broadcast` in place under MPI's name. (ncclBcast, by ncclBroadcast)"""
        return self.broadcast(buffer, None, root, count=count, dtype=dtype, stream=stream, config=config)

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: Any = SUM,
        root: int = 0,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """The root ends up with the reduction of all ranks' send buffers: in recv, or in place without it.

        Elsewhere recv is not used, and send stays as it is. `send` and `recv`: n each. (ncclReduce)
        """
        if direct.reduce(self, self._entry, send, recv, count, dtype, stream, config, op, root):
            return send if recv is None and root == self._rank else recv
        root = self._one_of(root, "root")
        at_root = self._rank == root
        if recv is None or not at_root:
            s, n, t, keep = single(self._memory, send, count, dtype, at_root, "send", stream)
            r = s if at_root else 0
            recv = send if at_root else recv
        else:
            s, r, n, t, keep = alike(self._memory, send, recv, count, dtype, stream)
        self._run(c.comm_ncclReduce, (send, recv, keep, stream), s, r, n, t, self._op(op, t), root, self._stream(stream), config=config)
        return recv

    def all_gather(
        self, send: Any, recv: Recv, *, count: Any = None, dtype: Any = None, stream: Any = None, config: CollConfig | None = None
    ) -> Recv:
        """Every rank ends up with all ranks' send buffers in recv, in rank order. In place: send is this rank's slice of recv.

        `send`: n, `recv`: nranks * n. (ncclAllGather)
        """
        if direct.all_gather(self, self._entry, send, recv, count, dtype, stream, config):
            return recv
        s, r, n, t, keep = pair(self._memory, send, recv, count, dtype, 1, self._nranks, -self._rank, stream)
        self._run(c.comm_ncclAllGather, (send, recv, keep, stream), s, r, n, t, self._stream(stream), config=config)
        return recv

    def reduce_scatter(
        self,
        send: Any,
        recv: Recv,
        op: Any = SUM,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Rank r ends up with slice r of the reduction of all send buffers. In place: recv is this rank's slice of send.

        `send`: nranks * n, `recv`: n. (ncclReduceScatter)
        """
        if direct.reduce_scatter(self, self._entry, send, recv, count, dtype, stream, config, op):
            return recv
        s, r, n, t, keep = pair(self._memory, send, recv, count, dtype, self._nranks, 1, self._rank, stream)
        self._run(c.comm_ncclReduceScatter, (send, recv, keep, stream), s, r, n, t, self._op(op, t), self._stream(stream), config=config)
        return recv

    def all_to_all(
        self, send: Any, recv: Recv, *, count: Any = None, dtype: Any = None, stream: Any = None, config: CollConfig | None = None
    ) -> Recv:
        """Slice i of recv is what rank i had in slice r of its send buffer, r being this rank. There is no in-place form.

        `send` and `recv`: nranks * n each. (ncclAlltoAll; before NCCL 2.28.3 sends and receives)
        """
        if direct.all_to_all(self, self._entry, send, recv, count, dtype, stream, config):
            return recv
        s, r, n, t, keep = pair(self._memory, send, recv, count, dtype, self._nranks, self._nranks, None, stream)
        if config is not None or self.library.has("ncclAlltoAll"):
            self._run(c.comm_ncclAlltoAll, (send, recv, keep, stream), s, r, n, t, self._stream(stream), config=config)
        else:
            batch.run(p2p.all_to_all(self, s, r, n, t, self._stream(stream), (send, recv, keep, stream)))
        return recv

    def gather(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """The root ends up with all ranks' send buffers in recv, in rank order; elsewhere recv is not used.

        In place at the root: send is slice `root` of recv. `send`: n, `recv`: nranks * n. (ncclGather; before NCCL 2.28.3
        sends and receives)
        """
        if direct.gather(self, self._entry, send, recv, count, dtype, stream, config, root):
            return recv
        root = self._one_of(root, "root")
        if self._rank == root:
            s, r, n, t, keep = pair(self._memory, send, recv, count, dtype, 1, self._nranks, -root, stream)
        else:
            s, n, t, keep = single(self._memory, send, count, dtype, False, "send", stream)
            r = 0
        if config is not None or self.library.has("ncclGather"):
            self._run(c.comm_ncclGather, (send, recv, keep, stream), s, r, n, t, root, self._stream(stream), config=config)
        else:
            batch.run(p2p.gather(self, s, r, n, t, root, self._stream(stream), (send, recv, keep, stream)))
        return recv

    def scatter(
        self,
        send: Any,
        recv: Recv,
        root: int = 0,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Rank r ends up with slice r of the root's send buffer; elsewhere send is not used and may be None.

        In place at the root: recv is slice `root` of send. `send`: nranks * n, `recv`: n. (ncclScatter; before NCCL 2.28.3
        sends and receives)
        """
        if direct.scatter(self, self._entry, send, recv, count, dtype, stream, config, root):
            return recv
        root = self._one_of(root, "root")
        if self._rank == root:
            s, r, n, t, keep = pair(self._memory, send, recv, count, dtype, self._nranks, 1, root, stream)
        else:
            r, n, t, keep = single(self._memory, recv, count, dtype, True, "recv", stream)
            s = 0
        if config is not None or self.library.has("ncclScatter"):
            self._run(c.comm_ncclScatter, (send, recv, keep, stream), s, r, n, t, root, self._stream(stream), config=config)
        else:
            batch.run(p2p.scatter(self, s, r, n, t, root, self._stream(stream), (send, recv, keep, stream)))
        return recv

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(
        self, buffer: Any, peer: int, *, count: Any = None, dtype: Any = None, stream: Any = None, config: CollConfig | None = None
    ) -> None:
        """The peer's matching `recv` ends up with this buffer, of n elements. (ncclSend)

        Alone it waits for the peer; use group() for several at once. Sends to one peer arrive in their order. With the CPU
        library a ring of ranks that wait for each other is a DeadlockError.
        """
        if direct.send(self, self._entry, buffer, None, count, dtype, stream, config, peer):
            return
        s, n, t, keep = single(self._memory, buffer, count, dtype, False, "buffer", stream)
        self._run(c.comm_ncclSend, (buffer, keep, stream), s, n, t, self._one_of(peer, "peer"), self._stream(stream), config=config)

    def recv(
        self, buffer: Recv, peer: int, *, count: Any = None, dtype: Any = None, stream: Any = None, config: CollConfig | None = None
    ) -> Recv:
        """This buffer ends up with what the peer's matching `send` sends: as many elements, of the same type. (ncclRecv)"""
        if direct.recv(self, self._entry, None, buffer, count, dtype, stream, config, peer):
            return buffer
        r, n, t, keep = single(self._memory, buffer, count, dtype, True, "buffer", stream)
        self._run(c.comm_ncclRecv, (buffer, keep, stream), r, n, t, self._one_of(peer, "peer"), self._stream(stream), config=config)
        return buffer

    def send_recv(
        self,
        send: Any,
        to: int,
        recv: Recv,
        source: int,
        *,
        count: Any = None,
        dtype: Any = None,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Recv:
        """Rank `to` gets send and this rank gets recv from rank `source`, at the same time. Sizes and types may differ.

        A group of one ncclSend and one ncclRecv.
        """
        s, n, t, kept = single(self._memory, send, count, dtype, False, "send", stream)
        r, m, u, keep = single(self._memory, recv, count, dtype, True, "recv", stream)
        check_apart(s, r, 1, n * t.itemsize, m * u.itemsize, None)
        handle = self._stream(stream)
        operations = [
            Operation(self, c.comm_ncclSend, (s, n, t, self._one_of(to, "to"), handle), (send, kept, stream)),
            Operation(self, c.comm_ncclRecv, (r, m, u, self._one_of(source, "source"), handle), (recv, keep, stream)),
        ]
        if config is not None:
            raise NotAvailableError("NCCL has no form of ncclSend and ncclRecv that takes a CollConfig; leave config= out")
        batch.run(operations)
        return recv

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when all ranks have called it; an all-reduce of one byte.

        `timeout`: seconds to wait for them, else the communicator's; then WaitTimeoutError, and the communicator has failed.
        NotAvailableError on a blocking communicator of NVIDIA's library, whose calls cannot be given up.
        """
        batch.refuse_in_group("barrier()")
        seconds = checked_timeout(timeout)
        self._require_deadlines("barrier()", seconds)
        self._require_ready("barrier()")
        address = self._barrier_byte()
        with self._deadline(seconds):
            self._run(c.comm_ncclAllReduce, None, address, address, 1, uint8, SUM, 0)
        if self._memory != HOST or not self._blocking:
            self.wait(timeout=seconds)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _barrier_byte(self) -> int:
        """A byte of memory that the library can reduce; its value means nothing."""
        if self._scratch is None and self._memory == HOST:
            self._scratch = ffi.new("char[]", 1)
        elif self._scratch is None:
            from .memory import mem_alloc

            self._scratch = mem_alloc(1, library=self.library)
        return int(ffi.cast("uintptr_t", self._scratch)) if self._memory == HOST else self._scratch.address
