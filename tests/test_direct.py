"""The direct way of an operation, in C: it makes the call that the long way would make, or leaves everything to it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.processes import run
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, NCCLError, direct
from pynickel._nccl import lib

RANK, NRANKS = 1, 4
METHODS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send", "recv",
)  # fmt: skip
ONE_BUFFER = ("send", "recv")
OPERATED = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")


@pytest.fixture
def stub_comm(recording: Recorder) -> Iterator[Communicator]:
    """Rank 1 of 4 of the recording library, which knows the usual types."""
    made = Communicator(NRANKS, bytes(range(128)), RANK, library=recording.path)
    for dtype in ("f4", "i4", "u1"):
        made.all_reduce(np.ones(4, dtype))
    recording.forget()
    yield made
    made.abort()


def outcome(comm: Communicator, recording: Recorder, name: str, args: list[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """The calls of the library, and what came back, or the exception."""
    recording.forget()
    try:
        back = getattr(comm, name)(*args, **options)
    except Exception as error:
        return type(error), str(error), recording.calls
    return "returned", id(back), recording.calls


def buffers() -> dict[str, Any]:
    """Usual and unusual buffers of a part of four elements and of all sixteen, side by side and over each other."""
    block = np.zeros(64, np.float32)
    locked = np.zeros(4, np.float32)
    locked.flags.writeable = False
    return {
        "part": block[:4], "whole": block[16:32], "own part of whole": block[20:24], "other part of whole": block[24:28],
        "across whole": block[14:18], "wide": block[40:56], "rows": block[40:56].reshape(4, 4), "locked": locked, "none": None,
        "integers": np.zeros(4, np.int32), "gaps": np.zeros(8, np.float32)[::2], "odd": np.zeros(7, np.float32), "empty": block[:0],
        "bytes": bytearray(16), "swapped": np.zeros(4, ">f4"), "short": np.zeros(4, np.int16), "address": block.ctypes.data,
        "zero": 0, "negative": -8, "huge": 1 << 70, "true": True, "words": "part",
    }  # fmt: skip


def test_same_as_the_long_way(stub_comm: Communicator, recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the buffers, count, type, operator, root and stream: the same call with the same arguments, or the same refusal."""
    made = buffers()
    f32 = pynickel.float32
    typed: list[dict[str, Any]] = [
        {}, {"count": 4, "dtype": f32}, {"count": 4}, {"count": 1 << 59, "dtype": pynickel.int8}, {"stream": 5},
        {"count": 4, "dtype": "float32"}, {"count": -1, "dtype": f32}, {"count": True, "dtype": f32},
    ]  # fmt: skip
    numbers: list[tuple[Any, Any]] = [(pynickel.SUM, RANK), (pynickel.MAX, 3)]
    strange: list[tuple[Any, Any]] = [(pynickel.SUM, 4), ("max", True), (2, 0), (9, 0), (pynickel.SUM, -1), (None, 1 << 80)]
    cases: list[tuple[str, list[Any], dict[str, Any]]] = []
    for name in METHODS:
        pairs = [(one,) for one in made] if name in ONE_BUFFER else list(itertools.product(made, made))
        for names in pairs:
            usual = {"part", "whole", "own part of whole", "wide", "address"}.issuperset(names)
            for options in typed if usual else typed[:2]:
                for op, root in numbers + (strange if names in (("part",), ("part", "wide"), ("wide", "part")) else []):
                    args = [made[one] for one in names]
                    extra = {"op": op} if name in OPERATED else {}
                    if name in ROOTED or name in ONE_BUFFER:
                        extra["peer" if name in ONE_BUFFER else "root"] = root
                    cases.append((name, args, {**options, **extra}))
    found = [outcome(stub_comm, recording, *case) for case in cases]
    for name in METHODS:
        monkeypatch.setattr(direct, name, lambda *args: False)
    expected = [outcome(stub_comm, recording, *case) for case in cases]
    assert len(cases) > 5000
    differ = [(case, one, other) for case, one, other in zip(cases, found, expected, strict=True) if one != other]
    assert not differ, differ[:3]
    assert len({case[0] for case, one in zip(cases, found, strict=True) if one[0] == "returned"}) == len(METHODS)


def test_usual_arguments_are_direct(stub_comm: Communicator, recording: Recorder) -> None:
    """Arrays and addresses, in place and out of place, at the root and elsewhere, take the direct way in each operation."""
    made = buffers()
    part, whole, own, rows, at = made["part"], made["whole"], made["own part of whole"], made["rows"], made["address"]
    nothing, counted = (None, None, None, None), (4, pynickel.float32, None, None)
    op, here, there = pynickel.AVG, RANK, 2
    usual: dict[str, list[tuple[Any, ...]]] = {
        "all_reduce": [(part, None, *nothing, op), (part, own, *nothing, op), (at, at + 64, *counted, op)],
        "broadcast": [(part, own, *nothing, here), (part, None, *nothing, here)]
        + [(part, None, *nothing, there), (None, part, *nothing, there)],
        "reduce": [(part, None, *nothing, op, root) for root in (here, there)] + [(part, own, *nothing, op, here)],
        "all_gather": [(part, whole, *nothing), (own, whole, *nothing), (at, at + 64, *counted)],
        "reduce_scatter": [(whole, part, *nothing, op), (whole, own, *nothing, op), (rows, part, *nothing, op)],
        "all_to_all": [(whole, rows, *nothing), (at, at + 64, *counted)],
        "gather": [(part, whole, *nothing, here), (own, whole, *nothing, here), (part, None, *nothing, there)],
        "scatter": [(whole, part, *nothing, here), (whole, own, *nothing, here), (None, part, *nothing, there)],
        "send": [(part, None, *nothing, there), (at, None, *counted, there)],
        "recv": [(None, part, *nothing, there), (None, at, *counted, there)],
    }  # fmt: skip
    assert set(usual) == set(METHODS)
    for name, calls in usual.items():
        for args in calls:
            recording.forget()
            assert getattr(direct, name)(stub_comm, stub_comm._entry, *args) is True, (name, args)
            assert len(recording.names) == 1


