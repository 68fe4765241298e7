"""The training helpers on NumPy arrays: agreed steps, averaged gradients, equal parameters, batch statistics."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.ranks import run

import pynickel
from pynickel import training
from pynickel.training import buckets


def caught(call: Any, *arguments: Any, **options: Any) -> Any:
    """The exception of a call."""
    try:
        return call(*arguments, **options)
    except Exception as error:
        return error


def all_steps(comm: pynickel.Communicator) -> list[Any]:
    """What rank 0 with 3 batches and the others with 4 agree on."""
    n = 3 if comm.rank == 0 else 4
    agreed = [caught(training.agree_on_steps, comm, n, policy) for policy in ("min", "pad", "error")]
    assert training.agree_on_steps(comm, np.int64(comm.rank), "min") == 0 == training.agree_on_steps(comm, 0, "pad")
    return [*agreed, training.agree_on_steps(comm, 5, "error"), caught(training.agree_on_steps, comm, comm.rank, "pad")]


def test_uneven_batches() -> None:
    """Scenario 76: with 3 batches against 4 all ranks agree on 3, on 4, or all raise UnevenBatchesError before the first step."""
    for least, most, error, same, empty in run(2, all_steps):
        assert (least, most, same) == (3, 4, 5)
        assert isinstance(error, pynickel.UnevenBatchesError) and isinstance(error, ValueError)
        assert "[3, 4]" in str(error) and error.batches == [3, 4]
        assert isinstance(empty, pynickel.UnevenBatchesError) and "rank 0 has no batch" in str(empty)


@pytest.mark.parametrize(("n", "policy", "kind"), [(-1, "min", ValueError), (1.0, "min", TypeError), (1, "max", ValueError)])
def test_agree_on_steps_refuses(comm: pynickel.Communicator, n: Any, policy: str, kind: type[Exception]) -> None:
    """A number that is none, and an unknown policy."""
    with pytest.raises(kind, match="must"):
        training.agree_on_steps(comm, n, policy)


# -- a net without a library: linear, tanh, linear ------------------------------------------------------------------

BATCH, STEPS = 12, 40
Worker = tuple[list[list[bytes]], list[float]]


def gradients(parameters: list[Any], x: Any, y: Any) -> tuple[list[Any], float]:
    """Gradients of the mean square error over these samples, and the sum of their errors."""
    first, bias, second, end = parameters
    hidden = np.tanh(x @ first + bias)
    off = hidden @ second + end - y
    back = off * (2 / max(len(x), 1))
    into = (back @ second.T) * (1 - hidden**2)
    return [x.T @ into, into.sum(0), hidden.T @ back, back.sum(0)], float((off**2).sum())


def train(comm: pynickel.Communicator, dtype: str) -> Worker:
    """A run with the same batches whatever the number of ranks: parameters' bits after each step, this rank's losses."""
    random = np.random.default_rng(comm.rank)  # each rank begins elsewhere, until the broadcast
    shapes = [(2, 8), (8,), (8, 1), (1,)]
    parameters = [random.normal(size=shape).astype(dtype) for shape in shapes]
    training.broadcast_parameters(comm, parameters)
    data = np.random.default_rng(100).uniform(-1, 1, size=(60, 2))
    x, y = data.astype(dtype), (data[:, :1] * data[:, 1:]).astype(dtype)
    bits, losses = [], []
    for step in range(STEPS):
        batch = np.random.default_rng([7, step]).permutation(60)[:BATCH]
        mine = training.shard(batch, comm.rank, comm.nranks, shuffle=False, remainder="uneven")
        grads, loss = gradients(parameters, x[mine], y[mine])
        training.average_gradients(comm, grads, weights=len(mine))
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter -= np.asarray(0.2, dtype) * grad
        bits.append([parameter.tobytes() for parameter in parameters])
        losses.append(loss)
    assert training.parameter_error(comm, parameters) == 0.0
    return bits, losses


def both(comm: pynickel.Communicator) -> list[Worker]:
    """The run in both types."""
    return [train(comm, "float64"), train(comm, "float32")]


def test_number_of_ranks_changes_nothing() -> None:
    """Scenario 77: 1 to 5 ranks with 12 samples together have one loss curve up to rounding, and equal bits after every step."""
    (alone,) = run(1, both)
    for nranks in (2, 3, 4, 5):  # 5 do not divide 12: shares of 3, 3, 2, 2, 2
        ranks = run(nranks, both, kind="threads" if nranks % 2 else "processes")
        for number, tolerance in ((0, 1e-12), (1, 1e-4)):
            curve = np.array(alone[number][1])
            assert curve[-1] < curve[0] / 2
            every, losses = zip(*(rank[number] for rank in ranks), strict=True)
            assert all(len({str(bits) for bits in step}) == 1 for step in zip(*every, strict=True))
            np.testing.assert_allclose(np.sum(losses, axis=0), curve, rtol=tolerance)


def averaging(comm: pynickel.Communicator) -> dict[str, Any]:
    """Averages of all kinds of arrays on one of two ranks, which have 3 and 1 samples."""
    r, own = comm.rank, (3, 1)[comm.rank]

    def averaged(array: Any, *arguments: Any, **options: Any) -> Any:
        result = training.average_gradients(comm, array, *arguments, **options)
        assert result is None
        return array

    pair = {"a": np.full((2, 2), 1.0 + r), "b": np.full(3, 10.0 * r, np.float32)}
    striped = np.full((3, 4), 1.0 + r)[:, ::2]
    return {
        "one": averaged(np.array([2.0, 4.0]) * (1 + r)),
        "one in NCCL's memory": averaged(filled(pynickel.empty(2), 1.0 + r)),
        "dict": averaged(pair),
        "weights": averaged([np.array([1.0 + r]), np.array([5.0 * r])], own),
        "all weights": averaged([np.array([1.0 + r])], [3, 1]),
        "an array of weights": averaged([np.array([1.0 + r])], np.array([3, 1])),
        "one with a weight": averaged(np.array([1.0 + r]), own),
        "weights of many digits": averaged([np.ones(2, np.float32), np.ones(2)], 0.1 * (1 + r)),
        "sums": averaged([np.array([1.0 + r])], own, reduction="sum"),
        "complex": averaged([np.array([1 + 2j, 3j]) * (1 + r), np.array(1j * r, np.complex64)]),
        "striped": averaged(striped),
        "striped on one rank": averaged(np.full((3, 4), 1.0 + r)[:, :: 1 + r][:, :2] if r else np.full((3, 2), 1.0)),
        "nobody here": averaged(np.full(2, np.nan if r else 3.0), 1 - r),
        "nobody here, two": averaged([np.full(2, np.nan if r else 3.0), np.ones(1)], [5, 0]),
        "none": averaged([]),
        "no elements": averaged([np.zeros((0, 3)), np.array(1.0 + r)]),
        # 40,000 + 40,000 is more than float16 can hold, 256 + 1 more than bfloat16 can tell from 256
        "float16": averaged([np.full(2, 40000, np.float16)]),
        "bfloat16": averaged([np.array([256 if r else 258], ml_dtypes.bfloat16)]),
        "refused": caught(training.average_gradients, comm, [np.arange(3)]),
        "no samples": caught(training.average_gradients, comm, [np.ones(3), np.ones(2)], 0),
        "still fine": averaged([np.ones(3) * r]),
    }


def filled(array: Any, value: float) -> Any:
    """The array with one value everywhere."""
    array[...] = value
    return array


def test_averages() -> None:
    """Gradients of every kind of array become their average in place: by ranks, by samples, of sums, of 16-bit and complex numbers."""
    for found in run(2, averaging):
        expected = {
            "one": [3, 6], "one in NCCL's memory": [1.5, 1.5], "weights": [1.25], "all weights": [1.25], "one with a weight": [1.25],
            "an array of weights": [1.25], "sums": [0.75], "float16": [40000] * 2, "bfloat16": [256], "still fine": [0.5] * 3,
        }  # fmt: skip
        for name, values in expected.items():
            got = found[name][0] if isinstance(found[name], list) else found[name]
            assert got.tolist() == values, name
        # float64 gradients are divided by a sum of weights in float64, whatever stands beside them.
        np.testing.assert_allclose(found["weights of many digits"][1], 1, rtol=1e-15)
        assert found["weights"][1].tolist() == [1.25]
        assert found["dict"]["a"].tolist() == [[1.5, 1.5]] * 2 and found["dict"]["b"].tolist() == [5.0] * 3
        assert found["complex"][0].tolist() == [1.5 + 3j, 4.5j] and found["complex"][1] == 0.5j
        assert found["striped"].tolist() == [[1.5, 1.5]] * 3
        assert found["striped on one rank"].tolist() == [[1.5, 1.5]] * 3
        assert found["nobody here"].tolist() == found["nobody here, two"][0].tolist() == [3.0, 3.0]
        assert found["none"] == [] and found["no elements"][1] == 1.5
        assert isinstance(found["refused"], TypeError) and "not int64" in str(found["refused"])
        assert isinstance(found["no samples"], ValueError) and "0 on every rank" in str(found["no samples"])


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        (np.ones(2), {"weights": [1, 2]}, "weights has 2 numbers for 1 ranks"),
        (np.ones(2), {"weights": -1}, "at least 0 and finite, not -1.0"),
        (np.ones(2), {"weights": float("nan")}, "at least 0 and finite, not nan"),
        (np.ones(2), {"weights": "many"}, "weights must be a number of samples"),
        (np.ones(2), {"weights": 10**400}, "at least 0 and finite, not inf"),
        (np.ones(2), {"reduction": "max"}, "reduction must be one of mean, sum, not 'max'"),
        ([[1.0, 2.0]], {}, "must be arrays of NumPy or CuPy, tensors of torch, or a torch module, not list"),
        (np.broadcast_to(1.0, 3), {}, r"arrays\[0\] of shape \(3,\) would be changed in place, but is read-only"),
        ([np.ones(2), np.frombuffer(bytes(8))], {}, r"arrays\[1\] of shape \(1,\) would be changed in place"),
        (5, {}, "must be a torch module, an array, or a list or dict of arrays, not int"),
    ],
)
def test_average_refuses(comm: pynickel.Communicator, arrays: Any, options: dict[str, Any], words: str) -> None:
    """What cannot be averaged is refused with its name, before the library is entered."""
    with pytest.raises((TypeError, ValueError), match=words):
        training.average_gradients(comm, arrays, **options)


def test_buckets_are_kept(comm: pynickel.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of arrays has one set of buckets, of a limited size, made at the first step; a communicator's go with it."""
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 64)
    grads = [np.ones(3), np.ones(6), np.ones(2, np.float32), np.ones(20), np.ones(3, np.float32)]
    training.average_gradients(comm, grads)
    made = list(buckets.by_form[comm].values())
    training.average_gradients(comm, [grad + 1 for grad in grads])
    assert list(buckets.by_form[comm].values()) == made
    assert [bucket.which for bucket in made[0].buckets] == [[0], [1], [3], [2, 4]]
    for size in range(2, 2 * buckets.SETS):
        training.average_gradients(comm, [np.ones(size), np.ones(1)])
    assert len(buckets.by_form[comm]) == buckets.SETS
    others = len(buckets.by_form)
    with pynickel.Communicator(1, pynickel.UniqueId.create("host"), 0, library="host") as short:
        training.average_gradients(short, grads)
        assert len(buckets.by_form) == others + 1
    del short
    assert len(buckets.by_form) == others


