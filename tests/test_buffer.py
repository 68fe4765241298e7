"""Buffers from anywhere: what is taken as it is, and what is refused before the library is entered."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import array
import gc
import mmap
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import arrays
from helpers.arrays import ArrayInterface, CudaArrayInterface, DLPack
from helpers.recorder import Recorder

import pynickel
from pynickel import NonContiguousError
from pynickel.buffer import alike, pair, single
from pynickel.layout import HOST


def located(buffer: Any, count: Any = None, dtype: Any = None, writable: bool = True) -> tuple[int, int, str]:
    """Address, count and type name of one buffer."""
    address, number, element, _ = single(HOST, buffer, count, dtype, writable, "buffer")
    return address, number, element.name


@pytest.mark.parametrize("kind", arrays.kinds(np.zeros(1, "f4")))
def test_protocols(kind: str) -> None:
    """Each protocol gives address, count and type of the same memory, the first time and later."""
    data = np.arange(6, dtype="f4").reshape(2, 3)
    obj = arrays.kinds(data)[kind]
    for _ in range(2):
        assert located(obj) == (data.ctypes.data, 6, "float32")


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_types_by_every_protocol(dtype: str) -> None:
    """Every type that NumPy has in common with NCCL is recognised through every protocol."""
    data = np.zeros(3, dtype)
    for obj in arrays.kinds(data).values():
        if obj is not None:
            assert located(obj) == (data.ctypes.data, 3, data.dtype.name)


def test_python_s_own_buffers() -> None:
    """bytearray, array.array, mmap and ctypes arrays are buffers."""
    assert located(bytearray(5))[1:] == (5, "uint8")
    assert located(array.array("d", [1, 2]))[1:] == (2, "float64")
    assert located(mmap.mmap(-1, 4096))[1:] == (4096, "uint8")
    assert located(b"abc", writable=False)[1:] == (3, "uint8")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_ml_dtypes(dtype: Any) -> None:
    """The narrow floats of ml_dtypes are NCCL's."""
    names = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8e4m3", "float8_e5m2": "float8e5m2"}
    assert located(np.zeros(4, dtype))[1:] == (4, names[np.dtype(dtype).name])


@pytest.mark.parametrize(("code", "bits", "name"), [(4, 16, "bfloat16"), (10, 8, "float8e4m3"), (12, 8, "float8e5m2")])
def test_narrow_floats_by_dlpack(code: int, bits: int, name: str) -> None:
    """DLPack's own codes for the narrow floats are known."""
    assert located(DLPack(np.zeros(4, f"u{bits // 8}"), code=code))[1:] == (4, name)


@pytest.mark.parametrize("raw", [np.zeros(8, "u2"), np.zeros(16, "u1"), bytearray(16), ArrayInterface(np.zeros(8, "V2"))])
def test_narrow_floats_by_name(raw: Any) -> None:
    """Scenario 19: raw bytes and unsigned integers of the same size take a type by name."""
    assert located(raw, dtype="bfloat16")[1:] == (8, "bfloat16")


@pytest.mark.parametrize(
    "buffer",
    [np.zeros(4, bool), np.zeros(4, "i2"), np.zeros(4, "u2"), np.array([None]), np.zeros(4, ">f4"),
     np.zeros(4, [("a", "f4")]), np.zeros(2, "M8[s]"), np.zeros(4, "S4"), array.array("h", [1]), memoryview(bytearray(2)).cast("?"),
     ArrayInterface(np.zeros(4, ">f4")), ArrayInterface(np.zeros(4, "i2")), DLPack(np.zeros(4, bool)),
     DLPack(np.zeros(4, "f4"), lanes=2), np.longdouble([1])],
    ids=lambda value: str(value) if isinstance(value, (list, str)) else type(value).__name__,
)  # fmt: skip
def test_unsupported_types(buffer: Any) -> None:
    """Scenario 19: a type that NCCL does not have is refused with the list of those it has, whatever the protocol."""
    for _ in range(2):
        with pytest.raises(TypeError, match="is not supported by NCCL.*Supported: int8, uint8.*float8e5m2"):
            located(buffer)


