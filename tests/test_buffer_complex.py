"""Complex numbers: pairs of reals to NCCL, single numbers to the caller's counts, for sums and for what only moves."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.arrays import ArrayInterface, DLPack
from helpers.threads import together

import pynickel
from pynickel import Communicator
from pynickel.buffer import pair, single
from pynickel.layout import HOST


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_told_to_the_library(name: str) -> None:
    """Through every protocol the library is told twice as many reals; dtype= names complex numbers at an address or in raw bytes."""
    data = np.zeros(5, name)
    real, raw = ("float32" if name == "complex64" else "float64"), np.zeros(5 * data.itemsize, "u1")
    for buffer, count, dtype in [
        (data, None, None), (memoryview(data), None, None), (ArrayInterface(data), None, None), (DLPack(data), None, None),
        (data, 5, name), (data.ctypes.data, 5, name), (raw, None, name),
    ]:  # fmt: skip
        _, number, element, _ = single(HOST, buffer, count, dtype, True, "send")
        assert (number, int(element), element.itemsize) == (10, pynickel.DataType[real], data.itemsize // 2)
    assert single(HOST, data, 2, None, True, "send")[1] == 4


def test_collectives() -> None:
    """Sums, copies and all parts of complex arrays are right, whole numbers to the right place."""

    def program(comm: Communicator) -> None:
        r, z = comm.rank, np.array([1 + 2j, 3 - 1j], "c8") * (comm.rank + 1)
        total = np.array([3 + 6j, 9 - 3j], "c8")
        assert (comm.all_reduce(z, np.zeros_like(z)) == total).all()
        assert (comm.reduce_scatter(z, np.zeros(1, "c8")) == total[r]).all()
        parts = comm.all_gather(z, np.zeros(4, "c8"))
        assert (parts == [1 + 2j, 3 - 1j, 2 + 4j, 6 - 2j]).all()
        assert (comm.all_to_all(parts, np.zeros(4, "c8")) == np.tile(parts[2 * r : 2 * r + 2], 2)).all()
        assert comm.send_recv(z, 1 - r, np.zeros(2, "c8"), 1 - r).tolist() == (z / (r + 1) * (2 - r)).tolist()
        mine = np.full(2 * r + 1, r + 1j, "c16")
        assert comm.all_gather_v(mine, np.zeros(4, "c16"), [1, 3]).tolist() == [1j, 1 + 1j, 1 + 1j, 1 + 1j]
        assert comm.reduce_scatter_v(np.arange(4) * 1j, np.zeros(2 * r + 1, "c16"), [1, 3]).tolist() == ([0] if r == 0 else [2j, 4j, 6j])
        got = comm.gather_v(mine, np.zeros(4, "c16") if r == 1 else None, [1, 3], root=1)
        assert got is None or got.tolist() == [1j, 1 + 1j, 1 + 1j, 1 + 1j]
        assert comm.scatter_v(got, np.zeros(2 * r + 1, "c16"), [1, 3], root=1).tolist() == mine.tolist()
        assert comm.broadcast(z if r else np.zeros(2, "c8"), root=1).tolist() == [2 + 4j, 6 - 2j]

    together(2, program)


def test_other_operations(comm: Communicator) -> None:
    """Everything but SUM is refused by name, an operator made by pre_mul_sum too, and leaves nothing behind."""
    z = np.ones(4, "c8")
    times: list[Any] = ["avg", pynickel.PROD, pynickel.MAX, "min", comm.pre_mul_sum(2.0, "float32")]
    for op in times:
        for call in (comm.all_reduce, comm.reduce, comm.reduce_scatter):
            with pytest.raises(ValueError, match="is not for complex64: .* only SUM is right so"):
                call(z, np.zeros(4, "c8"), op)
    assert (comm.all_reduce(z) == 1).all()


def test_whole_numbers() -> None:
    """Messages, divisions and types count complex numbers: a number is never split between ranks or mixed with reals."""
    five = np.zeros(5, "c8")
    with pytest.raises(ValueError, match="send has 5 elements, no multiple of 2 ranks; pad it to 6"):
        pair(HOST, five, np.zeros(2, "c8"), None, None, 2, 1, None)
    with pytest.raises(ValueError, match="send has 5 elements, but 6 elements are needed by count="):
        single(HOST, five, 6, None, True, "send")
    with pytest.raises(ValueError, match="recv holds float32, but send or dtype= says complex64"):
        pair(HOST, five, np.zeros(10, "f4"), None, None, 1, 1, 0)
    with pytest.raises(ValueError, match="complex64 is not supported by NCCL as a type of its own; take float32, two elements"):
        pynickel.empty(3, "complex64")