def stepping(comm: pynickel.Communicator) -> list[Any]:
    """Parameters of many types, some with gaps, before and after a broadcast from rank 2; and how far apart they are."""
    r = comm.rank
    parameters = [
        np.full((2, 3), r, np.float32), np.array(r % 2 == 0), np.full(5, r, np.int64), np.full((2, 4), 1.0 * r)[:, 1::2],
        np.zeros((0, 2)), np.array(r + 1j), np.full(3, r, ml_dtypes.bfloat16),
    ]  # fmt: skip
    apart = training.parameter_error(comm, [np.array([0.0, 1.0 * r]), np.array([[3.0]])])
    # However little or much they are apart, they are not the same: squares may be too small or too large for a float.
    small, large = (training.parameter_error(comm, [np.array([size * r])]) for size in (1e-200, 1e200))
    assert small > 0 and large == np.inf
    lost = training.parameter_error(comm, [np.array([1.0, np.nan if r == 1 else 1.0])])
    training.broadcast_parameters(comm, parameters, root=2)
    same = training.parameter_error(comm, [*parameters, np.array([0.1, 1 / 3, 1e-300])])
    frozen = [np.frombuffer(bytes(8)), np.zeros((2, 4))[:, ::2]]
    frozen[1].flags.writeable = False
    refused = [str(caught(training.broadcast_parameters, comm, [one], root=(r + 1) % comm.nranks)) for one in frozen]
    assert all("would be changed in place" in words for words in refused)
    for root, kind in ((comm.nranks, ValueError), (-1, ValueError), (1.0, TypeError)):
        assert all(isinstance(caught(training.broadcast_parameters, comm, some, root), kind) for some in ([], [np.zeros(0)], frozen))
    return [apart, lost, same, [array.tolist() for array in parameters], training.parameter_error(comm, [])]