@pytest.mark.parametrize(
    ("buffer", "dtype"), [(np.zeros(4, "f4"), "float64"), (np.zeros(4, "i4"), "float32"), (np.zeros(4, "u4"), "bfloat16")]
)
def test_wrong_dtype(buffer: Any, dtype: str) -> None:
    """dtype= cannot make another type of an array that has one, nor change the number of its elements."""
    with pytest.raises(ValueError, match=f"but dtype= says {dtype}"):
        located(buffer, dtype=dtype)


def strided() -> dict[str, Any]:
    """Arrays with gaps or in another order."""
    square = np.arange(16, dtype="i4").reshape(4, 4)
    return {
        "column": square[:, 0], "step": np.arange(8.0)[::2], "reversed": np.arange(8.0)[::-1], "transposed": square.T,
        "block": square[:2, :2], "memoryview": memoryview(np.arange(8.0))[::2], "array interface": ArrayInterface(square.T),
        "DLPack": DLPack(square[:, :2]), "broadcast": np.broadcast_to(np.float32(1), (4,)),
    }  # fmt: skip


@pytest.mark.parametrize("kind", strided())
def test_strided(kind: str) -> None:
    """Scenarios 01, 03: a buffer that is not dense in C order is refused with its shape and strides, never copied."""
    obj = strided()[kind]
    with pytest.raises(NonContiguousError, match=r"buffer is not contiguous in C order: shape \(.*\), strides \(.*\) bytes"):
        single(HOST, obj, None, None, False, "buffer")


@pytest.mark.parametrize(
    "make",
    [lambda: np.arange(16.0)[::3][:1], lambda: np.zeros((1, 5, 1))[:, ::1, :], lambda: np.zeros((9, 5, 9))[::9, :, ::9][:, :, :1].copy(),
     lambda: np.zeros((0, 3)), lambda: np.zeros((4, 4))[:, :0], lambda: np.array(1.0)],
)  # fmt: skip
def test_length_one_axes(make: Any) -> None:
    """Scenario 02: axes of length one may have any stride, and empty arrays are dense, through every protocol."""
    data = make()
    for obj in (data, ArrayInterface(data), DLPack(data, 0), DLPack(data, 1)):
        assert located(obj, writable=False)[1:] == (data.size, "float64")


@pytest.mark.parametrize("version", [0, 1])
def test_dlpack_without_strides(version: int) -> None:
    """A capsule without strides is dense, and its byte offset counts."""
    data = np.zeros((2, 2), "f4")
    assert located(DLPack(data, version, strides=None, byte_offset=8)) == (data.ctypes.data + 8, 4, "float32")


def read_only() -> dict[str, Any]:
    """Memory that must not be written."""
    data = np.zeros(4)
    data.flags.writeable = False
    return {
        "numpy": data, "bytes": b"12345678", "memoryview": memoryview(b"1234"), "array interface": ArrayInterface(data),
        "DLPack 1": DLPack(np.zeros(4), flags=1), "DLPack copy": DLPack(np.zeros(4), flags=2),
    }  # fmt: skip


@pytest.mark.parametrize("kind", read_only())
def test_read_only(kind: str) -> None:
    """A read-only receive buffer is refused; as a send buffer it is fine."""
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            located(read_only()[kind])
    assert located(read_only()[kind], writable=False)[1] > 0


@pytest.mark.parametrize("obj", [None, True, 1.5, 2j, "text", [1.0, 2.0], {}, object(), np.float32])
def test_no_buffers(obj: Any) -> None:
    """Scenario 26: what is neither an address nor a buffer is a TypeError that says what is needed."""
    with pytest.raises(TypeError, match="buffer must be"):
        located(obj, count=1, dtype="float32")


@pytest.mark.parametrize("address", [-8, 2**64, 2**70])
def test_no_addresses(address: int) -> None:
    """Scenario 26: numbers that are no address are refused."""
    with pytest.raises(ValueError, match="is no address"):
        located(address, count=1, dtype="float32")


