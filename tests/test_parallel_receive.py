"""Receiving without waiting, receiving into arrays that are there already, and arrays of GPU libraries."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copyreg
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.processes import no_child_left

from pynickel import parallel
from pynickel.parallel import ChildError, serial

pytestmark = pytest.mark.timeout(30)
STAND_IN = Path(__file__).parent / "helpers" / "cupy_stand_in"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield


def on_request() -> None:
    """Send whatever the parent asks for, until it asks for None."""
    while (values := parallel.receive()) is not None:
        for value in values:
            parallel.send(value)
        parallel.yield_()


def give(child: Any, *values: object) -> None:
    """Have the child, or all of them, send these; on return they have."""
    child.send(values)
    child.join()


def until(condition: Any) -> None:
    """Wait a little for news that are on their way."""
    end = time.monotonic() + 10
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the news did not come")
        time.sleep(0.005)


def test_without_waiting() -> None:
    """Of one child receive(wait=False) returns what has come or None, of a list a dict of those that have sent; a timeout
    beside it is refused, and a child that can send nothing more is an error instead of None for ever."""
    children = parallel.nfork(3)
    children.exec(on_request)
    first, second, third = children
    assert first.receive(wait=False) is None
    assert children.receive(wait=False) == parallel.children.receive(wait=False) == {}
    give(first, "a", None)
    give(third, "b")
    assert children.receive(wait=False) == {first.id: "a", third.id: "b"}
    assert children.receive(wait=False) == {first.id: None}
    with pytest.raises(ValueError, match="receive with wait=False returns at once and takes no timeout, not 1"):
        first.receive(wait=False, timeout=1)
    first.send(None)
    until(lambda: first.over)
    with pytest.raises(ChildError, match="did not send anything"):
        first.receive(wait=False)
    assert children.receive(wait=False) == {}
    children[1:].send(None)
    until(lambda: second.over and third.over)
    with pytest.raises(ChildError, match="did not send anything"):
        children.receive(wait=False)


def test_a_failure_ends_a_receive_that_does_not_wait() -> None:
    """A polling loop learns of a child's failure."""
    _, child = parallel.run(on_request), parallel.run("1 / 0")
    until(lambda: child.failure is not None)
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        parallel.children.receive(wait=False)


def test_a_child_need_not_wait_either() -> None:
    """In a child receive(wait=False) and receive(into=...) do the same, and parallel.parent has them, too."""

    def work() -> None:
        early = parallel.receive(wait=False)
        parallel.yield_()
        into = np.zeros(3)
        same = parallel.parent.receive(into) is into
        parallel.send((early, parallel.parent.receive(wait=False), same, into.tolist()))
        try:
            parallel.receive(into)
        except ValueError as error:
            parallel.send((str(error), parallel.receive(wait=False)))

    child = parallel.run(work)
    child.join()
    child.send(np.arange(3.0))
    assert child.receive() == (None, None, True, [0, 1, 2])
    child.send("text")
    text, value = child.receive()
    assert "sent a str, but into takes arrays; receive it without into" in text and value == "text"
    child.sync()


def test_into_arrays() -> None:
    """What was sent is written into the arrays given, which are returned; for a list there is one per child, in order or by
    id; a child that sends several arrays fills as many."""
    children = parallel.nfork(2)
    children.exec(on_request)
    first, second = children
    a, b = np.zeros((100, 50)), np.zeros((100, 50))
    give(first, np.full((100, 50), 1.0), np.full((100, 50), 2.0), np.full((100, 50), 3.0))
    give(second, np.full((100, 50), 4.0), np.full((100, 50), 5.0), (np.full((100, 50), 6.0), b"four"))
    received = children.receive(into=[a, b])
    assert received[first.id] is a and received[second.id] is b
    assert (a == 1).all() and (b == 4).all()
    parallel.children.receive(into={second.id: a, first.id: b})
    assert (a == 5).all() and (b == 2).all()
    four = bytearray(4)
    several = [a, four]
    children.receive(into=(b, several))
    assert (b == 3).all() and (a == 6).all() and four == b"four"
    give(first, np.arange(6).reshape(2, 3))
    strided = np.zeros((3, 2), int).T
    assert first.receive(into=strided, wait=False) is strided
    assert strided.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert first.receive(into=strided, wait=False) is None
    children.send(None)
    children.sync()


