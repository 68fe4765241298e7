"""The small cases about buffers, counts and types, between ranks that are processes: each must work, or fail well and leave no trace."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import ranks

import pynickel


def all_cases(comm: Any) -> dict[str, Any]:
    """What every case of two ranks saw; one start of ranks serves them all, and each ends with a sum that must be right."""
    import ml_dtypes

    def raised(call: Any) -> str:
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was raised"

    def still_good() -> bool:
        return bool((comm.all_reduce(np.full(3, comm.rank + 1.0)) == 3).all())

    def strided() -> Any:
        a = np.arange(16, dtype="i4").reshape(4, 4)
        texts = []
        for form in (a[:, 0], a.T):
            calls = ((comm.all_reduce,), (comm.broadcast,), (comm.gather, np.zeros(8, "i4")), (comm.reduce_scatter, np.zeros(2, "i4")),
                     (comm.send, 1 - comm.rank))  # fmt: skip
            texts += [raised(lambda call=call, rest=rest, form=form: call(form, *rest)) for call, *rest in calls]
        return texts, bool((a == np.arange(16).reshape(4, 4)).all())

    def length_one() -> Any:
        return [comm.all_reduce(form).tolist() for form in (np.arange(16)[::3][:1] + 5, np.ones((1, 5, 1))[:, ::1, :], np.zeros((0, 3)))]

    def hidden_copy() -> Any:
        x, y = np.full(4, comm.rank + 1.0), np.full(8, 5.0)
        return comm.all_reduce(x) is x, x.tolist(), raised(lambda: comm.all_reduce(y[::2])), y.tolist()

    def bytes_agree() -> Any:
        mine = np.zeros(16, "f4") if comm.rank == 0 else np.zeros(8, "f8")
        return raised(lambda: comm.all_reduce(mine))

    def types() -> Any:
        refused = [np.zeros(4, kind) for kind in (bool, "i2", "u2", object, ">f4", [("a", "f4")])]
        halves = np.full(4, 1.5).astype(ml_dtypes.bfloat16)
        comm.all_reduce(halves.view("u2"), dtype="bfloat16")
        z = np.full(2, 1 + 2j, "c8")
        return (
            [raised(lambda form=form: comm.all_reduce(form)) for form in refused],
            halves.astype("f8").tolist(), comm.all_reduce(z).tolist(),
            [raised(lambda op=op: comm.all_reduce(z, op=op)) for op in ("prod", "max", "min", "avg")],
        )  # fmt: skip

    def low_precision() -> Any:
        def summed(dtype: Any, first: float, second: float, op: str = "sum") -> Any:
            found = [comm.all_reduce(np.array([second if comm.rank else first], dtype), op=op) for _ in range(3)]
            return float(found[0][0]), len({one.tobytes() for one in found}) == 1

        nan = float("nan")
        return [summed("f2", 2048, 1), summed(ml_dtypes.bfloat16, 256, 1), summed("f2", 65504, 65504), summed("f4", -0.0, 0.0),
                *(summed("f4", nan, 1, op) for op in ("sum", "max", "min"))]  # fmt: skip

    cases = {"01": strided, "02": length_one, "03": hidden_copy, "11": bytes_agree, "19": types, "22": low_precision}
    found = {number: case() for number, case in cases.items()}
    return {**found, "usable": still_good(), "handle": comm.state, "version": pynickel.__version__}


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What both ranks saw."""
    return ranks.run(2, all_cases, deadline=20)


def test_strided_view(seen: Any) -> None:
    """Scenario 01: a strided or transposed view is refused by every call with its shape and strides, and no value changes."""
    for texts, untouched in (one["01"] for one in seen):
        assert untouched and len(texts) == 10
        assert all(text.startswith("NonContiguousError") and "shape (4,), strides (16,)" in text for text in texts[:5])
        assert all(text.startswith("NonContiguousError") and "shape (4, 4), strides (4, 16)" in text for text in texts[5:])


def test_length_one_axes(seen: Any) -> None:
    """Scenario 02: axes of length one may have any stride, and arrays without elements are fine."""
    assert all(one["02"] == [[10], [[[2.0]] * 5], []] for one in seen)


def test_no_hidden_copy(seen: Any) -> None:
    """Scenario 03: in place the same object comes back, reduced; a view with gaps is refused, never copied."""
    for same, values, text, others in (one["03"] for one in seen):
        assert same and values == [3.0] * 4 and text.startswith("NonContiguousError") and others == [5.0] * 8


def test_types_differ_and_bytes_agree(seen: Any) -> None:
    """Scenario 11: equal numbers of bytes do not hide that the ranks' types differ; both are told, and the communicator works on."""
    assert all(one["11"].startswith("CollectiveMismatchError") and "float32" in one["11"] and "float64" in one["11"] for one in seen)
    assert all(one["usable"] for one in seen)


def test_unusual_types(seen: Any) -> None:
    """Scenario 19: types that NCCL lacks are refused with the list; bfloat16 works by name; complex numbers are summed, nothing else."""
    for refused, halves, complexes, others in (one["19"] for one in seen):
        assert all(text.startswith("TypeError") and "Supported: int8, uint8" in text for text in refused)
        assert "view it as uint8" in refused[0]
        assert halves == [3.0] * 4 and complexes == [2 + 4j] * 2
        assert all(text.startswith("ValueError: op ") and "only SUM is right so" in text for text in others)


