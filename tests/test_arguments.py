"""Arguments of the wrong kind: each public constructor and function refuses them by name and value, before anything happens."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pynickel
from pynickel import CollConfig, Communicator, Config, UniqueId, rendezvous, testing
from pynickel.training import shard

NO_NAME = (3, b"name", ["name"], object())
NO_FLAG = (3, 0, 1, "yes", None, object())
FLAGS = {
    *("blocking splitShare collnetEnable shrinkShare nvlinkCentricSched graphStreamOrdering launchOrderImplicit rmaEagerInit".split()),
    "forceAlgSelection",
}


@pytest.fixture
def pair() -> Iterator[Any]:
    """Both ranks of a communicator."""
    made = Communicator.init_all(2, "host")
    yield made
    pynickel.abort_all(made)


def refused(call: Callable[[Any], Any], values: Any, words: str) -> None:
    """Each value is a TypeError with these words and the value."""
    for value in values:
        with pytest.raises(TypeError) as caught:
            call(value)
        assert words in str(caught.value) and repr(value)[:40] in str(caught.value), caught.value


@pytest.mark.parametrize(
    "value", [np.array([0]), np.array([0, 1]), np.array(0.5), np.array(True), np.bool_(False), int, True, 1.0, "1"], ids=repr
)
def test_numbers(comm: Communicator, value: Any) -> None:
    """What is no int is refused by name and value, also where its type has the method __index__, which then refuses without either."""
    ones, uid = np.ones(4, np.float32), UniqueId.create("host")
    calls: dict[str, Callable[[Any], Any]] = {
        "root": lambda it: comm.broadcast(ones, root=it), "peer": lambda it: comm.send(ones, it), "color": lambda it: comm.split(it),
        "count": lambda it: comm.all_reduce(ones, count=it), "stream": lambda it: comm.all_reduce(ones, stream=it),
        "rank": lambda it: Communicator(1, uid, it, library="host"), "nranks": lambda it: Communicator(it, uid, 0, library="host"),
        "device": lambda it: Communicator(1, uid, 0, device=it, library="host"), "rank ": lambda it: shard(4, it, 1),
        "nbytes": lambda it: pynickel.mem_alloc(it, library="host"),
    }  # fmt: skip
    for name, call in calls.items():
        refused(call, [value], f"{name.strip()} ")


def test_names(pair: Any) -> None:
    """name= is a str or None wherever a communicator is made; no rank waits for one that was refused."""
    words = "name must be a str or None, not "
    uid = UniqueId.create("host")
    refused(lambda name: Communicator(2, uid, 0, library="host", name=name), NO_NAME, words)
    refused(lambda name: Communicator.grow_into(3, uid, 2, library="host", name=name), NO_NAME, words)
    one = pair[0]
    refused(lambda name: one.split(0, name=name), NO_NAME, words)
    refused(lambda name: one.shrink([1], name=name), NO_NAME, words)
    refused(lambda name: one.grow(3, name=name), NO_NAME, words)
    with one.shrink([1], name="alone") as alone:
        assert alone.name == "alone"


def test_flags(pair: Any) -> None:
    """A flag is True or False: anything else would be a yes."""
    one = pair[0]
    refused(lambda owned: Communicator.from_handle(one.handle, "host", owned), NO_FLAG, "owned must be True or False, not ")
    refused(lambda abort: one.shrink([1], abort=abort), [flag for flag in NO_FLAG if flag is not None], "abort must be True or False, not ")
    memory = pynickel.empty(4096, "uint8", library="host")
    for name in ("symmetric", "strict_ordering", "gin_only", "cft_counted"):
        refused(lambda flag, name=name: one.window(memory, **{name: flag}), NO_FLAG, f"{name} must be True or False, not ")  # type: ignore[misc]
    refused(lambda flag: testing.run(1, len, communicator=flag), NO_FLAG, "communicator must be True or False, not ")
    assert one.state == "ready"


@pytest.mark.parametrize("kind", [Config, CollConfig])
def test_configurations(kind: Any) -> None:
    """Every field that is a flag takes True, False, 0 and 1 alone; every other number takes no flag; texts are texts."""
    fields = [name for name in inspect.signature(kind).parameters if name not in ("ext", "launchCompletionEvent")]
    for name in fields:
        if name in FLAGS:
            refused(lambda value, name=name: kind(**{name: value}), (2, -1, 1.0, "1"), f"{name} must be True or False, not ")  # type: ignore[misc]
            assert kind(**{name: True}) == kind(**{name: 1})
        elif name in ("netName", "commName", "algSelection"):
            refused(lambda value, name=name: kind(**{name: value}), (2, True, b"x"), f"{name} must be a str")  # type: ignore[misc]
        else:
            refused(lambda value, name=name: kind(**{name: value}), (True, False), f"{name} is no flag, but ")  # type: ignore[misc]
            refused(lambda value, name=name: kind(**{name: value}), (1.0, "1", [1]), f"{name} must be an int")  # type: ignore[misc]
    assert FLAGS.intersection(fields) == {name for name in fields if "bool" in kind.__init__.__annotations__[name]}


def test_lists(pair: Any) -> None:
    """abort_all takes communicators, and aborts none if one of them is something else; a shape is no text."""
    for wrong in (3, pair[0], "comms", [*pair, 3], [None]):
        if wrong is pair[0]:
            continue
        with pytest.raises(TypeError, match="comms must be a list of communicators.*none has been aborted"):
            pynickel.abort_all(wrong)
    assert [comm.state for comm in pair] == ["ready", "ready"]
    refused(lambda shape: pynickel.empty(shape, library="host"), ("12", b"12"), "shape must be an int")
    with pytest.raises(TypeError, match=r"launchCompletionEvent must be a CUDA event or its handle, not 1\.5"):
        CollConfig(launchCompletionEvent=1.5)


def test_texts(pair: Any) -> None:
    """Names of C functions, ids in digits, bytes to exchange, libraries and variables of tests."""
    refused(pair[0].library.has, (3, b"ncclSend", None), "name must be the name of a C function, a str, not ")
    refused(lambda function: pynickel.check(0, function), (3, None), "function must be the name of what was called, a str, not ")
    refused(UniqueId.fromhex, (3, b"00", None), "text must be the 256 hexadecimal digits of a unique id, not ")
    with pytest.raises(ValueError, match="text must be the 256 hexadecimal digits of a unique id, not 'xy'"):
        UniqueId.fromhex("xy")
    refused(rendezvous.exchange, ("text", 3, [b"1"]), "data must be bytes, not ")
    refused(lambda library: testing.run(1, len, library=library), (3, None), "library must be 'host', 'nvidia', 'rccl' or a path")
    refused(lambda env: testing.run(1, len, env=env), (3, "A=1"), "env must be a mapping from names to values, or None, not ")
    with pytest.raises(TypeError, match=r"env\['A'\] must be a str, or None to take the variable away, not 1"):
        testing.run(1, len, env={"A": 1})  # type: ignore[dict-item]
