"""The loader in C: one handle and one table per library, errors instead of crashes, and a guard that keeps misuse out of the library."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.c import CDEF, ROOT, shared_library

from pynickel._nccl import ffi, lib

TOY = """
#include "all.h"
#include <unistd.h>
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
  int sum = 0;
  for (int i = 0; i < 128; i++) sum += id.internal[i];
  *comm = (ncclComm_t)(long)(sum * 100 + nranks * 10 + rank);
  return ncclSuccess;
}
ncclResult_t ncclGetVersion(int *version) { *version = VERSION; return ncclSuccess; }
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { *count = (int)(long)comm; return ncclSuccess; }
"""
BLOCKS = """
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t s)
{
  char byte;
  (void)type, (void)op, (void)comm;
  if (write((int)(long)send, "x", 1) != 1 || read((int)(long)recv, &byte, 1) != 1) return ncclSystemError;
  return (ncclResult_t)count + (ncclResult_t)(long)s;
}
ncclTeam_t ncclTeamWorld(ncclComm_t comm) { (void)comm; return (ncclTeam_t){4, 3, 2}; }
"""
INTERRUPT = """
static int (*stored)(void);
void nickelSetInterruptCheck(int (*check)(void)) { stored = check; }
ncclResult_t ncclGroupStart(void) { return stored ? stored() : -1; }
"""


def toy(path: Path, version: int, *more: str, flags: tuple[str, ...] = ()) -> Path:
    return shared_library(path, TOY + "".join(more), f"-I{CDEF}", f"-DVERSION={version}", *flags)


def try_open(path: str | Path) -> tuple[Any, str]:
    error = ffi.new("char[1000]")
    return lib.pn_open(os.fsencode(path), error, len(error)), ffi.string(error).decode()


def opened(path: Path) -> Any:
    table, error = try_open(path)
    assert table, error
    return table


def version(table: Any) -> int:
    number = ffi.new("int *")
    assert lib.ncclGetVersion(table, number) == 0
    return int(number[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return toy(folder / "libplain.so", 20405)


@pytest.fixture(scope="module")
def full(folder: Path) -> Path:
    return toy(folder / "libfull.so", 23203, BLOCKS)


@pytest.fixture
def comm(full: Path) -> Iterator[Any]:
    guard = lib.pn_comm_new(opened(full))
    guard.comm = ffi.cast("ncclComm_t", 77)
    yield guard
    lib.pn_comm_free(guard)


def test_libraries_stand_side_by_side(plain: Path, full: Path) -> None:
    """Each table calls its own library, whatever else is loaded."""
    one, other = opened(plain), opened(full)
    assert (version(one), version(other), version(one)) == (20405, 23203, 20405)


def test_one_file_has_one_table(plain: Path, folder: Path) -> None:
    """The same file, opened again or by another name, gives the table it has."""
    link = folder / "link.so"
    link.symlink_to(plain)
    assert opened(plain) == opened(plain) == opened(link)
    assert ffi.string(lib.pn_path(opened(link))).decode() == str(plain)


def test_dependency_does_not_fill_gaps(full: Path, folder: Path) -> None:
    """A function that only a dependency of the library has counts as missing, so that two libraries are never mixed in a table."""
    path = toy(folder / "libleans.so", 20804, flags=("-Wl,--no-as-needed", str(full)))
    table = opened(path)
    call = next(i for i in range(lib.pn_symbol_count()) if ffi.string(lib.pn_symbol_at(i).name) == b"ncclAllReduce")
    assert lib.pn_address(table, call) == ffi.NULL != lib.pn_address(opened(full), call)
    assert lib.ncclAllReduce(table, ffi.NULL, ffi.NULL, 0, 0, 0, ffi.NULL, ffi.NULL) == lib.PN_MISSING


def test_missing_functions_return_a_mark(plain: Path) -> None:
    """A call of a missing function returns a number that is no result, or nothing, and does not crash."""
    table = opened(plain)
    assert lib.ncclCommAbort(table, ffi.NULL) == lib.ncclLLA2ACalcSlots(table, 1, 1) == lib.PN_MISSING > lib.ncclNumResults
    assert lib.ncclGetErrorString(table, 0) == ffi.NULL
    team = lib.ncclTeamWorld(table, ffi.NULL)
    assert (team.nRanks, team.rank, team.stride) == (0, 0, 0)
    assert lib.ncclParamDumpAll(table) is None


def test_structs_by_value(full: Path) -> None:
    """A unique id arrives whole when it is passed by value, and a team comes back by value."""
    table = opened(full)
    unique, handle = ffi.new("ncclUniqueId *", {"internal": b"\1" * 128}), ffi.new("ncclComm_t *")
    assert lib.ncclCommInitRank(table, handle, 5, unique[0], 4) == 0
    assert int(ffi.cast("long", handle[0])) == 12854
    team = lib.ncclTeamWorld(table, handle[0])
    assert (team.nRanks, team.rank, team.stride) == (4, 3, 2)


def test_index_out_of_range(plain: Path) -> None:
    """There is no symbol and no address beyond the table's ends."""
    for index in (-1, lib.pn_symbol_count()):
        assert lib.pn_symbol_at(index) == lib.pn_address(opened(plain), index) == ffi.NULL


