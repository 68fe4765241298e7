"""Small cases of values and disagreements, each under its number: what is computed, and what every rank is told."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pynickel
from pynickel.testing import run


def works(comm: Any) -> None:
    """The communicator is usable: a plain all-reduce is right."""
    assert comm.all_reduce(np.full(3, comm.rank + 1)).tolist() == [comm.nranks * (comm.nranks + 1) // 2] * 3


def strided(comm: Any) -> None:
    a = np.arange(16, dtype=np.int32).reshape(4, 4)
    before, out = a.copy(), np.empty(16, np.int32)
    column = a[:, 0]
    calls = [
        lambda x: comm.all_reduce(x), lambda x: comm.broadcast(x, root=1 - comm.rank), lambda x: comm.gather(x, out[: 2 * x.size]),
        lambda x: comm.reduce_scatter(x, out[: x.size // 2]), lambda x: comm.send(x, 1 - comm.rank),
    ]  # fmt: skip
    for call in calls:
        for view, shape, strides in ((column, r"\(4,\)", r"\(16,\)"), (a.T, r"\(4, 4\)", r"\(4, 16\)")):
            with pytest.raises(pynickel.NonContiguousError, match=rf"{shape}.*{strides}"):
                call(view)
    assert (a == before).all()
    works(comm)
    # C order against Fortran order: refused where it is, and there the right array still fits into the other rank's call.
    if comm.rank == 1:
        with pytest.raises(pynickel.NonContiguousError):
            comm.all_reduce(np.asfortranarray(a))
    assert (comm.all_reduce(a) == 2 * before).all()


def test_strided_views() -> None:
    """Scenario 01: strided and transposed arrays are refused by every operation with shape and strides; nothing is sent."""
    run(2, strided)


def in_place(comm: Any) -> None:
    x = np.ones((4, 3))
    assert comm.all_reduce(x) is x and (x == 2).all()
    with pytest.raises(pynickel.NonContiguousError):
        comm.all_reduce(x[:, ::2])
    assert (x == 2).all()
    works(comm)


def test_in_place_is_the_same_object() -> None:
    """Scenario 03: in place the object that was given comes back with the result in it; a strided view is refused, never copied."""
    run(2, in_place, ranks="threads")


def same_bytes(comm: Any) -> str:
    array = np.ones(16, np.float32) if comm.rank == 0 else np.ones(8, np.float64)
    with pytest.raises(pynickel.CollectiveMismatchError) as caught:
        comm.all_reduce(array)
    assert (array == 1).all()
    works(comm)
    return str(caught.value)


def test_types_differ_and_bytes_agree() -> None:
    """Scenario 11: 16 floats against 8 doubles is a mismatch on both ranks, with both types in the text, and the ranks go on."""
    for text in run(2, same_bytes):
        assert "float32" in text and "float64" in text


def other_counts(comm: Any) -> list[str]:
    texts = []
    for count in (1, 100, 256_000):
        send = np.ones(count if comm.rank == 0 else 2 * count, np.float32)
        recv = np.full_like(send, 7)
        with pytest.raises(pynickel.CollectiveMismatchError) as caught:
            comm.all_reduce(send, recv)
        assert (recv == 7).all()
        rows = str(caught.value).splitlines()
        texts.append("\n".join(" ".join(row.split()) for row in rows[2:-1]))
    works(comm)
    return texts


def test_counts_differ() -> None:
    """Scenario 12: other counts on one rank are the same error with the same table on all ranks, for any size, and nothing is written."""
    found = run(4, other_counts)
    assert found[0] == found[1] == found[2] == found[3]
    for count, text in zip((1, 100, 256_000), found[0], strict=True):
        assert f"{count}*" in text and f" {2 * count} " in text and "ncclAllReduce" in text


def other_operations(comm: Any) -> list[str]:
    odd, one = comm.rank == 2, np.ones(4)
    texts = []

    def mismatch(call: Any) -> None:
        with pytest.raises(pynickel.CollectiveMismatchError) as caught:
            call()
        texts.append(str(caught.value))

    mismatch(lambda: comm.all_gather(one, np.ones(16)) if odd else comm.all_reduce(one))
    mismatch(lambda: comm.all_reduce(one, op="max" if odd else "sum"))
    if not odd:
        mismatch(lambda: comm.bcast(one))
        comm.all_reduce(np.ones(4))
    else:
        mismatch(lambda: comm.all_reduce(one))  # one call ahead
        comm.all_reduce(np.ones(4))
    works(comm)
    return texts


def test_operations_differ() -> None:
    """Scenario 13: another operation, another reduction or a skipped call give a table: a row per rank with its call's number, marks."""
    for first, second, third in run(4, other_operations):
        assert "ncclAllGather*" in first and first.count("ncclAllReduce ") >= 3 and all(f"\n     {rank} " in first for rank in range(4))
        assert "max*" in second and "call" in second
        assert "ncclAllReduce*" in third and third.count("ncclBroadcast ") >= 3 and "3       ncclBroadcast" in third


