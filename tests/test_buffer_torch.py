"""Torch tensors as buffers: what is read from their attributes, what autograd forbids, and what keeps their memory."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder

import pynickel
import pynickel.buffer
from pynickel import Communicator, NonContiguousError, OverlapError, Plan, group
from pynickel.buffer import alike, facts, on_gpu, pair, single
from pynickel.layout import BOTH, DEVICE, HOST, Gpu
from pynickel.memory import Memory

if sys.modules.get("torch") is None:  # not imported before it is known to be there: a half-imported torch would stay behind
    pytest.importorskip("torch", reason="torch is not installed here (pip install -e '.[torch]')")
import torch

pytestmark = pytest.mark.torch
TYPES = {
    "int8": "int8", "uint8": "uint8", "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64", "float16": "float16",
    "float32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float8_e4m3fn": "float8e4m3", "float8_e5m2": "float8e5m2",
}  # fmt: skip


def located(tensor: Any, memory: str = HOST, writable: bool = True, dtype: Any = None) -> tuple[int, int, str]:
    """Address, count and type name of one tensor."""
    address, count, element, _ = single(memory, tensor, None, dtype, writable, "send")
    return address, count, element.name


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    """Every type of NCCL is known by torch's name, the first time and by the shortcut afterwards."""
    made = torch.zeros(2, 3, dtype=getattr(torch, name))
    for memory in (HOST, HOST, BOTH, BOTH):
        assert located(made, memory) == (made.data_ptr(), 6, TYPES[name])
    assert alike(HOST, made, made, None, None)[:3] == (made.data_ptr(), made.data_ptr(), 6)


@pytest.mark.parametrize("name", ["bool", "int16", "uint16", "float8_e4m3fnuz", "complex32"])
def test_other_types(name: str) -> None:
    """Scenario 19: types that NCCL does not have are refused by name; bool says how to pass it."""
    for _ in range(2):
        with pytest.raises(TypeError, match=f"send's dtype {name} is not supported by NCCL{'; view it as uint8' * (name == 'bool')}"):
            located(torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name)))
    raw = torch.zeros(4, dtype=torch.uint16)
    assert located(raw, dtype="bfloat16") == (raw.data_ptr(), 4, "bfloat16")


def test_facts_by_one_call() -> None:
    """By torch's own table a usual tensor tells all at once; what is not dense host memory of at least two elements tells nothing."""
    located(torch.ones(3))
    for name, ours in TYPES.items():
        made = torch.zeros(3, 1, 4, dtype=getattr(torch, name))[1:]
        assert facts(made, True) == (made.data_ptr(), 8, pynickel.DataType[ours])
    square = torch.arange(16.0).reshape(4, 4)
    others = (
        square.T, square[:, 1], torch.tensor([1.0]), torch.zeros(0), torch.ones(1).expand(4), torch.ones(4, dtype=torch.bool),
        torch.ones(4, dtype=torch.complex64), torch.zeros(4, device="meta"), torch.eye(3).to_sparse(),
    )  # fmt: skip
    assert [facts(other, False) for other in others] == [None] * len(others)
    assert facts(square[::2][:1], False) == (square.data_ptr(), 4, pynickel.float32)
    recorded, parameter = torch.ones(4, requires_grad=True) * 2, torch.nn.Parameter(torch.ones(4))
    assert facts(recorded, True) is None and facts(recorded, False) == (recorded.data_ptr(), 4, pynickel.float32)
    assert facts(parameter, True) == (parameter.data_ptr(), 4, pynickel.float32)


