"""The CPU library by ctypes: its C symbols as a C program sees them, without the package's extension."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

ID_BYTES = 128
SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, TIMEOUT = 0, 2, 4, 5, 6, 8
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2")
SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
OPS = ("sum", "prod", "max", "min", "avg")
KINDS = (
    "none", "mismatch", "deadlock", "closed", "aborted", "forked", "busy", "remote", "timeout", "interrupted", "duplicate rank",
    "world size", "id reused", "id stale", "id invalid", "version", "memory", "overlap",
)  # fmt: skip
CHECK = ctypes.CFUNCTYPE(c_int)


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which travels by value."""

    _fields_ = [("internal", c_char * ID_BYTES)]


class HostError(Exception):
    """A call that did not return ncclSuccess: result code, kind (a word of KINDS), last error, the ranks and pids it is about."""

    def __init__(self, code: int, kind: str, text: str, ranks: tuple[int, ...], pids: tuple[int, ...]) -> None:
        super().__init__(code, kind, text, ranks, pids)
        self.code, self.kind, self.text, self.ranks, self.pids = code, kind, text, ranks, pids

    def __str__(self) -> str:
        return f"code {self.code}, kind {self.kind!r}, ranks {self.ranks}: {self.text}"


COMM, TAIL = c_void_p, [c_void_p, c_void_p]  # the tail of most calls: communicator and stream
TWO_BUFFERS = [c_void_p, c_void_p, c_size_t, c_int]
SIGNATURES = {
    "GetVersion": [POINTER(c_int)],
    "GetUniqueId": [POINTER(UniqueId)],
    "MemAlloc": [POINTER(c_void_p), c_size_t],
    "MemFree": [c_void_p],
    **dict.fromkeys(("GroupStart", "GroupEnd"), []),
    "CommInitRank": [POINTER(COMM), c_int, UniqueId, c_int],
    "CommInitAll": [POINTER(COMM), c_int, POINTER(c_int)],
    **dict.fromkeys(("CommFinalize", "CommDestroy", "CommAbort"), [COMM]),
    **dict.fromkeys(("CommGetAsyncError", "CommCount", "CommUserRank", "CommCuDevice"), [COMM, POINTER(c_int)]),
    **dict.fromkeys(("AllGather", "AlltoAll"), TWO_BUFFERS + TAIL),
    **dict.fromkeys(("AllReduce", "ReduceScatter", "Broadcast", "Gather", "Scatter"), [*TWO_BUFFERS, c_int, *TAIL]),
    "Reduce": [*TWO_BUFFERS, c_int, c_int, *TAIL],
    **dict.fromkeys(("Bcast", "Send", "Recv"), [c_void_p, c_size_t, c_int, c_int, *TAIL]),
}


def path() -> Path:
    """The library under test: the one beside the package, or the one that NICKEL_TEST_LIBRARY names."""
    spec = importlib.util.find_spec("pynickel")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package pynickel is not on the path")
    return Path(os.environ.get("NICKEL_TEST_LIBRARY") or Path(spec.origin).with_name("libnickel_host.so"))


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library, with the prototypes that this module uses."""
    lib = ctypes.CDLL(str(path()))
    for name, arguments in SIGNATURES.items():
        getattr(lib, f"nccl{name}").argtypes = arguments
    lib.ncclGetLastError.argtypes, lib.ncclGetLastError.restype = [COMM], c_char_p
    lib.ncclGetErrorString.restype = c_char_p
    lib.nickelErrorKind.argtypes = [COMM]
    lib.nickelErrorRanks.argtypes = [COMM, POINTER(c_int), POINTER(c_int), c_int]
    lib.nickelCommSetTimeout.argtypes = [COMM, c_double]
    lib.nickelSetInterruptCheck.argtypes, lib.nickelSetInterruptCheck.restype = [c_void_p], None
    return lib


def check(code: int, handle: int | None = None) -> None:
    """Raise what the calling thread's last error says, unless the code is ncclSuccess."""
    if code == SUCCESS:
        return
    lib = library()
    ranks, pids = (c_int * 64)(), (c_int * 64)()
    n = min(lib.nickelErrorRanks(handle, ranks, pids, 64), 64)
    text = lib.ncclGetLastError(handle).decode()
    raise HostError(code, KINDS[lib.nickelErrorKind(handle)], text, tuple(ranks[:n]), tuple(pids[:n]))


