"""The odd-or-even example's parts: rounding, net, optimizers, rules, saved models."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import runpy
import sys
from decimal import ROUND_HALF_UP, Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest

import pynickel
from pynickel.memory import Memory

ODD_EVEN = Path(__file__).resolve().parent.parent / "examples" / "odd_even"
sys.path.insert(0, str(ODD_EVEN))  # the example's modules find each other as they do when it is run
arrays, datasets, evaluate, model, nesterov, network, optimizers, saved, settings = map(
    import_module, ["arrays", "datasets", "evaluate", "model", "nesterov", "network", "optimizers", "saved", "settings"]
)


def options(**given: Any) -> Any:
    """Settings of a new run."""
    return settings.fresh({"seed": 0, **given}, "float64")


@pytest.mark.parametrize("workers", range(1, 21))
def test_updates_per_epoch(workers: int) -> None:
    """An epoch has 10 / workers updates, a half rounded away from zero: 10, 5, 3, 3, 2 ... for 1, 2, 3, 4, 5 workers."""
    exact = Decimal(10) / workers
    assert options(workers=workers).updates_per_epoch == int(exact.quantize(Decimal(1), ROUND_HALF_UP))


@pytest.mark.parametrize(("given", "shares"), [({}, [1, 1, 1, 1]), ({"samples": 2}, [2] * 4), ({"batch": 10}, [3, 3, 2, 2])])
def test_samples_are_dealt_out(given: dict[str, int], shares: list[int]) -> None:
    """Each worker has its samples, or a batch is dealt out as evenly as it goes."""
    assert options(**given).shares == shares


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 3}, "--batch 3 leaves some of the 4 workers without a sample"),
        ({"workers": 21}, "give --updates"),
        ({"every": 2}, "--every 2 is for --share parameters"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], words: str) -> None:
    """Options that contradict each other are refused by name."""
    with pytest.raises(ValueError, match=words):
        options(**given)


def test_going_on_keeps_the_settings() -> None:
    """A saved run goes on with its own settings; one given otherwise is refused, the same one is not."""
    stored = options(workers=3).as_dict()
    assert settings.going_on(stored, {"workers": 3}, "FILE") == options(workers=3)
    with pytest.raises(ValueError, match="--workers 2: the run saved in FILE has 3"):
        settings.going_on(stored, {"workers": 2}, "FILE")


def test_nesterov_sequence() -> None:
    """The optimizer mixes its last two points by the sequence of 1983; its first step is plain descent."""
    gammas = []
    optimizer = nesterov.Nesterov(rate=1.0)
    x, last_y = np.array([1.0]), np.array([1.0])
    for _ in range(6):
        y = x - 1.0
        optimizer.step(x, np.array([1.0]))
        gammas.append(((x - y) / (last_y - y)).item())
        last_y = y
    assert gammas == pytest.approx([0, -0.281754, -0.434043, -0.531064, -0.598779, -0.648923], abs=1e-6)


def test_nesterov_bound() -> None:
    """On a convex quadratic whose slope changes by 1 / rate at most, the value falls below 2 |x|^2 / (rate (s + 1)^2)."""
    curvature = np.linspace(0.001, 1, 50)
    x = np.ones(50)
    optimizer = nesterov.Nesterov(rate=1.0)
    for step in range(1, 200):
        optimizer.step(x, curvature * x)
        assert (curvature * optimizer.state["y"] ** 2).sum() / 2 <= 2 * 50 / (step + 1) ** 2


def test_net_has_241_parameters() -> None:
    """The vector is 10 x 20 weights, 20 biases, 20 weights, 1 bias, each uniform within 1 / sqrt(inputs of its layer)."""
    values = model.initial_parameters(3)
    first, second = values[:220], values[220:]
    assert model.SIZE == values.size == 241
    assert 0.9 / np.sqrt(10) < abs(first).max() <= 1 / np.sqrt(10)
    assert 0.8 / np.sqrt(20) < abs(second).max() <= 1 / np.sqrt(20)


def test_gradient_is_the_slope_of_the_loss() -> None:
    """What a sample adds to the gradients agrees with differences of the loss, parameter by parameter, and samples add up."""
    parameters, gradients = model.initial_parameters(1), np.zeros(model.SIZE)
    net, inputs = model.Model(np, parameters, gradients), datasets.Inputs(np, "float64")
    samples = [(inputs[3], 1.0), (inputs[8], 0.0)]

    def loss() -> float:
        return sum(float((net.predict(x)[0, 0] - target) ** 2) for x, target in samples)

    assert float(sum(net.learn(*sample) for sample in samples)) == pytest.approx(loss())
    for index in range(model.SIZE):
        kept = parameters[index]
        parameters[index] = kept + 1e-6
        above = loss()
        parameters[index] = kept - 1e-6
        below = loss()
        parameters[index] = kept
        assert gradients[index] == pytest.approx((above - below) / 2e-6, abs=1e-8)


class StrictArrays:
    """The arrays of a library that refuses all that is not in the array API standard; it stands for CuPy."""

    xp, dtype = array_api_strict, "float64"

    def vector(self, count: int) -> Any:
        """Zeros."""
        return self.xp.zeros(count, dtype=self.xp.float64)

    def write(self, vector: Any, values: np.ndarray) -> None:
        """Put host values in."""
        vector[...] = self.xp.asarray(values)

    def read(self, vector: Any) -> np.ndarray:
        """The values in host memory."""
        return np.array(vector)


def steps(place: Any, optimizer: str, count: int) -> np.ndarray:
    """The parameters after a lone worker's updates."""
    chosen = options(optimizer=optimizer, workers=1, samples=3, updates=1)
    net = network.Network(place, chosen)
    net.take_part(chosen.shares, 0)
    place.write(net.parameters, model.initial_parameters(0))
    for _ in range(count):
        net.compute()
        net.gradients /= net.all
        net.optimizer.step(net.parameters, net.gradients)
    net.state = net.state  # a saved state is taken up again in the same place
    assert evaluate.error_rate(net.model, net.inputs, range(1, 11)) <= 1
    assert net.all_norms().count("e-0") == 4
    return place.read(net.parameters)