def test_nothing_happens(stub_comm: Communicator, recording: Recorder) -> None:
    """In a group, and on a communicator that lets nobody in, the direct way does nothing."""
    array = np.ones(4, np.float32)
    args = (stub_comm, stub_comm._entry, array, None, None, None, None, None, pynickel.SUM)
    with pynickel.group():
        assert direct.all_reduce(*args) is False
    assert lib.pn_enter(stub_comm._guard) == 0
    assert direct.all_reduce(*args) is False
    lib.pn_leave(stub_comm._guard)
    assert recording.names == [] and direct.all_reduce(*args) is True
    stub_comm.abort()
    assert direct.all_reduce(*args) is False
    with pytest.raises(TypeError, match="ncclAllReduce: 2 arguments"):
        direct.all_reduce(*args[:2])


def test_results_other_than_success(stub_comm: Communicator, recording: Recorder) -> None:
    """What the library says reaches the caller as from every call: its error with its words, and the communicator's state."""
    array = np.ones(4, np.float32)
    recording.returns("ncclBroadcast", lib.ncclInvalidUsage)
    with pytest.raises(pynickel.InvalidUsageError, match="(?s)ncclBroadcast.*last words of the recorder"):
        stub_comm.broadcast(array)
    recording.returns("ncclSend", 77)
    with pytest.raises(NCCLError, match="ncclSend"):
        stub_comm.send(array, 2)
    assert stub_comm.state == "ready"


def test_no_references_are_lost(stub_comm: Communicator) -> None:
    """Calls that work, that fail, and that take the long way leave as many references as before."""
    import sys

    array, other = np.ones(4, np.float32), np.ones(4, np.int32)

    def rounds(number: int) -> list[int]:
        for _ in range(number):
            stub_comm.all_reduce(array)
            stub_comm.send(array, 2)
            with pytest.raises(ValueError):
                stub_comm.all_reduce(array, other)
        gc.collect()
        return [sys.getrefcount(obj) for obj in (array, other, array.dtype, np.ndarray, stub_comm, direct.all_reduce)]

    assert rounds(2) == rounds(500)


def test_a_second_import() -> None:
    """Who takes the package out of sys.modules and imports it anew has two, and each goes on, groups included, whichever is forgotten."""
    script = """
        import gc, sys
        import numpy as np, pynickel

        ones = np.ones(4, np.float32)

        def begun(package):
            comm = package.Communicator(1, package.UniqueId.create("host"), 0, library="host", timeout=10)
            comm.all_reduce(ones)
            return comm, package.direct.all_reduce, package.group, package.SUM

        def used(comm, all_reduce, group, op):
            comm.all_reduce(ones)
            args = comm, comm._entry, ones, None, None, None, None, None, op
            with group():
                assert all_reduce(*args) is False, "a group was open"
            assert all_reduce(*args) is True, "no group is open"

        def taken_out():
            names = [name for name in sys.modules if name.partition(".")[0] == "pynickel"]
            return {name: sys.modules.pop(name) for name in names}

        first = begun(pynickel)
        modules = taken_out()
        import pynickel
        second = begun(pynickel)
        assert second[2] is not first[2]
        used(*first), used(*second)
        second[0].close()
        del second, pynickel
        taken_out(), gc.collect()
        filler = [{number: number} for number in range(10000)]
        sys.modules.update(modules)
        used(*first)
        first[0].close()
        print("right")
    """
    result = run(script)
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr


def test_arrays_that_are_not_as_expected() -> None:
    """NumPy's arrays are read in place only if the first that is met agrees with its own words; other dtype objects are the same type."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    facts = (array.ctypes.data, 6, array.flags.num, id(array.dtype))
    from pynickel.buffer import numpy_dtypes

    for i, wrong in enumerate((array.ctypes.data + 4, 7, array.flags.num ^ 1, id(np.dtype("f8")))):
        given = (*facts[:i], wrong, *facts[i + 1 :])
        assert lib.pn_know_arrays(id(np.ndarray), id(array), *given, id(numpy_dtypes)) == 0
    assert lib.pn_know_arrays(id(np.ndarray), id(array), *facts, id(numpy_dtypes)) == 1
    copied = np.ones(3, array.dtype.newbyteorder("="))
    assert pynickel.buffer.facts(copied, True) == (copied.ctypes.data, 3, pynickel.float32)
