"""Config and CollConfig: every field arrives, and a field that the library does not know is an error that says who does."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder, build

import pynickel
from pynickel import CollConfig, Communicator, Config, UniqueId
from pynickel._nccl import ffi, lib
from pynickel.config import fields_of, since_of

ID = bytes(range(128))
EXAMPLES: dict[str, Any] = {"netName": "Socket", "commName": "inner", "blocking": True}
CALL_EXAMPLES: dict[str, Any] = {"algSelection": "ring", "ext": [(1, 2, 3)], "launchCompletionEvent": 4096, "forceAlgSelection": 0}


def value_of(field: str) -> Any:
    return EXAMPLES.get(field, CALL_EXAMPLES.get(field, 1))


def number(version: str) -> int:
    major, minor, patch = map(int, version.split("."))
    return major * 10000 + minor * 100 + patch if (major, minor) > (2, 8) else major * 1000 + minor * 100 + patch


@pytest.mark.parametrize("kind", [Config, CollConfig])
def test_every_field(kind: Any) -> None:
    """The arguments are the struct's fields, in its order."""
    arguments = list(inspect.signature(kind).parameters)
    assert arguments == list(fields_of(kind.STRUCT))


@pytest.mark.parametrize("field", fields_of("ncclConfig_t"))
def test_field_arrives(field: str, recording: Recorder) -> None:
    """A field of Config reaches the library, and all others are left undefined."""
    Communicator(4, ID, 1, library=recording.path, config=Config(**{field: value_of(field)})).abort()
    seen, initial = recording.struct("seen_config", "ncclConfig_t"), lib.pn_initial_ncclConfig_t
    for name in fields_of("ncclConfig_t"):
        found = getattr(seen, name)
        if name != field:
            assert found == getattr(initial, name)
        elif isinstance(value_of(field), str):
            assert found != ffi.NULL
        else:
            assert found == value_of(field)
    assert (seen.size, seen.magic, seen.version) == (ffi.sizeof("ncclConfig_t"), lib.NCCL_API_MAGIC, lib.NCCL_VERSION_CODE)


@pytest.mark.parametrize("field", fields_of("ncclConfig_t"))
def test_gate(field: str, recorder_path: Path, tmp_path: Path) -> None:
    """On the release before it a field is NotAvailableError with both versions, and the library is not asked."""
    since = since_of("ncclConfig_t", field)
    path = Path(shutil.copy(recorder_path, tmp_path))
    old = Recorder(path)
    old.set("set_version", number(since) - 1)
    config = Config(**{field: value_of(field)}, **({"maxCTAs": 4} if field == "minCTAs" else {}))
    library = pynickel.load(path)
    words = rf"Config\({field}=\) needs NCCL {since}; {'.'.join(map(str, library.version))} is loaded"
    with pytest.raises(pynickel.NotAvailableError, match=words):
        Communicator(4, ID, 1, library=library, config=config)
    assert old.names == []


@pytest.mark.parametrize("field", fields_of("ncclCollConfig_t"))
def test_call_field_arrives(field: str, recording: Recorder) -> None:
    """A field of CollConfig reaches the library."""
    comm = Communicator(4, ID, 1, library=recording.path)
    recording.forget()
    comm.all_reduce(np.zeros(3), config=CollConfig(**{field: value_of(field)}))
    assert recording.names == ["ncclAllReduceConfig"]
    seen, initial = recording.struct("seen_call_config", "ncclCollConfig_t"), lib.pn_initial_ncclCollConfig_t
    assert [name for name in fields_of("ncclCollConfig_t") if getattr(seen, name) != getattr(initial, name)] == [field]
    comm.abort()


def test_call_gates(tmp_path: Path) -> None:
    """A CollConfig needs NCCL 2.31.2, its newest field 2.32.3."""
    path = build(tmp_path)
    Recorder(path).set("set_version", 23102)
    comm = Communicator(4, ID, 1, library=path)
    comm.all_reduce(bytearray(1), config=CollConfig(minCTAs=2))
    with pytest.raises(pynickel.NotAvailableError, match=r"CollConfig\(launchCompletionEvent=\) needs NCCL 2.32.3; 2.31.2 is loaded"):
        comm.all_reduce(bytearray(1), config=CollConfig(launchCompletionEvent=8))
    comm.abort()
    path = build(tmp_path, lacks=["ncclAllReduceConfig"], name="older.so")
    comm = Communicator(4, ID, 1, library=path)
    with pytest.raises(pynickel.NotAvailableError, match="ncclAllReduceConfig needs NCCL 2.31.2"):
        comm.all_reduce(bytearray(1), config=CollConfig(minCTAs=2))
    comm.abort()


def test_every_collective_takes_one(recording: Recorder) -> None:
    """With config= each collective is NCCL's own form of it; sends and receives have none and say so."""
    comm = Communicator(4, ID, 1, library=recording.path)
    one, four, other = np.zeros(1), np.zeros(4), np.zeros(4)
    config = CollConfig(CTAPolicy=2)
    calls = {
        "AllReduce": lambda: comm.all_reduce(one, config=config), "Broadcast": lambda: comm.broadcast(one, config=config),
        "Reduce": lambda: comm.reduce(one, config=config), "AllGather": lambda: comm.all_gather(one, four, config=config),
        "ReduceScatter": lambda: comm.reduce_scatter(four, one, config=config),
        "AlltoAll": lambda: comm.all_to_all(four, other, config=config), "Gather": lambda: comm.gather(one, four, config=config),
        "Scatter": lambda: comm.scatter(four, one, config=config),
    }  # fmt: skip
    for name, call in calls.items():
        recording.forget()
        call()
        assert recording.names == [f"nccl{name}Config"]
    for call in (
        lambda: comm.send(one, 0, config=config), lambda: comm.recv(one, 0, config=config),
        lambda: comm.send_recv(one, 0, other, 0, config=config),
    ):  # fmt: skip
        with pytest.raises(pynickel.NotAvailableError, match="takes a CollConfig"):
            call()
    with pytest.raises(TypeError, match="config must be a CollConfig"):
        comm.all_reduce(one, config=Config())  # type: ignore[arg-type]
    comm.abort()


