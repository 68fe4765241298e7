"""The training helpers on communicators of every kind: some whose calls do not wait, none in a group, and what is no communicator."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.ranks import run

import pynickel
from pynickel import training


def without_waiting(comm: pynickel.Communicator) -> list[Any]:
    """Every helper on a communicator whose calls return before they are done."""
    r, n = comm.rank, comm.nranks
    found: list[Any] = []
    with comm.split(0, config=pynickel.Config(blocking=False)) as part:
        for number in range(5):
            many, one = [np.full(500_000, 1.0 + r), np.full(3, 10.0 * r)], np.full(500_000, 1.0 + r)
            training.average_gradients(part, many, weights=number or None)
            training.average_gradients(part, one)
            found += [many[0].min(), many[0].max(), many[1][0], one.min(), one.max()]
        parameters = [np.full(500_000, float(r)), np.zeros((2, 500_000))[:, ::2] + r]
        found.append(training.parameter_error(part, parameters))
        training.broadcast_parameters(part, parameters, root=1)
        found += [parameters[0].min(), parameters[0].max(), parameters[1].min(), training.parameter_error(part, parameters)]
        mean, variance, number = training.batch_statistics(part, np.full(500_000, float(r)))
        return [*found, mean, variance, number / 500_000 / n, training.agree_on_steps(part, 3 + r), part.state]


def test_communicators_that_do_not_wait() -> None:
    """With blocking=False each helper returns when its result is there, as with any communicator."""
    for found in run(2, without_waiting, kind="threads"):
        *values, state = found
        assert values == [1.5, 1.5, 5.0, 1.5, 1.5] * 5 + [0.25, 1.0, 1.0, 1.0, 0.0, 0.5, 0.25, 1.0, 3] and state == "ready"


def test_not_in_a_group(comm: pynickel.Communicator) -> None:
    """A group starts its calls at its end, but the helpers work on with the results: refused, as no communicator is; nothing changes."""
    two = [np.array([2.0]), np.array([4.0])]
    calls = (
        (training.average_gradients, two), (training.average_gradients, two[0]), (training.broadcast_parameters, two),
        (training.parameter_error, two), (training.batch_statistics, two[0]), (training.agree_on_steps, 3),
    )  # fmt: skip
    for call, argument in calls:
        with pytest.raises(TypeError, match="comm must be a Communicator, not NoneType None"):
            call(None, argument)
    with pynickel.group():
        for call, argument in calls:
            with pytest.raises(pynickel.InvalidUsageError, match=rf"{call.__name__}\(\) cannot be part of group\(\)"):
                call(comm, argument)
    training.average_gradients(comm, two)
    assert [array.tolist() for array in two] == [[2.0], [4.0]]


def test_not_after_the_end() -> None:
    """A communicator that was closed is refused by each helper's name, and the gradients are what they were, although they have weights."""
    comm = pynickel.Communicator(1, pynickel.UniqueId.create("host"), 0, library="host")
    comm.close()
    one, two = np.array([2.0]), [np.array([2.0]), np.array([4.0])]
    for call, arguments in (
        (training.average_gradients, (one, [3])), (training.average_gradients, (two, 3)), (training.broadcast_parameters, (two,)),
        (training.parameter_error, (two,)), (training.batch_statistics, (one,)), (training.agree_on_steps, (3,)),
    ):  # fmt: skip
        with pytest.raises(pynickel.CommunicatorClosedError, match=rf"{call.__name__}\(\) was not called"):
            call(comm, *arguments)
    assert [array.tolist() for array in (one, *two)] == [[2.0], [2.0], [4.0]]
