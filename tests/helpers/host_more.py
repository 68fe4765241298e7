"""Communicators of the CPU library with all that can be done to them: families, polling, windows, signals, operations."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_int, c_void_p
from typing import Any

import numpy as np

from helpers import host_c
from helpers.host_c import COMM, SUCCESS, HostError, UniqueId, address, check
from helpers.host_structs import Config, WaitDescription, library

IN_PROGRESS = 7
NO_COLOR = -1
ABORT = 1  # NCCL_SHRINK_ABORT
GARBAGE = 0xDEADBEEF  # where a function is to write a handle


def begun(code: int, handle: int | None = None) -> int:
    """The code of a call that was done or begun; anything else is raised."""
    if code != IN_PROGRESS:
        check(code, handle)
    return code


def polled(**fields: Any) -> Config:
    """The configuration of a non-blocking communicator."""
    return Config.new(blocking=0, **fields)


def group_end() -> int:
    """ncclGroupEnd, which may return ncclInProgress."""
    return begun(library().ncclGroupEnd())


class Comm(host_c.Comm):
    """A communicator with all that can be done to it. The library writes its handle when it is made, which may be later."""

    code = SUCCESS  # of the last call: a non-blocking communicator's is often ncclInProgress

    def __init__(self, nranks: int, unique_id: bytes, rank: int, config: Config | None = None) -> None:
        self.slot, self.nranks, self.rank = COMM(), nranks, rank
        code = library().ncclCommInitRankConfig(byref(self.slot), nranks, UniqueId.from_buffer_copy(unique_id), rank, pointer(config))
        self.code = begun(code)

    @property
    def handle(self) -> int | None:  # type: ignore[override]
        """The handle, once it has been written."""
        return self.slot.value

    @handle.setter
    def handle(self, value: int | None) -> None:
        self.slot = COMM(value)

    @classmethod
    def ready(cls, nranks: int, unique_id: bytes, rank: int) -> Comm:
        """A non-blocking communicator, polled until it is made."""
        comm = cls(nranks, unique_id, rank, polled())
        comm.wait()
        return comm

    @classmethod
    def born(cls, slot: ctypes._SimpleCData[Any], code: int, nranks: int, rank: int) -> Comm:
        """What a function has made, or is about to make, in `slot`, which was not NULL before."""
        if slot.value == GARBAGE:
            raise AssertionError("the place of the new handle was left alone")
        if code not in (SUCCESS, IN_PROGRESS) and slot.value:
            raise AssertionError("a failed call left a handle")
        made = cls.__new__(cls)
        made.code = begun(code)
        made.slot, made.nranks, made.rank = slot, nranks, rank
        return made

    def call(self, name: str, *args: Any) -> None:
        """Any function whose last arguments are the communicator and the stream."""
        self.code = begun(getattr(library(), f"nccl{name}")(*args, self.handle, None), self.handle)

    def on(self, name: str, *args: Any) -> int:
        """Any function whose first argument is the communicator."""
        self.code = begun(getattr(library(), f"nccl{name}")(self.handle, *args), self.handle)
        return self.code

    def learn(self) -> Comm:
        """Let a new communicator say how many ranks it has and which it is."""
        self.nranks, self.rank = self.query("CommCount"), self.query("CommUserRank")
        return self

    def split(self, color: int, key: int = 0, config: Config | None = None) -> Comm:
        """ncclCommSplit; its handle is None for no color."""
        slot = COMM(GARBAGE)
        code = library().ncclCommSplit(self.handle, color, key, byref(slot), pointer(config))
        return self.born(slot, code, -1, -1)

    def shrink(self, exclude: Any, flags: int = 0, config: Config | None = None) -> Comm:
        """ncclCommShrink by a list of ranks, or an array of c_int that the call sorts."""
        ranks = exclude if isinstance(exclude, ctypes.Array) else (c_int * len(exclude))(*exclude)
        slot = COMM(GARBAGE)
        code = library().ncclCommShrink(self.handle, ranks, len(ranks), byref(slot), pointer(config), flags)
        return self.born(slot, code, -1, -1)

    def grow(self, nranks: int, unique_id: bytes | None = None, rank: int = -1, config: Config | None = None) -> Comm:
        """ncclCommGrow by a member."""
        return grow(self.handle, nranks, unique_id, rank, config)

    def unique_id(self) -> bytes:
        """ncclCommGetUniqueId."""
        made = UniqueId()
        self.on("CommGetUniqueId", byref(made))
        return bytes(made)

    def finalize(self) -> None:
        """ncclCommFinalize."""
        self.on("CommFinalize")

    def revoke(self, flags: int = 0) -> None:
        """ncclCommRevoke."""
        self.on("CommRevoke", flags)

    def poll(self, seconds: float = 5.0) -> int:
        """ncclCommGetAsyncError until it is not ncclInProgress any more."""
        until = time.monotonic() + seconds
        while (state := self.query("CommGetAsyncError")) == IN_PROGRESS:
            if time.monotonic() > until:
                raise AssertionError(f"still in progress after {seconds:g} s")
            time.sleep(0.0005)
        return state

    def wait(self, seconds: float = 5.0) -> None:
        """Poll, and raise what came of it unless that is success."""
        check(self.poll(seconds), self.handle)

    def barrier(self) -> None:
        """As host_c's, on a communicator of any kind."""
        one = np.ones(1, np.int32)
        self.all_reduce(one, one)
        if self.code == IN_PROGRESS:
            self.wait()
        if one[0] != self.nranks:
            raise AssertionError(f"the sum of {self.nranks} ones is {one[0]} on rank {self.rank}")

    def pre_mul_sum(self, scalar: np.ndarray, immediate: bool = True, type: int | None = None) -> int:
        """ncclRedOpCreatePreMulSum with a scalar of one element."""
        op = c_int(-1)
        number = host_c.type_of([scalar], type)
        check(library().ncclRedOpCreatePreMulSum(byref(op), address(scalar), number, 1 if immediate else 0, self.handle), self.handle)
        return op.value

    def window(self, buffer: Any, size: int | None = None, flags: int = 0) -> int | None:
        """ncclCommWindowRegister."""
        slot = c_void_p(GARBAGE)
        nbytes = buffer.nbytes if size is None else size
        code = library().ncclCommWindowRegister(self.handle, address(buffer), nbytes, byref(slot), flags)
        check(code, self.handle)
        if slot.value == GARBAGE:
            raise AssertionError("the place of the window was left alone")
        return slot.value

    def put(self, local: Any, peer: int, window: int | None, offset: int = 0, signal: int = 0, count: int | None = None) -> None:
        """ncclPutSignal; offset is in bytes."""
        number, type = host_c.size_of(local, count), host_c.type_of([local], None)
        self.call("PutSignal", address(local), number, type, peer, window, offset, signal, 0, 0)

    def signal(self, peer: int, index: int = 0) -> None:
        """ncclSignal."""
        self.call("Signal", peer, index, 0, 0)

    def wait_signal(self, *descriptions: tuple[int, ...]) -> None:
        """ncclWaitSignal for (how many, from whom, index, context) each."""
        array = (WaitDescription * len(descriptions))(*(WaitDescription(*one) for one in descriptions))
        self.call("WaitSignal", len(descriptions), array)