def test_null() -> None:
    """0 is refused with a count and allowed without one, alone and in pairs."""
    with pytest.raises(ValueError, match=r"buffer is 0 \(NULL\), but 3 elements"):
        located(0, count=3, dtype="float32")
    assert located(0, count=0, dtype="float32") == (0, 0, "float32")
    with pytest.raises(ValueError, match=r"recv is 0 \(NULL\)"):
        pair(HOST, 4096, 0, 3, pynickel.float32, 1, 2, 0)


@pytest.mark.parametrize(("count", "dtype", "word"), [(None, "float32", "count= is needed"), (3, None, "dtype= is needed")])
def test_addresses_need_both(count: Any, dtype: Any, word: str) -> None:
    """A bare address needs count and dtype."""
    with pytest.raises(TypeError, match=word):
        located(4096, count, dtype)


def test_address_like_things() -> None:
    """NumPy integers and cffi pointers are addresses too."""
    data = np.zeros(4, "f4")
    for pointer in (np.int64(data.ctypes.data), np.uint64(data.ctypes.data), pynickel.ffi.cast("void *", data.ctypes.data)):
        assert located(pointer, np.int64(4), "float32") == (data.ctypes.data, 4, "float32")


@pytest.mark.parametrize(
    ("count", "error"),
    [(-1, ValueError), (2**64, ValueError), (2**60, ValueError), (3.0, TypeError), ("3", TypeError), (True, TypeError)],
)
@pytest.mark.parametrize("buffer", [np.zeros(4, "f4"), 4096])
def test_bad_counts(buffer: Any, count: Any, error: type[Exception]) -> None:
    """Scenario 06: counts that are negative, too large, or not ints are refused by name."""
    with pytest.raises(error, match="count must be"):
        located(buffer, count, "float32")


def test_count_of_an_array() -> None:
    """count= takes the first elements; more than there are is refused."""
    assert located(np.zeros(4), count=np.int64(3))[1] == 3
    with pytest.raises(ValueError, match="buffer has 4 elements, but 5 elements are needed by count="):
        located(np.zeros(4), count=5)


@pytest.mark.parametrize("form", [lambda a: a, memoryview, ArrayInterface])
def test_sizes_of_pairs(form: Any) -> None:
    """Scenario 18: sizes that do not fit together are refused with the numbers; those that do not divide say how to pad."""
    five, four, many = (form(np.zeros(n)) for n in (5, 4, 73))
    with pytest.raises(ValueError, match="recv has 4 elements, but 5 elements are needed"):
        alike(HOST, five, four, None, None)
    with pytest.raises(ValueError, match="recv has 4 elements, but 3 ranks times 5 elements are needed"):
        pair(HOST, five, four, None, None, 1, 3, None)
    with pytest.raises(ValueError, match="send has 73 elements, no multiple of 4 ranks; pad it to 76"):
        pair(HOST, many, four, None, None, 4, 1, None)


def test_types_of_pairs() -> None:
    """Two buffers of different types are refused."""
    with pytest.raises(ValueError, match="recv holds float64, but send or dtype= says float32"):
        alike(HOST, np.zeros(4, "f4"), np.zeros(4), None, None)


def test_mixed_pairs() -> None:
    """An array tells count and type for a bare address beside it."""
    data, other = np.zeros(4, "f4"), np.zeros(4, "f4")
    assert alike(HOST, data, other.ctypes.data, None, None)[:4] == (data.ctypes.data, other.ctypes.data, 4, 7)
    assert alike(HOST, data.ctypes.data, memoryview(other), None, None)[2:4] == (4, 7)


@pytest.mark.parametrize("form", [lambda a: a, ArrayInterface])
def test_overlap(form: Any) -> None:
    """A partial overlap is OverlapError; the same memory and neighbours are not."""
    data = np.zeros(12)
    same = form(data[:4])
    assert alike(HOST, same, same, None, None)[0] == data.ctypes.data
    alike(HOST, form(data[:4]), form(data[4:8]), None, None)
    alike(HOST, form(data[4:8]), form(data[:4]), None, None)
    for other in (data[1:5], data[3:7]):
        with pytest.raises(pynickel.OverlapError, match="in place, recv would be at 0x"):
            alike(HOST, form(data[:4]), form(other), None, None)
        with pytest.raises(pynickel.OverlapError):
            alike(HOST, form(other), form(data[:4]), None, None)
    with pytest.raises(pynickel.OverlapError, match="no in-place form"):
        pair(HOST, form(data[:4]), form(data[:4]), None, None, 2, 2, None)