def integer_averages(comm: Any, rows: list[tuple[str, list[int], int]]) -> None:
    for dtype, values, wanted in rows:
        for size in (1, 5, 13):
            assert comm.all_reduce(np.full(size, values[comm.rank], dtype), op="avg").tolist() == [wanted] * size, (dtype, values)


def test_integer_averages() -> None:
    """Scenario 20: an average of integers is the wrapped sum, divided toward zero, for every element."""
    two = [("i4", [1, 2], 1), ("i4", [-1, -2], -1), ("i4", [7, 7], 7), ("i1", [127, 127], -1), ("i8", [-7, 4], -1)]
    run(2, integer_averages, two, ranks="threads")
    run(3, integer_averages, [("i8", [1, 1, 2], 1), ("i4", [-1, -1, -3], -1)], ranks="threads")


def narrow(comm: Any) -> bytes:
    def reduced(values: tuple[Any, Any], dtype: str, op: str = "sum", name: str | None = None) -> Any:
        return comm.all_reduce(np.full(9, values[comm.rank], dtype), op=op, dtype=name)

    assert (reduced((2048, 1), "f2") == 2048).all()
    assert (reduced((65504, 65504), "f2") == np.inf).all()
    bf16 = reduced((0x4380, 0x3F80), "u2", name="bfloat16")  # 256 and 1
    assert (bf16 == 0x4380).all()
    nan = [reduced((np.nan, 1), "f4", op) for op in ("sum", "max", "min")]
    assert np.isnan(nan[0]).all() and (nan[1] == 1).all() and (nan[2] == 1).all()
    zero = reduced((-0.0, 0.0), "f8")
    assert (zero == 0).all() and not np.signbit(zero).any()
    rng = np.random.default_rng(comm.rank)
    noise = rng.standard_normal(1000).astype("f2")
    results = [comm.all_reduce(noise.copy()).tobytes() for _ in range(5)]
    assert len(set(results)) == 1
    return results[0] + bf16.tobytes() + nan[0].tobytes()


def test_narrow_floats() -> None:
    """Scenario 22: each step is rounded to the type, a number wins against a NaN in max and min, and all ranks have the same bits."""
    first, second = run(2, narrow)
    assert first == second


def overflowing(comm: Any) -> None:
    for dtype, values, op, wanted in (
        ("i1", (120, 100), "sum", -36), ("u1", (200, 100), "sum", 44), ("i8", (2**63 - 1, 1), "sum", -(2**63)),
        ("i1", (100, 3), "prod", 44), ("u4", (2**31, 2), "prod", 0), ("i8", (2**62, 2), "prod", -(2**63)),
    ):  # fmt: skip
        assert comm.all_reduce(np.full(5, values[comm.rank], dtype), op=op).tolist() == [wanted] * 5, (dtype, op)


def test_integer_overflow() -> None:
    """Scenario 24: sums and products of integers wrap, without an error and without saturation."""
    run(2, overflowing, ranks="threads")