def test_low_precision(seen: Any) -> None:
    """Scenario 22: each step rounds to the type, the largest overflow to infinity, a NaN is added but not compared, bits never differ."""
    first, second = (one["22"] for one in seen)
    values = [value for value, _ in first]
    assert values[:3] == [2048, 256, float("inf")] and values[3] == 0 and values[4] != values[4] and values[5:] == [1, 1]
    assert all(same for _, same in [*first, *second]) and [str(one) for one in first] == [str(one) for one in second]


def three(comm: Any) -> Any:
    """The cases of three and of one rank's own buffers."""
    def raised(call: Any) -> str:
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was raised"

    k, r = 4, comm.rank
    base, apart, send = np.zeros(3 * k), np.zeros(3 * k), np.full(k, r + 1.0)
    base[r * k : (r + 1) * k] = r + 1
    comm.all_gather(send, apart)
    comm.all_gather(base[r * k : (r + 1) * k], base)
    other = np.zeros(3 * k)
    wrong = [other[k // 2 : k // 2 + k]] + ([other[:k]] if r else [])  # to rank 0 the second is right
    texts = [raised(lambda part=part: comm.all_gather(part, other)) for part in wrong]
    expected = hex(other.ctypes.data + r * k * 8)
    uneven = raised(lambda: comm.reduce_scatter(np.zeros(73), np.zeros(25)))

    untouched = np.full(6, 7.0)
    f32 = pynickel.float32
    for s, t in ((np.zeros(0, "f4"), untouched[:0].astype("f4")), (0, 0)):
        options: dict[str, Any] = {"count": 0, "dtype": f32}
        comm.all_reduce(s, t, **options)
        comm.broadcast(s, t, **options)
        comm.reduce(s, t, **options)
        comm.all_gather(s, t, **options)
        comm.reduce_scatter(s, t, **options)
        comm.all_to_all(s, t, **options)
        comm.gather(s, t, **options)
        comm.scatter(s, t, **options)
        comm.send_recv(s, (r + 1) % 3, t, (r - 1) % 3, **options)
    good = bool((comm.all_reduce(np.ones(2)) == 3).all())
    return base.tolist(), apart.tolist(), texts, expected, uneven, untouched.tolist(), good


@pytest.fixture(scope="module")
def seen_by_three() -> list[Any]:
    """What three ranks saw."""
    return ranks.run(3, three, deadline=20)


def test_zero_counts(seen_by_three: Any) -> None:
    """Scenario 04: nothing, by empty arrays and by null pointers, goes through every call, and the next sum is right."""
    assert all(untouched == [7.0] * 6 and good for *_, untouched, good in seen_by_three)


def test_in_place_all_gather(seen_by_three: Any) -> None:
    """Scenario 14: in place gives what out of place gives; a wrong start is an OverlapError that says the right one."""
    for rank, (base, apart, texts, right, *_) in enumerate(seen_by_three):
        assert base == apart == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
        assert len(texts) == (2 if rank else 1) and all(text.startswith("OverlapError") for text in texts)
        assert rank == 0 or all(f"send at {right}" in text for text in texts)


def test_sizes_that_do_not_divide(seen_by_three: Any) -> None:
    """Scenario 18: a size that does not divide is refused with the one to pad to, never rounded."""
    assert all("send has 73 elements, no multiple of 3 ranks; pad it to 75" in uneven for *_, uneven, _, _ in seen_by_three)


@pytest.mark.parametrize("buffer", [None, -8, 2**64, b"bytes", 1.5, True, "text", object()])
def test_not_a_pointer(comm: pynickel.Communicator, buffer: Any) -> None:
    """Scenario 26: what is no address is refused by the methods and by the raw functions, and never crashes; so is 0 with a count."""
    for recv in (None, 4096):
        with pytest.raises((TypeError, ValueError)):
            comm.all_reduce(buffer, recv, count=4, dtype="float32")
    with pytest.raises(ValueError, match="NULL"):
        comm.all_reduce(0, count=4, dtype="float32")
    raw = pynickel.lib.ncclAllReduce
    if buffer not in (b"bytes", -8, True):  # C takes bytes as memory, and numbers as cffi converts them
        with pytest.raises((TypeError, OverflowError)):
            raw(buffer, buffer, 4, 7, 0, pynickel.ffi.NULL, pynickel.ffi.NULL)


@pytest.mark.parametrize(("count", "error"), [(-1, ValueError), (2**64, ValueError), (3.0, TypeError), ("3", TypeError), (True, TypeError)])
def test_bad_counts(comm: pynickel.Communicator, count: Any, error: type[Exception]) -> None:
    """Scenario 06: counts that are none are refused before the call, for arrays and addresses; NumPy's integers are counts."""
    data = np.ones(4, "f4")
    for buffer in (data, data.ctypes.data):
        with pytest.raises(error, match="count must be"):
            comm.all_reduce(buffer, count=count, dtype="float32")
        comm.all_reduce(buffer, count=np.int64(3), dtype="float32")
    assert data.tolist() == [1] * 4
