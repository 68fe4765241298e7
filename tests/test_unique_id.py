"""UniqueId: 128 bytes that go anywhere unchanged."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import pynickel
from pynickel import UniqueId

AWKWARD = bytes([0, 0, 0x7F, 0x80, 0xFF, *range(5, 64), 0, *range(65, 127), 0])


@pytest.mark.parametrize("data", [AWKWARD, bytes(range(128)), b"\xff" * 128])
def test_round_trips(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 28: bytes, pickle, copy, text, an environment variable and a file give the same id back."""
    uid = UniqueId(data)
    monkeypatch.setenv("MY_ID", uid.hex())
    (tmp_path / "id").write_bytes(bytes(uid))
    ways = [
        UniqueId(bytes(uid)), UniqueId(bytearray(data)), UniqueId(memoryview(data)), UniqueId(uid), copy.deepcopy(uid),
        pickle.loads(pickle.dumps(uid)), UniqueId.fromhex(os.environ["MY_ID"]), UniqueId((tmp_path / "id").read_bytes()),
    ]  # fmt: skip
    assert all(way == uid and bytes(way) == data and hash(way) == hash(uid) for way in ways)
    assert bytes(pynickel.ffi.buffer(uid.struct())) == data


@pytest.mark.parametrize("size", [0, 127, 129])
def test_wrong_length(size: int) -> None:
    """An id of another length is refused with both lengths."""
    with pytest.raises(ValueError, match=f"128 bytes, not {size}"):
        UniqueId(bytes(size))


@pytest.mark.parametrize("data", ["x" * 128, tuple([-1] * 128), None, 128])
def test_wrong_type(data: Any) -> None:
    """Text, tuples of signed numbers and the like are refused, never guessed at."""
    with pytest.raises(TypeError, match="made from 128 bytes"):
        UniqueId(data)


def test_create() -> None:
    """Two ids are different, and have 128 bytes."""
    one, other = UniqueId.create(), UniqueId.create("host")
    assert one != other and len(one) == len(bytes(one)) == 128 and one != bytes(one)
    assert repr(one).startswith("<UniqueId ")


def test_zero_id() -> None:
    """An id of zeros is refused before the library is entered."""
    with pytest.raises(ValueError, match="all zeros"):
        pynickel.Communicator(1, bytes(128), 0)


def test_foreign_id() -> None:
    """An id that another kind of library has made is refused, in both directions."""
    with pytest.raises(ValueError, match="another library than the CPU library"):
        pynickel.Communicator(1, AWKWARD, 0, library="host")


def test_foreign_id_the_other_way(recorder_path: Path) -> None:
    """An id of the CPU library is refused for another library."""
    with pytest.raises(ValueError, match="made by the CPU library"):
        pynickel.Communicator(1, UniqueId.create("host"), 0, library=recorder_path)


def test_used_id(comm: pynickel.Communicator) -> None:
    """Scenario 30: An id that has made a communicator makes no second one, not even after the first is closed."""
    uid = UniqueId.create("host")
    first = pynickel.Communicator(1, uid, 0, library="host")
    with pytest.raises(pynickel.RendezvousError):
        pynickel.Communicator(1, uid, 0, library="host", timeout=2)
    first.close()
    with pytest.raises(pynickel.RendezvousError):
        pynickel.Communicator(1, uid, 0, library="host", timeout=2)
    comm.barrier()


def test_damaged_id() -> None:
    """An id of the CPU library with a changed byte is an error that says so."""
    data = bytearray(bytes(UniqueId.create("host")))
    data[12] ^= 0xFF
    with pytest.raises(pynickel.NCCLError):
        pynickel.Communicator(1, bytes(data), 0, library="host", timeout=2)