def test_what_does_not_fit() -> None:
    """An array of another type or shape, or no array, is refused with both; nothing is written or lost, in a list for none."""
    children = parallel.nfork(2)
    children.exec(on_request)
    first, second = children
    give(first, np.ones(3))
    give(second, np.ones(4, np.float32))
    a, b = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError, match=rf"child {second.id} .* sent float32 of shape \(4,\), but into has float64 of shape \(4,\)"):
        children.receive(into=[a, b])
    assert not a.any() and not b.any()
    with pytest.raises(ValueError, match=r"sent float64 of shape \(3,\), but into has float64 of shape \(2,\); receive it without into"):
        first.receive(into=np.zeros(2))
    with pytest.raises(ValueError, match="sent a ndarray, but into is a list of 1"):
        first.receive(into=[a])
    received = children.receive()
    assert received[first.id].tolist() == [1, 1, 1] and received[second.id].size == 4
    fixed = np.zeros(1)
    fixed.flags.writeable = False
    wrong: list[tuple[Any, type[Exception], str]] = [
        (5, TypeError, "into must be an array, a bytearray or a list of them, not int"),
        (b"bytes", TypeError, "not bytes"),
        (fixed, ValueError, "into is read-only"),
        (memoryview(b"abc"), ValueError, "into is read-only"),
    ]
    for into, error, match in wrong:
        with pytest.raises(error, match=match):
            first.receive(into=into)
    for into, error, match in [
        ([a], ValueError, "into has 1 arrays for 2 children"),
        ({first.id: a}, ValueError, f"into has nothing for child {second.id}"),
        (a, TypeError, "one per child"),
    ]:
        with pytest.raises(error, match=match):
            children.receive(into=into)


def test_memory_is_used_again() -> None:
    """Message after message into one array is read into the same memory, since new memory for each costs more than the copy."""
    child = parallel.run(on_request)
    into = np.zeros(100_000)
    for number in range(4):
        give(child, np.full(100_000, float(number)))
        spare = list(child.channel._spare)
        child.receive(into=into)
        assert into[0] == into[-1] == number
        assert number == 0 or child.channel._spare[0] is not None and not spare
    give(child, np.full(100_000, 7.0), np.full(100_000, 8.0))
    kept = child.receive()
    child.receive(into=into)
    give(child, np.full(100_000, 9.0))
    child.receive(into=into)
    assert (kept == 7).all() and (into == 9).all()  # what was given away stays as it is


def test_cuda_arrays_travel_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array with the CUDA array interface arrives as one, by way of one host array beside the pickle; it can be received into
    one that is there, and mixed with host arrays. (A stand-in for CuPy's: no GPU is needed.)"""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    import cupy  # type: ignore[import-not-found]

    def double() -> None:
        array = parallel.receive()
        parallel.send(type(array).__module__)
        parallel.send(cupy.ndarray(array.get() * 2))
        parallel.send(parallel.receive(into=cupy.asarray(np.zeros(5000))).get())
        parallel.send(cupy.asarray(np.full(3, 4.0)))

    ours = cupy.ndarray(np.arange(5000.0))
    parts = serial.dump(ours)
    assert [len(part) for part in parts[1:]] == [40_000] and len(parts[0]) < 500
    child = parallel.run(double)
    child.send(ours)
    assert child.receive() == "cupy"
    back = child.receive()
    assert type(back) is cupy.ndarray and (back.get() == 2 * np.arange(5000)).all()
    child.send(ours)
    assert (child.receive() == np.arange(5000)).all()
    host = np.zeros(3)
    assert child.receive(into=host).tolist() == [4, 4, 4]
    monkeypatch.delitem(sys.modules, "cupy")


class Foreign:
    """An array class that pynickel does not know."""

    def __init__(self, values: Any) -> None:
        self.values = values

    __cuda_array_interface__ = {"version": 3}


def test_other_classes_travel_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of arrays that pynickel does not know is pickled as it, or copyreg, says."""
    monkeypatch.setitem(copyreg.dispatch_table, Foreign, lambda array: (Foreign, (array.values + 1,)))
    child = parallel.run("from pynickel import parallel\nparallel.send(parallel.receive())")
    child.send(Foreign(np.arange(3)))
    assert child.receive().values.tolist()[0] >= 1


@pytest.mark.slow
def test_torch_tensors_are_not_copied() -> None:
    """PyTorch's tensors go beside the pickle, too, with types that NumPy lacks, shapes, and whether they want gradients."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    large = torch.arange(10_000, dtype=torch.float32)
    parts = serial.dump({"a": large})
    assert len(parts) == 2 and np.shares_memory(np.frombuffer(parts[1], np.float32), large.numpy())
    layer = torch.nn.Linear(3, 2)
    values = [
        large.to(torch.bfloat16).reshape(100, 100), large.reshape(100, 100).T, torch.tensor(3), torch.zeros(0, 3), torch.tensor([True]),
        torch.ones(2, requires_grad=True), torch.tensor([1 + 2j]).conj(), layer.weight, torch.ones(3).to_sparse(),
    ]  # fmt: skip
    back = serial.load([bytearray(part) for part in serial.dump(values)])
    for value, copy in zip(values, back, strict=True):
        assert type(copy) is type(value) and copy.dtype == value.dtype and copy.shape == value.shape
        assert copy.requires_grad == value.requires_grad and torch.equal(copy.to_dense(), value.to_dense())
    child = parallel.run("from pynickel import parallel\nparallel.send(parallel.receive())\nparallel.yield_()")
    child.send(large)
    into = torch.zeros(10_000)
    assert child.receive(into=into) is into and torch.equal(into, large)