def raised(call: Callable[..., Any], *args: Any, **named: Any) -> HostError:
    """The error that a call gives; a call that succeeds is the test's failure."""
    try:
        call(*args, **named)
    except HostError as error:
        return error
    raise AssertionError(f"no error from {getattr(call, '__name__', call)}{args} {named}")


def unique_id() -> bytes:
    """A new id, as the 128 bytes that other ranks are given."""
    made = UniqueId()
    check(library().ncclGetUniqueId(byref(made)))
    return bytes(made)


def set_timeout(seconds: float) -> None:
    """The deadline of communicators that this thread makes from now on, their init included."""
    check(library().nickelCommSetTimeout(None, seconds))


def group_start() -> None:
    """ncclGroupStart."""
    check(library().ncclGroupStart())


def group_end() -> None:
    """ncclGroupEnd."""
    check(library().ncclGroupEnd())


@contextlib.contextmanager
def group() -> Iterator[None]:
    """The calls of the body in one group; it is ended in any case, and an error of the body is the one that is raised."""
    group_start()
    try:
        yield
    except BaseException:
        library().ncclGroupEnd()
        raise
    group_end()


def mem_alloc(nbytes: int) -> int:
    """The address of memory from ncclMemAlloc."""
    pointer = c_void_p()
    check(library().ncclMemAlloc(byref(pointer), nbytes))
    if not pointer.value:
        raise AssertionError("ncclMemAlloc succeeded and gave NULL")
    return pointer.value


def mem_free(address: int | None) -> None:
    """ncclMemFree."""
    check(library().ncclMemFree(address))


def empty(count: int, dtype: Any) -> np.ndarray:
    """A NumPy array in memory from ncclMemAlloc, which is freed with its last view."""
    nbytes = max(count * np.dtype(dtype).itemsize, 1)
    address = mem_alloc(nbytes)
    memory = (c_char * nbytes).from_address(address)
    weakref.finalize(memory, library().ncclMemFree, address)
    return np.frombuffer(memory, dtype=np.uint8)[: count * np.dtype(dtype).itemsize].view(dtype)


def address(buffer: Any) -> int | None:
    """The pointer that C gets: of an array, an address as it is, None for NULL."""
    return buffer.ctypes.data if isinstance(buffer, np.ndarray) else buffer


def type_of(buffers: Sequence[Any], type: str | int | None) -> int:
    """The number of a type, by name or as the arrays have it; bytes where there is no array."""
    if isinstance(type, int):
        return type
    arrays = [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]
    return TYPES.index(type or (arrays[0].dtype.name if arrays else "uint8"))