def bad_paths(folder: Path) -> dict[str, tuple[str | Path, str]]:
    (folder / "text.so").write_text("not a library\n" * 100)
    (folder / "empty.so").touch()
    (folder / "folder.so").mkdir()
    os.mkfifo(folder / "pipe.so")
    shared_library(folder / "libother.so", "int other(void) { return 0; }\n")
    return {
        "absent": (folder / "nothing.so", "No such file"),
        "empty name": ("", "path of the library is empty"),
        "text": (folder / "text.so", "ELF"),
        "empty file": (folder / "empty.so", "file too short"),
        "directory": (folder / "folder.so", "is a directory"),
        "pipe": (folder / "pipe.so", "not a regular file"),
        "other library": (folder / "libother.so", "exports no ncclCommInitRank"),
        "unknown bare name": ("libno-such-nccl.so", "libno-such-nccl.so"),
    }


def test_bad_paths(tmp_path: Path) -> None:
    """A path that leads to no NCCL library gives a text that says why, and no table."""
    for kind, (path, reason) in bad_paths(tmp_path).items():
        table, error = try_open(path)
        assert not table, kind
        assert reason in error and str(path) in error, (kind, error)


CUT = """
import os, sys
from pynickel._nccl import ffi, lib
whole = open(sys.argv[1], "rb").read()
told = set()
for size in range(0, len(whole), 97):
    path = f"{sys.argv[2]}/cut{size}.so"
    with open(path, "wb") as file:
        file.write(whole[:size])
    error = ffi.new("char[1000]")
    if not lib.pn_open(path.encode(), error, len(error)):
        told.add(ffi.string(error).decode().rpartition(path + ": ")[2][:12])
    os.unlink(path)
print(sorted(told))
"""


