"""The training helpers with CuPy's arrays, played by NumPy: the CPU library does the sums, and says that it is one for GPUs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np
from helpers.ranks import run

import pynickel
from pynickel import training


def play_cupy() -> Any:
    """A module cupy with the few things that the helpers may use; its arrays are not of NumPy's own class."""

    class Array(np.ndarray):
        """An array on device 3."""

        device = types.SimpleNamespace(id=3)

    def asarray(thing: Any) -> Any:
        interface = getattr(thing, "__cuda_array_interface__", None)
        if interface is None:
            return np.asarray(thing).view(Array)
        assert not hasattr(thing, "__array_interface__")
        block = (ctypes.c_char * max(1, thing.nbytes)).from_address(interface["data"][0])
        block.thing = thing
        return np.frombuffer(block, np.uint8, thing.nbytes).view(Array)

    cupy: Any = types.ModuleType("cupy")
    cupy.ndarray, cupy.asarray, cupy.zeros = Array, asarray, lambda shape: np.zeros(shape).view(Array)
    cupy.concatenate = lambda arrays: np.concatenate(arrays).view(Array)
    cupy.array = lambda array, ndmin: np.array(array, ndmin=ndmin).view(Array)
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=77))
    return cupy


def on_one_rank(comm: pynickel.Communicator) -> Any:
    """All helpers on arrays of the stand-in; which streams the library was given."""
    cupy = sys.modules.setdefault("cupy", play_cupy())
    streams = []
    for name in ("all_reduce", "broadcast"):
        method = getattr(pynickel.Communicator, name)
        if not hasattr(method, "inner"):

            def noted(self: Any, *args: Any, inner: Any = method, **options: Any) -> Any:
                streams.append(options["stream"].ptr)
                return inner(self, *args, **options)

            noted.inner = method  # type: ignore[attr-defined]
            setattr(pynickel.Communicator, name, noted)
    refused = ""
    try:
        training.average_gradients(comm, [cupy.zeros(2), cupy.zeros(3)])
    except ValueError as error:
        refused = str(error)
    comm.library.kind = "nvidia"
    r = comm.rank
    grads = [cupy.zeros((2, 2)) + r, cupy.zeros(3).astype(np.float32) + 2 * r, (cupy.zeros((2, 4)) + r)[:, ::2]]
    training.average_gradients(comm, grads, weights=1 + 2 * r)
    alone = cupy.zeros(3) + r
    training.average_gradients(comm, alone)
    mean, variance, number = training.batch_statistics(comm, cupy.zeros((2, 3)) + r)
    apart = training.parameter_error(comm, [alone + r])
    ours = cupy.zeros(2) + r
    training.broadcast_parameters(comm, [ours], root=1)
    share = training.shard(cupy.zeros((4, 2)), r, 2)
    try:
        training.average_gradients(comm, [np.zeros(2)] * 2)
    except ValueError as error:
        refused += " | " + str(error)
    kinds = {type(one).__name__ for one in (*grads, alone, mean, variance, ours, share)}
    values = [grads[0].tolist(), grads[1].tolist(), grads[2].tolist(), alone.tolist(), mean.tolist(), variance.tolist(), number]
    return values, ours.tolist(), apart, refused, kinds, set(streams)


def test_cupy_arrays() -> None:
    """Buckets are views of NCCL's memory through the CUDA array interface, the current stream is used, plain arrays are refused."""
    for values, ours, apart, refused, kinds, streams in run(2, on_one_rank):
        assert values == [[[0.75] * 2] * 2, [1.5] * 3, [[0.75] * 2] * 2, [0.5] * 3, [0.5] * 3, [0.25] * 3, 4.0]
        assert ours == [1.0, 1.0] and apart == 0.25
        assert refused == (
            "the CuPy arrays are on a GPU, and the host library works on the CPU: copy them there"
            " | the NumPy arrays are on the CPU, and the nvidia library works on a GPU: copy them there"
        )
        assert kinds == {"Array"} and streams == {77}