def test_in_step() -> None:
    """A broadcast gives all ranks the root's values, whatever their type; the error is exactly 0 then, and NaN tells of a NaN."""
    for apart, lost, same, values, none in run(3, stepping):
        # 0, 1 and 2 are 1, 0 and 1 from their mean: squares 1, 0, 1 in half of the first array, nothing in the second
        assert apart == pytest.approx(2 / 3 / 2 / 2) and np.isnan(lost) and same == 0.0 and none == 0.0
        assert values == [[[2.0] * 3] * 2, True, [2] * 5, [[2.0] * 2] * 2, [], 2 + 1j, [2.0] * 3]


def statistics(comm: pynickel.Communicator) -> list[Any]:
    """Mean and variance of samples that the ranks have 4, 1 and none of."""
    values = np.random.default_rng(3).normal(1e4, 1, size=(5, 3, 2))
    own = values[[slice(0, 4), slice(4, 5), slice(0, 0)][comm.rank]]
    everything = training.batch_statistics(comm, own, axis=(0, 1, 2))
    turned = training.batch_statistics(comm, np.asfortranarray(own))  # what is left of it is not in C order either
    for one, other in zip(turned, training.batch_statistics(comm, own), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    return [training.batch_statistics(comm, own), training.batch_statistics(comm, own, axis=(0, -1)), everything, values]


def test_batch_statistics() -> None:
    """Mean, variance and number are those of all ranks' values together, also where a rank has none and the mean is large."""
    for *found, values in run(3, statistics):
        for (mean, variance, number), axis in zip(found, (0, (0, 2), (0, 1, 2)), strict=True):
            np.testing.assert_allclose(mean, values.mean(axis), rtol=1e-13)
            np.testing.assert_allclose(variance, values.var(axis), rtol=1e-10)
            assert number == values.size / np.size(mean)


@pytest.mark.parametrize(
    ("values", "axis", "words"),
    [
        (np.zeros((0, 3)), 0, "no rank has a value along axis 0"),
        (np.arange(3), 0, "not int64"),
        (np.ones((2, 3)), 5, "axis 5 is none of the 2 axes"),
        (np.ones((2, 3)), (0, -2), "axis has -2 twice"),
        (np.array(3.0), 0, "axis 0 is none of the 0 axes"),
        (np.ones((2, 3)), 0.5, "axis must be an int, not 0.5"),
    ],
)
def test_statistics_refuse(comm: pynickel.Communicator, values: Any, axis: Any, words: str) -> None:
    """No value on any rank has no mean; whole numbers must be converted by whoever knows to what; an axis that is none."""
    with pytest.raises((TypeError, ValueError), match=words):
        training.batch_statistics(comm, values, axis)