def test_without_torch_s_table(comm: Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that has no such table is asked attribute by attribute, with the same answers."""
    comm.all_reduce(torch.ones(3))
    monkeypatch.setattr(pynickel.buffer, "facts", lambda tensor, writable: None)
    test_layouts()
    test_no_plain_memory()
    one, two = torch.ones(3), torch.zeros(3)
    assert comm.all_reduce(one) is one and comm.all_reduce(one, two) is two and two.tolist() == [1, 1, 1]
    assert located(one) == (one.data_ptr(), 3, "float32") and alike(HOST, one, two, None, None)[:3] == (one.data_ptr(), two.data_ptr(), 3)


def test_layouts() -> None:
    """Only dense tensors in C order are taken; axes of length one and offsets do not matter."""
    square = torch.arange(16.0).reshape(4, 4)
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for gaps in (square[:, 0], square.T, square[:2, :2], torch.ones(1).expand(4), images):
        for _ in range(2):
            with pytest.raises(NonContiguousError, match=r"send is not contiguous in C order: shape \(.*\), strides \(.*\) bytes"):
                located(gaps)
    assert located(square[1:3]) == (square.data_ptr() + 16, 8, "float32")
    assert located(square[::2][:1])[1] == 4 and located(torch.zeros(0, 3).T)[1] == 0 and located(torch.tensor(1.0))[1] == 1


def test_no_plain_memory() -> None:
    """Sparse tensors, tensors without data and lazy conjugates have no memory that NCCL could read."""
    for tensor in (torch.eye(3).to_sparse(), torch.zeros(3, device="meta")):
        with pytest.raises(TypeError, match="NCCL takes dense tensors on cpu or cuda devices"):
            located(tensor)
    number = torch.tensor([1 + 2j])
    for lazy, word in ((number.conj(), "conjugate"), (number.conj().imag, "negative")):
        with pytest.raises(ValueError, match=f"send is a lazy {word}"):
            located(lazy)


def test_in_place_without_plain_memory(comm: Communicator) -> None:
    """The shortcuts of a call refuse in words what has no memory, too: sparse rows, freed storage, what torch.func hands to functions."""

    def refused(tensor: Any) -> Any:
        for call in (lambda: comm.all_reduce(tensor), lambda: comm.all_reduce(tensor, tensor), lambda: comm.send(tensor, 0)):
            with pytest.raises((TypeError, ValueError), match="dense tensors|without memory of its own|is 0 [(]NULL[)]") as caught:
                call()
            assert not isinstance(caught.value, pynickel.NCCLError)
        return tensor.sum()

    comm.all_reduce(torch.ones(3))
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls sparse rows a beta
        rows = torch.eye(3).to_sparse_csr()
    for tensor in (rows, torch.zeros(3, device="meta")):
        with pytest.raises(TypeError, match="dense tensors"):
            comm.all_reduce(tensor)
    with pytest.raises(ValueError, match="NULL"):
        comm.all_reduce(freed)
    with pytest.raises(ValueError, match="NULL"):
        comm.all_reduce(freed, torch.ones(3))
    torch.func.vmap(refused)(torch.ones(2, 3))
    torch.func.grad(refused)(torch.ones(3))
    assert comm.all_reduce(torch.ones(3)).tolist() == [1, 1, 1]


def test_autograd() -> None:
    """Leaves are written as under no_grad and every tensor can be sent; results that autograd recorded are not written."""
    leaf, parameter = torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(3))
    result = leaf * 2
    for _ in range(2):
        for tensor in (leaf, parameter, result.detach(), parameter.data):
            assert located(tensor) == (tensor.data_ptr(), 3, "float32")
        assert located(result, writable=False)[1] == 3
        with pytest.raises(ValueError, match=r"send receives, but it is a result that autograd has recorded.*tensor\.detach\(\)"):
            located(result)
        with pytest.raises(ValueError, match="recv receives, but it is a result"):
            alike(HOST, leaf, result, None, None)


def test_pairs() -> None:
    """Sizes, types and overlaps of two tensors are checked as those of arrays are; a tensor and an array can be mixed."""
    four, eight = torch.zeros(4), torch.zeros(8)
    assert pair(HOST, four, eight, None, None, 1, 2, None)[:3] == (four.data_ptr(), eight.data_ptr(), 4)
    assert alike(HOST, four, np.zeros(4, "f4"), None, None)[2] == 4
    with pytest.raises(ValueError, match="recv has 8 elements, but 4 elements are needed"):
        alike(HOST, four, eight, None, None)
    with pytest.raises(ValueError, match="recv holds float64"):
        alike(HOST, four, torch.zeros(4, dtype=torch.float64), None, None)
    with pytest.raises(OverlapError):
        alike(HOST, eight[:4], eight[2:6], None, None)
    with pytest.raises(OverlapError):
        pair(HOST, eight[:4], eight, None, None, 1, 2, -1)
    assert pair(HOST, eight[4:], eight, None, None, 1, 2, -1)[2] == 4
    with pytest.raises(ValueError, match="no multiple of 3 ranks; pad it to 6"):
        pair(HOST, four, eight, None, None, 3, 1, None)


def test_device_tensors_by_a_stand_in(recording: Recorder) -> None:
    """A tensor on a GPU is told from one on the host by its own word, without torch being asked twice."""

    class OnGpu(torch.Tensor):
        is_cpu, is_cuda, device = False, True, torch.device("cuda", 0)  # type: ignore[assignment]

    tensor = torch.zeros(4).as_subclass(OnGpu)
    with pytest.raises(ValueError, match="memory of a CUDA device, and the loaded library works on host memory"):
        located(tensor)
    assert located(tensor, DEVICE) == (tensor.data_ptr(), 4, "float32")
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    assert comm.all_reduce(tensor) is tensor and recording.calls[-1][1][:3] == [tensor.data_ptr(), tensor.data_ptr(), 4]
    comm.abort()
    other = SimpleNamespace(is_cuda=True, get_device=lambda: 1)
    assert [on_gpu(memory, other) for memory in (HOST, BOTH, DEVICE, Gpu.of(0), Gpu.of(1))] == [False, True, True, False, True]
    with pytest.raises(ValueError, match="is on GPU 0, and this communicator works on GPU 1"):
        located(tensor, Gpu.of(1))


def test_through_the_cpu_library(comm: Communicator) -> None:
    """Tensors go through every kind of call: in place, out of place, gathered, in a group, in a plan."""
    ones, out, big = torch.ones(4), torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)
    assert comm.all_reduce(ones) is ones and comm.all_reduce(ones, out, op="max") is out and out.tolist() == [1] * 4
    big.fill_(3)
    gathered = torch.zeros_like(big)
    with group():
        comm.all_gather(big, gathered)
        comm.broadcast(out)
    assert gathered.tolist() == [3] * 4
    model = torch.nn.Linear(2, 2)
    comm.broadcast(model.weight)
    model(torch.ones(1, 2)).sum().backward()
    assert comm.all_reduce(model.weight.grad, op="avg").tolist() == [[1, 1], [1, 1]]


def test_memory_outlives_the_tensor(comm: Communicator) -> None:
    """A plan keeps the memory that it was queued with, even when the tensor is given other memory."""
    sent, received = torch.full((1000,), 7.0), torch.zeros(1000)
    window = received.view(-1)
    plan = Plan(comm)
    plan.all_reduce(sent, received)
    plan.all_reduce(sent)
    sent.data = torch.zeros(1000)
    del received
    torch.full((1000,), 9.0)  # would take the freed block
    plan.launch()
    assert window.tolist() == [7.0] * 1000


def test_memory_of_the_library() -> None:
    """torch sees a block by DLPack in every type that it has, and keeps it."""
    for name, ours in TYPES.items():
        element = pynickel.DataType[ours]
        seen = torch.from_dlpack(Memory(6 * element.itemsize, pynickel.load("host"), (2, 3), element))
        seen.zero_()
        assert seen.dtype == getattr(torch, name) and seen.shape == (2, 3) and located(seen)[1:] == (6, ours)


@pytest.mark.parametrize("stream", ["torch.cuda.Stream", "torch.Stream"])
def test_streams(recording: Recorder, stream: str) -> None:
    """Torch's streams offer their handle as cuda_stream or as native_handle; what a stream object offers reaches the library."""
    made: Any = type(stream, (), {"cuda_stream" if stream == "torch.cuda.Stream" else "native_handle": 12})()
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    comm.all_reduce(torch.zeros(4), stream=made)
    assert recording.calls[-1][1][6] == 12
    comm.abort()