def grow(handle: int | None, nranks: int, unique_id: bytes | None, rank: int, config: Config | None = None) -> Comm:
    """ncclCommGrow; a new rank has no handle."""
    slot, given = COMM(GARBAGE), None if unique_id is None else UniqueId.from_buffer_copy(unique_id)
    code = library().ncclCommGrow(handle, nranks, None if given is None else byref(given), rank, byref(slot), pointer(config))
    return Comm.born(slot, code, -1, -1)


def pointer(struct: Structure | None) -> Any:
    """The address of a struct, or NULL."""
    return None if struct is None else byref(struct)


def init_all(n: int) -> list[Comm]:
    """ncclCommInitAll: all n ranks in this thread."""
    return [Comm.of(comm.handle, n, comm.rank) for comm in host_c.init_all(n)]


def both_ways(function: Callable[[], Any]) -> HostError:
    """The error of a call outside of a group, which must be that of the same call inside one, and of the group's end."""
    alone = host_c.raised(function)
    host_c.group_start()
    inside, end = host_c.raised(function), host_c.raised(host_c.group_end)
    if not (alone.code == inside.code == end.code and alone.text == inside.text == end.text):
        raise AssertionError(f"not the same error: {alone}; in a group: {inside}; at its end: {end}")
    return alone


def ramp(count: int, dtype: Any, start: int = 0) -> np.ndarray:
    """count different numbers."""
    return (np.arange(count) % 97 + start).astype(dtype)


def filled(shape: Sequence[int] | int, value: float, dtype: Any = np.float32, arena: bool = False) -> np.ndarray:
    """An array of one value, in ncclMemAlloc memory or not."""
    made = host_c.empty(int(np.prod(shape)), dtype) if arena else np.empty(shape, dtype)
    made[...] = value
    return made