class Comm:
    """One rank's communicator. Counts and types are those of the arrays unless they are given."""

    def __init__(self, nranks: int, unique_id: bytes, rank: int) -> None:
        handle = COMM()
        code = library().ncclCommInitRank(byref(handle), nranks, UniqueId.from_buffer_copy(unique_id), rank)
        if code != SUCCESS and handle.value:
            raise AssertionError("a failed init left a handle")
        check(code)
        self.handle, self.nranks, self.rank = handle.value, nranks, rank

    @classmethod
    def of(cls, handle: int | None, nranks: int, rank: int) -> Comm:
        """A handle that was made by other means."""
        comm = cls.__new__(cls)
        comm.handle, comm.nranks, comm.rank = handle, nranks, rank
        return comm

    def call(self, name: str, *args: Any) -> None:
        """Any function whose last arguments are the communicator and the stream."""
        check(getattr(library(), f"nccl{name}")(*args, self.handle, None), self.handle)

    def all_reduce(self, send: Any, recv: Any, op: str | int = "sum", count: int | None = None, type: str | int | None = None) -> None:
        """ncclAllReduce."""
        self.call("AllReduce", address(send), address(recv), size_of(send, count), type_of([send, recv], type), op_of(op))

    def reduce(
        self, send: Any, recv: Any, op: str | int = "sum", root: int = 0, count: int | None = None, type: str | int | None = None
    ) -> None:
        """ncclReduce."""
        self.call("Reduce", address(send), address(recv), size_of(send, count), type_of([send, recv], type), op_of(op), root)

    def broadcast(self, send: Any, recv: Any, root: int = 0, count: int | None = None, type: str | int | None = None) -> None:
        """ncclBroadcast."""
        self.call("Broadcast", address(send), address(recv), size_of(recv, count), type_of([recv, send], type), root)

    def bcast(self, buffer: Any, root: int = 0, count: int | None = None, type: str | int | None = None) -> None:
        """ncclBcast."""
        self.call("Bcast", address(buffer), size_of(buffer, count), type_of([buffer], type), root)

    def all_gather(self, send: Any, recv: Any, count: int | None = None, type: str | int | None = None) -> None:
        """ncclAllGather; count is what one rank sends."""
        self.call("AllGather", address(send), address(recv), size_of(send, count), type_of([send, recv], type))

    def reduce_scatter(self, send: Any, recv: Any, op: str | int = "sum", count: int | None = None, type: str | int | None = None) -> None:
        """ncclReduceScatter; count is what one rank receives."""
        self.call("ReduceScatter", address(send), address(recv), size_of(recv, count), type_of([recv, send], type), op_of(op))

    def all_to_all(self, send: Any, recv: Any, count: int | None = None, type: str | int | None = None) -> None:
        """ncclAlltoAll; count is what goes to one peer."""
        each = size_of(send, count) if count is not None else size_of(send, None) // self.nranks
        self.call("AlltoAll", address(send), address(recv), each, type_of([send, recv], type))

    def gather(self, send: Any, recv: Any, root: int = 0, count: int | None = None, type: str | int | None = None) -> None:
        """ncclGather; count is what one rank sends."""
        self.call("Gather", address(send), address(recv), size_of(send, count), type_of([send, recv], type), root)

    def scatter(self, send: Any, recv: Any, root: int = 0, count: int | None = None, type: str | int | None = None) -> None:
        """ncclScatter; count is what one rank receives."""
        self.call("Scatter", address(send), address(recv), size_of(recv, count), type_of([recv, send], type), root)

    def send(self, buffer: Any, peer: int, count: int | None = None, type: str | int | None = None) -> None:
        """ncclSend."""
        self.call("Send", address(buffer), size_of(buffer, count), type_of([buffer], type), peer)

    def recv(self, buffer: Any, peer: int, count: int | None = None, type: str | int | None = None) -> None:
        """ncclRecv."""
        self.call("Recv", address(buffer), size_of(buffer, count), type_of([buffer], type), peer)

    def barrier(self) -> None:
        """Wait for all ranks, by an all-reduce of one number; its sum proves that the communicator works."""
        one = np.ones(1, np.int32)
        self.all_reduce(one, one)
        if one[0] != self.nranks:
            raise AssertionError(f"the sum of {self.nranks} ones is {one[0]} on rank {self.rank}")

    def query(self, name: str) -> int:
        """ncclCommCount, ncclCommUserRank, ncclCommCuDevice or ncclCommGetAsyncError."""
        value = c_int(-1)
        check(getattr(library(), f"nccl{name}")(self.handle, byref(value)), self.handle)
        return value.value

    def set_timeout(self, seconds: float) -> None:
        """nickelCommSetTimeout."""
        check(library().nickelCommSetTimeout(self.handle, seconds), self.handle)

    def finalize(self) -> None:
        """ncclCommFinalize."""
        check(library().ncclCommFinalize(self.handle), self.handle)

    def destroy(self) -> None:
        """ncclCommDestroy."""
        check(library().ncclCommDestroy(self.handle), self.handle)

    def abort(self) -> None:
        """ncclCommAbort."""
        check(library().ncclCommAbort(self.handle), self.handle)


def init_all(n: int, devices: Sequence[int] | None = None) -> list[Comm]:
    """ncclCommInitAll: all n ranks in this thread."""
    handles = (COMM * n)()
    code = library().ncclCommInitAll(handles, n, (c_int * n)(*devices) if devices is not None else None)
    if code != SUCCESS and any(handles):
        raise AssertionError("a failed ncclCommInitAll left handles")
    check(code)
    return [Comm.of(handle, n, rank) for rank, handle in enumerate(handles)]


def op_of(op: str | int) -> int:
    """The number of a reduction, by name or as it is."""
    return op if isinstance(op, int) else OPS.index(op)


def size_of(buffer: Any, count: int | None) -> int:
    """Elements: as given, or all that the array has."""
    return count if count is not None else buffer.size if isinstance(buffer, np.ndarray) else 0