@pytest.mark.parametrize("optimizer", list(optimizers.OPTIMIZERS))
def test_only_the_array_api_is_used(optimizer: str) -> None:
    """Net, optimizers and queries run on a namespace that has nothing but the array API standard, with NumPy's numbers.

    To the last bit, but for NumPy before 2.3, whose `** 0.5` is a square root where that namespace's is a power.
    """
    here = steps(arrays.HostArrays(pynickel.load("host"), "float64"), optimizer, 20)
    assert not np.array_equal(here, model.initial_parameters(0))
    off = 0 if np.lib.NumpyVersion(np.__version__) >= "2.3.0" else 1e-9
    np.testing.assert_allclose(steps(StrictArrays(), optimizer, 20), here, rtol=off, atol=off)


def test_vectors_are_memory_of_nccl() -> None:
    """Parameters and gradients lie in memory from ncclMemAlloc, and the layers are views of them: NCCL works where the net does."""
    net = network.Network(arrays.HostArrays(pynickel.load("host"), "float64"), options())
    for vector, views in [(net.parameters, net.model.layers), (net.gradients, net.model.slopes)]:
        base = vector
        while not isinstance(base, Memory):
            base = base.base
        assert base.address <= vector.ctypes.data < base.address + base.nbytes
        assert sum(view.size for view in views) == vector.size == 241
        assert all(np.shares_memory(view, vector) for view in views)


def test_numbers_and_targets() -> None:
    """Numbers are 1 to 10, each as a batch of one with a single 1; odd is 1, even is 0; a stream goes on from its state."""
    stream = datasets.Numbers(7, datasets.TRAINING)
    assert set(stream.draw(1000)) == set(range(1, 11))
    other = datasets.Numbers(8, datasets.VALIDATION)
    other.state = stream.state
    assert other.draw(50) == stream.draw(50)
    inputs = datasets.Inputs(np, "float32")
    assert np.array_equal(np.concatenate([inputs[number] for number in range(1, 11)]), np.eye(10, dtype=np.float32))
    assert [datasets.target(number) for number in (1, 2, 9, 10)] == [1, 0, 1, 0]


def test_a_half_is_odd_in_validation_and_even_in_the_test() -> None:
    """Validation takes an output of exactly 0.5 for odd, the test script for even; above and below they agree."""
    verdict = runpy.run_path(str(ODD_EVEN / "test.py"))["verdict"]
    assert [evaluate.is_right(output, 1.0) for output in (0.49, 0.5, 0.51)] == [False, True, True]
    assert [evaluate.is_right(output, 0.0) for output in (0.49, 0.5, 0.51)] == [True, False, False]
    assert [verdict(output) for output in (0.49, 0.5, 0.51)] == ["even", "even", "odd"]


def example_model() -> Any:
    """Something to save, of two workers that differ."""
    states = [
        {
            "parameters": np.full(model.SIZE, float(rank)),
            "optimizer": {"lambda": 1.5, "y": np.full(model.SIZE, rank + 0.1)},
            "numbers": datasets.Numbers(rank, 1).state,
            "updates": 7,
        }
        for rank in range(2)
    ]
    progress = saved.Progress(epoch=2, updates=7, good=1, error=0.2, losses=[0.1, 1 / 3], errors=[1.0, 0.2])
    parameters = saved.average(states, [3, 1])
    return saved.Saved(parameters, options(workers=2, batch=4).as_dict(), progress, states, datasets.Numbers(0, 2).state)


def test_saved_model_comes_back(tmp_path: Path) -> None:
    """A file gives back every number to the last bit; its parameters are the workers' mean by their samples; no pickle in it."""
    written, path = example_model(), tmp_path / "model.npz"
    saved.save(path, written)
    read = saved.load(path)
    assert (read.settings, read.progress, read.validation) == (written.settings, written.progress, written.validation)
    assert np.array_equal(read.parameters, np.full(model.SIZE, 0.25))
    for mine, its in zip(read.states, written.states, strict=True):
        assert (mine["numbers"], mine["updates"], mine["optimizer"]["lambda"]) == (its["numbers"], 7, 1.5)
        assert np.array_equal(mine["parameters"], its["parameters"])
        assert np.array_equal(mine["optimizer"]["y"], its["optimizer"]["y"])
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that breaks off half-way leaves the file of before, whole, and nothing beside it."""
    path = tmp_path / "model.npz"
    saved.save(path, example_model())
    before = path.read_bytes()

    def break_off(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved.np, "savez", break_off)
    with pytest.raises(OSError, match="No space left"):
        saved.save(path, example_model())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_refused(tmp_path: Path) -> None:
    """What is no saved model, or half of one, or has a pickle in it, is a ValueError with the file's name."""
    path = tmp_path / "model.npz"
    saved.save(path, example_model())
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="model.npz is no model"):
            saved.load(path)
    np.savez(path, header=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="model.npz is no model"):
        saved.load(path)
