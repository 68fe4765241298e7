"""What a communicator and a library can be asked: properties, memory, parameters, encryption."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.recorder import Recorder, build

import pynickel
from pynickel import Communicator
from pynickel.config import fields_of
from pynickel.facts import CommProperties

ID = bytes(range(128))


def test_properties(comm: Communicator) -> None:
    """Every field of NCCL's struct is there, under NCCL's name and with Python's types."""
    found = comm.properties()
    assert list(fields_of("ncclCommProperties_t")) == list(CommProperties._fields)
    assert (found.rank, found.nRanks, found.hostRmaSupport, found.deviceApiSupport) == (0, 1, True, False)
    assert found.commHash and found.ginSupport == [False] * 64


@pytest.mark.parametrize(
    ("version", "asked", "known"),
    [
        (22902, 22902, ["rank", "ginType"]),
        (22907, 22907, ["nLsaTeams", "railedGinType"]),
        (23102, 23102, ["commHash"]),
        (23203, 23203, ["cftSupport"]),
        (29900, 23203, ["cftSupport"]),
    ],
)
def test_properties_of_older_libraries(version: int, asked: int, known: list[str], recorder_path: Path, tmp_path: Path) -> None:
    """The library is asked for no newer version than its own and ours; fields that it does not know are None."""
    import shutil

    path = Path(shutil.copy(recorder_path, tmp_path))
    old = Recorder(path)
    old.set("set_version", version)
    comm = Communicator(4, ID, 1, library=path)
    found = comm.properties()
    assert old.get("seen_version") == asked and found.rank == 1
    fields = list(CommProperties._fields)
    for name in known:
        assert getattr(found, name) is not None
    for name in fields[fields.index(known[-1]) + 1 :]:
        since = pynickel.config.numbers(pynickel.config.since_of("ncclCommProperties_t", name))  # type: ignore[attr-defined]
        assert (getattr(found, name) is None) == (since > comm.library.version)
    comm.abort()


def test_memory_stats(comm: Communicator) -> None:
    """Memory statistics are numbers, also while the communicator is suspended, which they tell."""
    found = comm.memory_stats()
    assert found.total >= found.persist > 0 and found.suspended is False
    comm.suspend()
    assert comm.memory_stats().suspended is True
    comm.resume()


def test_suspend_and_resume(comm: Communicator) -> None:
    """A suspended communicator refuses calls in words, and works again after resume()."""
    comm.suspend()
    assert comm.state == "suspended"
    with pytest.raises(pynickel.CommunicatorClosedError, match=r"resume\(\) has not been"):
        comm.all_reduce(bytearray(4))
    with pytest.raises(pynickel.CommunicatorClosedError):
        comm.suspend()
    comm.resume()
    assert comm.all_reduce(bytearray(b"\1\2")) == b"\1\2"
    with pytest.raises(pynickel.InvalidUsageError, match="not suspended"):
        comm.resume()
    comm.suspend()
    comm.close()
    assert comm.state == "closed"


def test_missing_functions(tmp_path: Path) -> None:
    """On a library that lacks them the newer methods say which release has them, and enter nothing."""
    names = {
        "properties": ("ncclCommQueryProperties", "2.29.2", ()),
        "memory_stats": ("ncclCommMemStats", "2.29.7", ()),
        "suspend": ("ncclCommSuspend", "2.29.7", ()),
        "split": ("ncclCommSplit", "2.18.1", (0,)),
        "shrink": ("ncclCommShrink", "2.27.3", ([0],)),
        "growth_id": ("ncclCommGetUniqueId", "2.29.2", ()),
        "grow": ("ncclCommGrow", "2.29.2", (5,)),
        "revoke": ("ncclCommRevoke", "2.28.7", ()),
        "register": ("ncclCommRegister", "2.19.1", (bytearray(8),)),
        "pre_mul_sum": ("ncclRedOpCreatePreMulSum", "2.11.4", (2, "int8")),
        "signal": ("ncclSignal", "2.29.2", (0,)),
        "wait_signal": ("ncclWaitSignal", "2.29.2", (0,)),
        "finalize": ("ncclCommFinalize", "2.14.3", ()),
    }
    path = build(tmp_path, lacks=[name for name, _, _ in names.values()])
    comm = Communicator(4, ID, 1, library=path)
    recording = Recorder(path)
    recording.forget()
    for method, (function, since, arguments) in names.items():
        with pytest.raises(pynickel.NotAvailableError, match=f"{function} needs NCCL {since}"):
            getattr(comm, method)(*arguments)
        assert comm.state == "ready", method
    assert recording.names == []
    comm.abort()


def test_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's parameters are a mapping, and can be read as what they are."""
    monkeypatch.setenv("NICKEL_TIMEOUT", "90")
    found = pynickel.load("host").parameters
    assert found["NICKEL_TIMEOUT"] == "90" and "NCCL_DEBUG" in found and len(found) == len(list(found)) > 3
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        assert found.read("NICKEL_TIMEOUT", kind) == 90
    assert found.read("NCCL_DEBUG_FILE", "str") == "" and found.raw("NICKEL_TIMEOUT").rstrip(b"\0") == b"90"
    assert "host library" in repr(found)
    with pytest.raises(KeyError):
        found["NO_SUCH_THING"]
    with pytest.raises(pynickel.InvalidArgumentError, match="not a parameter"):
        found.read("NO_SUCH_THING")
    with pytest.raises(pynickel.InvalidArgumentError, match="is a text"):
        found.read("NCCL_DEBUG_FILE", "int32")
    with pytest.raises(ValueError, match="kind must be one of int8"):
        found.read("NCCL_DEBUG_FILE", "float")


def test_dump(capfd: Any) -> None:
    """The library prints its parameters."""
    pynickel.load("host").parameters.dump()
    assert "NICKEL_TIMEOUT=" in capfd.readouterr().out


def test_encryption() -> None:
    """A key is checked; the CPU library has no encryption, and says so at the next init."""
    library = pynickel.load("host")
    for key in ("short", b"x" * 32, 3):
        with pytest.raises(ValueError, match="at least 32 bytes"):
            library.set_encryption(key)  # type: ignore[arg-type]
    library.set_encryption("k" * 32)
    try:
        with pytest.raises(pynickel.InvalidUsageError, match="encryption"):
            Communicator(1, pynickel.UniqueId.create("host"), 0, library="host")
    finally:
        library.set_encryption(None)
    Communicator(1, pynickel.UniqueId.create("host"), 0, library="host").close()