def test_truncated_library(full: Path, tmp_path: Path) -> None:
    """A library cut at any length is refused or works: the process does not fault."""
    done = subprocess.run([sys.executable, "-c", CUT, str(full), str(tmp_path)], capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "is truncated" in done.stdout and "file too sho" in done.stdout


def call(comm: Any, send: int = 0, recv: int = 0) -> int:
    return int(lib.comm_ncclAllReduce(comm, send, recv, 30, 7, 0, 4))


def test_guarded_call_passes_the_communicator(comm: Any) -> None:
    """A guarded call reaches the library with the communicator's handle."""
    count = ffi.new("int *")
    assert lib.comm_ncclCommCount(comm, count) == 0
    assert count[0] == 77


def test_guarded_call_is_missing_too(plain: Path) -> None:
    """A guarded call of a missing function returns the same mark as a plain one, and leaves the communicator free."""
    guard = lib.pn_comm_new(opened(plain))
    assert call(guard) == call(guard) == lib.PN_MISSING
    lib.pn_comm_free(guard)


def test_closed_communicator(comm: Any) -> None:
    """After state is set no call enters the library, until it is cleared."""
    count = ffi.new("int *", -1)
    comm.state = 3
    assert lib.comm_ncclCommCount(comm, count) == lib.pn_enter(comm) == lib.PN_CLOSED
    assert count[0] == -1
    comm.state = 0
    assert lib.comm_ncclCommCount(comm, count) == 0


def test_second_thread_is_refused(comm: Any) -> None:
    """While one thread is in a call another gets busy at once, and closed once it is closed; afterwards the communicator is free."""
    (started, tell_started), (go_on, tell_go_on) = os.pipe(), os.pipe()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(call(comm, tell_started, go_on)))
    thread.start()
    os.read(started, 1)
    assert call(comm) == lib.pn_enter(comm) == lib.PN_BUSY
    comm.state = 1
    assert call(comm) == lib.PN_CLOSED
    comm.state = 0
    os.write(tell_go_on, b"x")
    thread.join(10)
    assert results == [34]
    assert lib.pn_enter(comm) == 0
    assert lib.pn_enter(comm) == lib.PN_BUSY
    lib.pn_leave(comm)
    for end in (started, tell_started, go_on, tell_go_on):
        os.close(end)


def test_forked_child(comm: Any) -> None:
    """In a forked child the parent's communicators are dead, closed or not, and new ones live; the parent sees nothing."""
    before = lib.pn_generation()
    comm.state = 1
    pid = os.fork()
    if pid == 0:
        new = lib.pn_comm_new(comm.table)
        facts = [call(comm) == lib.PN_FORKED, lib.pn_generation() == before + 1, lib.pn_enter(new) == 0]
        os._exit(0 if all(facts) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (lib.pn_generation(), call(comm)) == (before, lib.PN_CLOSED)


def test_addresses_are_checked(comm: Any) -> None:
    """A guarded call takes buffers as numbers of the machine's width; others never enter the library."""
    for bad, kind in ((-1, OverflowError), (1 << 64, OverflowError), (1.5, TypeError), ("a", TypeError), (None, TypeError)):
        with pytest.raises(kind):
            lib.comm_ncclAllReduce(comm, bad, 0, 1, 7, 0, 0)
    assert lib.pn_enter(comm) == 0
    lib.pn_leave(comm)


CHECK = """
import sys, threading
from pynickel._nccl import ffi, lib
error = ffi.new("char[1000]")
table = lib.pn_open(sys.argv[1].encode(), error, 1000)
assert table, ffi.string(error)
asked = []
@ffi.def_extern()
def pn_check_signals():
    asked.append(threading.current_thread())
    return 5
before = lib.ncclGroupStart(table)
installed = lib.pn_install_interrupt(table)
main = lib.ncclGroupStart(table)
others = []
thread = threading.Thread(target=lambda: others.append(lib.ncclGroupStart(table)))
thread.start()
thread.join()
assert (before, installed, main, others, asked) == (-1, 1, 5, [0], [threading.main_thread()]), (before, installed, main, others, asked)
"""


def test_interrupt_check(folder: Path, plain: Path) -> None:
    """A library that can be interrupted asks Python, on the main thread only; another one is left alone."""
    path = toy(folder / "libasks.so", 23203, '#include "nickel.h"\n', INTERRUPT)
    done = subprocess.run([sys.executable, "-c", CHECK, str(path)], capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert lib.pn_install_interrupt(opened(plain)) == 0


def test_extension_shows_no_names() -> None:
    """The extension exports Python's entry point alone: its functions called nccl... stand in no other library's way."""
    listed = subprocess.run(["nm", "-D", "--defined-only", str(ROOT / "pynickel" / "_nccl.abi3.so")], capture_output=True, text=True,
                            timeout=50, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__nccl"]
