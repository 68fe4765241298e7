"""The parameters of the CPU library: the environment variables that it looks at, read through ncclParam*."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
from pathlib import Path

import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, SUCCESS
from helpers.host_structs import INTEGERS, library

NUMBER, TEXT = "NICKEL_TIMEOUT", "NCCL_DEBUG_FILE"


def bind(key: str) -> c_void_p:
    """ncclParamBind."""
    handle = c_void_p()
    host_c.check(library().ncclParamBind(byref(handle), key.encode()))
    assert handle.value
    return handle


def as_number(key: str, suffix: str) -> int | None:
    """A parameter through one of the eight integer functions; None where it is refused."""
    value = INTEGERS[suffix](77)
    code = getattr(library(), f"ncclParamGet{suffix}")(bind(key), byref(value))
    assert code == SUCCESS or (code == INVALID_ARGUMENT and value.value == 77)
    return value.value if code == SUCCESS else None


def keys() -> list[str]:
    """All keys."""
    table, n = POINTER(c_char_p)(), c_int(-1)
    host_c.check(library().ncclParamGetAllParameterKeys(byref(table), byref(n)))
    return [table[i].decode() for i in range(n.value)]


def value_of(key: str) -> str:
    """A parameter as text."""
    value, length = c_char_p(), c_int(-1)
    host_c.check(library().ncclParamGetParameter(key.encode(), byref(value), byref(length)))
    assert length.value == len(value.value or b"")
    return (value.value or b"").decode()


@forks.nursery()
def test_numbers() -> None:
    """A number is its environment variable or its default, in every integer type that it fits; elsewhere it is ncclInvalidArgument."""
    os.environ.pop(NUMBER, None)
    assert {suffix: as_number(NUMBER, suffix) for suffix in INTEGERS} == {
        "I8": None, "U8": None, **dict.fromkeys(("I16", "I32", "I64", "U16", "U32", "U64"), 1800)
    }  # fmt: skip
    for text, fits in (("127", set(INTEGERS)), ("128", set(INTEGERS) - {"I8"}), ("65535", {"I32", "I64", "U16", "U32", "U64"})):
        os.environ[NUMBER] = text
        for suffix in INTEGERS:
            assert as_number(NUMBER, suffix) == (int(text) if suffix in fits else None), (text, suffix)
        assert value_of(NUMBER) == text
    os.environ[NUMBER] = "5"
    assert as_number(NUMBER, "I32") == 5


@forks.nursery()
def test_texts() -> None:
    """A text is its environment variable or empty; it is copied as far as there is room, with what all of it needs; it is no number, and
    numbers are no texts."""
    os.environ.pop(TEXT, None)
    out, room, needed = c_char_p(), ctypes.create_string_buffer(b"#" * 16), c_int()
    lib, text, number = library(), bind(TEXT), bind(NUMBER)
    for value in ("", "/tmp/some%h", "x" * 300):
        os.environ[TEXT] = value
        host_c.check(lib.ncclParamGetStr(text, byref(out)))
        assert out.value == value.encode() and value_of(TEXT) == value
        for size in (0, 1, 5, 16):
            room.raw = b"#" * 17
            host_c.check(lib.ncclParamGet(text, room if size else None, size, byref(needed)))
            assert needed.value == len(value) + 1
            if size:
                assert room.value == value.encode()[: size - 1] and room.raw[size:] == b"#" * (17 - size)
        host_c.check(lib.ncclParamGet(text, room, 16, None))
    assert lib.ncclParamGetStr(number, byref(out)) == INVALID_ARGUMENT
    assert all(as_number(TEXT, suffix) is None for suffix in INTEGERS)


@forks.nursery()
def test_arguments() -> None:
    """Unknown keys, NULL pointers, and handles that were not bound are ncclInvalidArgument."""
    lib, handle, out, n = library(), c_void_p(), c_char_p(), c_int()
    number, room = bind(NUMBER), ctypes.create_string_buffer(16)
    for key in (b"", b"NCCL_DEBU", b"nccl_debug", b"NCCL_DEBUG ", b"PATH"):
        assert lib.ncclParamBind(byref(handle), key) == INVALID_ARGUMENT
        assert lib.ncclParamGetParameter(key, byref(out), byref(n)) == INVALID_ARGUMENT
    assert lib.ncclParamBind(None, b"NCCL_DEBUG") == lib.ncclParamBind(byref(handle), None) == INVALID_ARGUMENT
    assert lib.ncclParamGetParameter(b"NCCL_DEBUG", None, byref(n)) == lib.ncclParamGetParameter(None, byref(out), None) == INVALID_ARGUMENT
    assert lib.ncclParamGetParameter(b"NCCL_DEBUG", byref(out), None) == SUCCESS
    table = POINTER(c_char_p)()
    assert lib.ncclParamGetAllParameterKeys(None, byref(n)) == lib.ncclParamGetAllParameterKeys(byref(table), None) == INVALID_ARGUMENT
    for wrong in (None, ctypes.addressof(room), 8):
        for suffix, kind in INTEGERS.items():
            assert getattr(lib, f"ncclParamGet{suffix}")(wrong, byref(kind())) == INVALID_ARGUMENT
            assert getattr(lib, f"ncclParamGet{suffix}")(number, None) == INVALID_ARGUMENT
        assert lib.ncclParamGetStr(wrong, byref(out)) == lib.ncclParamGet(wrong, room, 16, byref(n)) == INVALID_ARGUMENT
    assert lib.ncclParamGetStr(bind(TEXT), None) == INVALID_ARGUMENT
    assert lib.ncclParamGet(number, None, 4, byref(n)) == lib.ncclParamGet(number, room, -1, byref(n)) == INVALID_ARGUMENT


@forks.nursery()
def test_all_keys() -> None:
    """The table of keys names every variable that this library reads, each can be bound and read."""
    found = keys()
    assert len(set(found)) == len(found)
    assert {"NICKEL_TIMEOUT", "NICKEL_TRACE", "NICKEL_FAULT", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_COMM_BLOCKING"} <= set(found)
    for key in found:
        bind(key)
        value_of(key)
    assert keys() == found


@pytest.mark.parametrize("value", ["", "WARN"])
def test_dump(value: str) -> None:
    """ncclParamDumpAll prints every key with its value, one a line."""
    code = f"import ctypes; ctypes.CDLL({str(host_c.path())!r}).ncclParamDumpAll()"
    env = {**os.environ, "NCCL_DEBUG": value, NUMBER: "12"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=20, check=True)
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert lines[NUMBER] == "12" and lines["NCCL_DEBUG"] == value and lines["NCCL_COMM_BLOCKING"] == "1" and len(lines) >= 6


def test_every_variable_is_a_key() -> None:
    """No variable is looked up in the environment that is not among the keys."""
    sources = Path(__file__).resolve().parent.parent.joinpath("host").glob("*.c")
    looked_up = {name for source in sources for name in re.findall(r'getenv\("(\w+)"\)', source.read_text())}
    assert looked_up and looked_up <= set(keys())