def test_kept_alive() -> None:
    """What `single` gives back holds the memory: a bytearray cannot be resized under a running call."""
    buffer = bytearray(8)
    kept = single(HOST, buffer, None, None, True, "buffer")
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del kept
    gc.collect()
    buffer.extend(b"more")


def test_dlpack_memory_is_given_back() -> None:
    """The capsule, and with it the memory, is let go when the view is."""
    data = np.zeros(4)
    before = sys.getrefcount(data)
    kept: Any = single(HOST, DLPackOnly(data), None, None, False, "buffer")
    assert sys.getrefcount(data) > before
    del kept
    gc.collect()
    assert sys.getrefcount(data) == before


class DLPackOnly:
    """NumPy's own DLPack and nothing else."""

    def __init__(self, data: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = data.__dlpack__, data.__dlpack_device__

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_masked_array_interface() -> None:
    """A mask is not ignored, in NumPy's own arrays neither."""
    for masked in (ArrayInterface(np.zeros(4), mask=1), np.ma.masked_array(np.zeros(4), [0, 1, 0, 0])):
        with pytest.raises(TypeError, match="mask"):
            located(masked)


@pytest.mark.parametrize("changes", [
    {"typestr": None}, {"typestr": "f"}, {"typestr": ""}, {"typestr": "<fx"}, {"shape": 4}, {"shape": (-4,)}, {"shape": (4.0,)},
    {"shape": None}, {"strides": (4, 4)}, {"strides": 4}, {"data": (1, False, 1)}, {"data": ("x", False)}, {"data": (-5, False)},
    {"data": None}, {"data": b"1234"},
])  # fmt: skip
@pytest.mark.parametrize("kind", [ArrayInterface, CudaArrayInterface])
def test_broken_interfaces(kind: Any, changes: dict[str, Any]) -> None:
    """An array interface that says nonsense is a TypeError with the buffer's name, not a failure inside."""
    with pytest.raises(TypeError, match="^send .*array interface"):
        single("both", kind(np.zeros(4, "f4"), **changes), None, None, False, "send")


def test_broken_dlpack() -> None:
    """So is a device that is none, and a capsule that is none."""
    for device in (None, 1, (1,), (1, 2, 3)):
        with pytest.raises(TypeError, match="^send [(]Lying[)] answered __dlpack_device__ with"):
            single("host", Lying(DLPack(np.zeros(4)), device), None, None, False, "send")


class Lying:
    """A producer whose device is nonsense."""

    def __init__(self, array: Any, device: Any) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def test_refused_calls_leave_no_trace(recording: Recorder) -> None:
    """Refused arguments never reach the library."""
    comm = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    bad = [
        lambda: comm.all_reduce(None), lambda: comm.all_reduce(0, 0, count=3, dtype="float32"),
        lambda: comm.all_reduce(8, 8, count=-1, dtype=pynickel.float32), lambda: comm.all_reduce(8, 2**64, count=1, dtype=pynickel.float32),
        lambda: comm.all_reduce(-8, 8, count=1, dtype=pynickel.float32), lambda: comm.all_reduce(8, 8, count=2**63, dtype=pynickel.float32),
        lambda: comm.all_reduce(np.zeros(4), op="add"), lambda: comm.broadcast(np.zeros(4), root=4), lambda: comm.send(bytearray(1), -1),
        lambda: comm.recv(b"", 1), lambda: comm.reduce_scatter(np.zeros(7), np.zeros(1)), lambda: comm.scatter(None, np.zeros(4), root=1),
        lambda: comm.gather(np.zeros(4), None, root=1), lambda: comm.all_gather(np.zeros(4)[::2], np.zeros(8)),
    ]  # fmt: skip
    for call in bad:
        with pytest.raises((TypeError, ValueError)):
            call()
    assert recording.names == []
    comm.abort()