def test_on_the_cpu_library() -> None:
    """The CPU library takes both, checks their values, and names the field that is wrong."""
    with Communicator(1, UniqueId.create("host"), 0, library="host", config=Config(minCTAs=1, maxCTAs=8, commName="x")) as comm:
        assert comm.all_reduce(np.ones(3), config=CollConfig(algSelection="tree", forceAlgSelection=True)).tolist() == [1, 1, 1]
        assert comm.all_gather_v(np.ones(2), np.zeros(2), [2], config=CollConfig(minCTAs=1)).tolist() == [1, 1]
        with pytest.raises(pynickel.InvalidArgumentError, match="CTAPolicy is 9"):
            comm.all_reduce(np.ones(3), config=CollConfig(CTAPolicy=9))
    with pytest.raises(pynickel.InvalidArgumentError, match="nChannelsPerNetPeer"):
        Communicator(1, UniqueId.create("host"), 0, library="host", config=Config(nChannelsPerNetPeer=65))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [(lambda: Config(maxCTAs="4"), TypeError, "maxCTAs must be an int"), (lambda: Config(netName=4), TypeError, "netName must be a str"),  # type: ignore[arg-type]
     (lambda: Config(maxCTAs=2**31), ValueError, "maxCTAs"), (lambda: CollConfig(userProfilerTag=-1), ValueError, "userProfilerTag"),
     (lambda: Config(max_ctas=3), TypeError, "max_ctas"), (lambda: Config(netName="a\0b"), TypeError, "zero characters"),  # type: ignore[call-arg]
     (lambda: CollConfig(launchCompletionEvent="now"), TypeError, "CUDA event"),
     (lambda: CollConfig(launchCompletionEvent=-1), ValueError, "launchCompletionEvent"),
     (lambda: CollConfig(launchCompletionEvent=1 << 64), ValueError, "launchCompletionEvent"),
     (lambda: CollConfig(ext=5), TypeError, "ext must be a list"), (lambda: CollConfig(ext=[(1, 2)]), TypeError, "ext must be a list"),  # type: ignore[arg-type,list-item]
     (lambda: CollConfig(ext=[("a", 2, 3)]), TypeError, "ext must"), (lambda: CollConfig(ext=[(1, 1 << 70, 3)]), ValueError, "ext must")],  # type: ignore[list-item]
)  # fmt: skip
def test_bad_values(make: Any, error: type[Exception], words: str) -> None:
    """A value of the wrong kind is refused when the configuration is made, by the field's name."""
    with pytest.raises(error, match=words):
        make()


def test_old_libraries(tmp_path: Path) -> None:
    """Before 2.17 "undefined" is not known, so blocking is set; minCTAs alone is refused where those releases refuse it."""
    path = build(tmp_path)
    old = Recorder(path)
    old.set("set_version", 21403)
    Communicator(4, ID, 1, library=path, config=Config()).abort()
    assert old.get("seen_blocking") == 1
    path = build(tmp_path, name="newer.so")
    Recorder(path).set("set_version", 23007)
    with pytest.raises(ValueError, match="needs maxCTAs= too on NCCL before 2.31.2"):
        Communicator(4, ID, 1, library=path, config=Config(minCTAs=2))
    path = build(tmp_path, lacks=["ncclCommInitRankConfig"], name="oldest.so")
    with pytest.raises(pynickel.NotAvailableError, match="ncclCommInitRankConfig needs NCCL 2.14.3"):
        Communicator(4, ID, 1, library=path, config=Config(blocking=True))


def test_settings_are_values() -> None:
    """Configurations compare by what is set, show it, and go through pickle."""
    one = Config(minCTAs=1, maxCTAs=2)
    assert one == Config(maxCTAs=2, minCTAs=1) != Config() and repr(one) == "Config(minCTAs=1, maxCTAs=2)"
    assert pickle.loads(pickle.dumps(one)) == one
    assert CollConfig(minCTAs=1) != Config(minCTAs=1)


def test_extensions() -> None:
    """Vendor options become NCCL's linked list, in order, with numbers and texts."""
    made = CollConfig(ext=[(1, 2, 3), (4, 5, "six")]).struct(pynickel.load("host"), "ncclAllReduceConfig")
    first = made.ext
    assert (first.key.vendorId, first.key.optionId, first.val.i) == (1, 2, 3)
    assert (first.next.key.vendorId, ffi.string(first.next.val.s), first.next.next) == (4, b"six", ffi.NULL)


def test_several_ids(recording: Recorder) -> None:
    """A list of ids makes ncclCommInitRankScalable with all of them; more than ranks are refused."""
    Communicator(4, [ID, ID], 1, library=recording.path).abort()
    assert recording.names[0] == "ncclCommInitRankScalable" and dict(recording.calls)["ncclCommInitRankScalable"][1:4] == [4, 1, 2]
    with pytest.raises(ValueError, match="2 ids, but at most one per rank, 1"):
        Communicator(1, [ID, ID], 0, library=recording.path)
