"""Memory from ncclMemAlloc: as arrays, and for as long as something looks at it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.processes import run
from helpers.recorder import Recorder
from helpers.threads import together

import pynickel
from pynickel import Communicator, driver, empty, mem_alloc
from pynickel._dlpack import dtype_of, unpack
from pynickel.memory import Memory


@pytest.mark.parametrize("shape", [5, (2, 3), [4], (), 0, (3, 0), np.int64(4)])
def test_empty(shape: Any) -> None:
    """On the CPU library it is a writable, dense NumPy array of that shape and type."""
    made = empty(shape, "float64", library="host")
    made[...] = 7
    expected = np.empty(shape)
    assert made.shape == expected.shape and made.dtype == np.float64 and made.flags.c_contiguous and (made == 7).all()


@pytest.mark.parametrize("dtype", list(pynickel.DataType))
def test_every_type(dtype: pynickel.DataType) -> None:
    """Every NCCL type can be asked for."""
    assert empty(3, dtype, library="host").nbytes == 3 * dtype.itemsize


def test_default_is_float32() -> None:
    """Without a type it is float32, from the default library."""
    assert empty(2).dtype == np.float32
    assert empty(2, ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


def test_lives_as_long_as_a_view(recording: Recorder) -> None:
    """The block is freed when the last view is gone, and not before."""
    block = mem_alloc(64, library="host")
    alive = weakref.ref(block)
    view = np.asarray(block)[10:20].view("u2")
    del block
    gc.collect()
    view[:] = 5
    assert alive() is not None and view.tolist() == [5] * 5
    del view
    gc.collect()
    assert alive() is None
    block = mem_alloc(64, library=recording.path)
    del block
    gc.collect()
    assert recording.names == ["ncclMemAlloc", "ncclMemFree"]


def test_array_of_a_block() -> None:
    """NumPy sees a block's bytes, writable, at its address."""
    block = mem_alloc(100, library="host")
    seen = np.asarray(block)
    assert (seen.shape, seen.dtype, seen.flags.writeable, seen.ctypes.data) == ((100,), np.uint8, True, block.address)
    assert len(block) == block.nbytes == 100 and not hasattr(block, "__cuda_array_interface__")


def test_device_block(recording: Recorder) -> None:
    """On a GPU library a block offers the CUDA array interface with shape and type, and no host one."""
    block = empty((2, 3), "float16", library=recording.path)
    interface = block.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["data"]) == ((2, 3), "<f2", (block.address, False))
    assert not hasattr(block, "__array_interface__")
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    assert comm.all_reduce(block) is block
    assert recording.calls[-1][1][:4] == [block.address, block.address, 6, pynickel.float16]
    comm.abort()


def test_shown_by_dlpack(recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks speak DLPack 1 and 0 with address, shape, type and device; whoever has a view keeps the block, whoever raises does not."""
    library = pynickel.load("host")
    for dtype in pynickel.DataType:
        block = Memory(6 * dtype.itemsize, library, (2, 3), dtype)
        alive = weakref.ref(block)
        for version in (None, (0, 8), (1, 0), (2, 0)):
            capsule = block.__dlpack__(max_version=version)
            tensor, flags = unpack(capsule, "send")
            assert (tensor.data, tensor.shape[:2], tensor.strides[:2], flags) == (block.address, [2, 3], [3, 1], 0)
            assert dtype_of(tensor) in (dtype, dtype.name) and ("versioned" in repr(capsule)) == (version is not None and version[0] > 0)
        del block
        assert alive() is not None
        del capsule, tensor
        assert alive() is None
    block = mem_alloc(24, library=library)
    alive = weakref.ref(block)
    view = np.from_dlpack(block)
    view[:] = 7
    assert block.__dlpack_device__() == (1, 0) and np.asarray(block).tolist() == [7] * 24
    for options in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            block.__dlpack__(**options)
    with pytest.raises(KeyError):
        raise KeyError(block.__dlpack__())
    del block
    gc.collect()
    assert alive() is not None and view.sum() == 168
    del view
    gc.collect()
    assert alive() is None
    monkeypatch.setattr(driver, "driver", lambda: SimpleNamespace(cuPointerGetAttribute=second_gpu))
    block = empty((2, 3), "bfloat16", library=recording.path)
    tensor, _ = unpack(block.__dlpack__(max_version=(1, 1), stream=7), "send")
    assert (tensor.device_type, tensor.device_id, tensor.code, tensor.bits) == (2, 1, 4, 16) and block.__dlpack_device__() == (2, 1)


def second_gpu(out: Any, attribute: int, address: Any) -> int:
    """A driver for which all memory is on GPU 1."""
    out._obj.value = 1
    return 0


def test_views_that_outlive_the_interpreter() -> None:
    """A view by DLPack may be given back by another thread, and when Python is at its end."""
    program = (
        "import builtins, threading, numpy, pynickel\n"
        "view = builtins.kept = numpy.from_dlpack(pynickel.mem_alloc(8, library='host'))\n"
        "other = [numpy.from_dlpack(pynickel.mem_alloc(8, library='host'))]\n"
        "thread = threading.Thread(target=other.clear)\n"
        "thread.start()\n"
        "thread.join()\n"
        "view[:] = 1\n"
        "print(view.sum(), other)"
    )
    done = run(program)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "8 []", "")


def test_in_collectives() -> None:
    """Such arrays, blocks and plain ones can be mixed in a call, across ranks too."""

    def program(comm: Communicator) -> None:
        sent = empty(1000, library="host") if comm.rank else np.empty(1000, "f4")
        sent[:] = comm.rank + 1
        received = empty(1000, library="host")
        comm.all_reduce(sent, received)
        assert (received == 3).all()
        block = mem_alloc(16, library="host")
        np.asarray(block)[:] = comm.rank
        assert comm.broadcast(block, root=1) is block and np.asarray(block).tolist() == [1] * 16

    together(2, program)


@pytest.mark.parametrize("size", [-1, 2**62, 1.5, "3", True, None])
def test_bad_sizes(size: Any) -> None:
    """Shapes and sizes are ints of at least 0 and below 2**63 bytes."""
    error = ValueError if type(size) is int else TypeError
    with pytest.raises(error):
        empty(size, library="host")
    with pytest.raises(error):
        empty((2, size), library="host")
    with pytest.raises(error, match="nbytes"):
        mem_alloc(2 * size if type(size) is int else size, library="host")


def test_more_than_there_is(recording: Recorder) -> None:
    """Memory that cannot be had is the library's error."""
    recording.returns("ncclMemAlloc", 1)
    with pytest.raises(pynickel.CudaError, match="ncclMemAlloc failed"):
        mem_alloc(2**40, library=recording.path)
