"""The CPU library as programs see it that know nothing of it: NVIDIA's exports, C against our nccl.h, SONAME, ctypes, another binding."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from helpers import forks, host_c
from helpers.c import compile_c, shared_library
from helpers.host_c import INVALID_USAGE
from helpers.host_more import Comm
from helpers.host_structs import library

import pynickel

TESTS = Path(__file__).resolve().parent
NICKEL = {
    "nickelHostVersion",
    "nickelErrorKind",
    "nickelErrorRanks",
    "nickelCommSetTimeout",
    "nickelCommCome",
    "nickelSetInterruptCheck",
    "nickelInspect",
}
PROGRAM = r"""
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call) \
  do { \
    ncclResult_t code = (call); \
    if (code != ncclSuccess) { \
      fprintf(stderr, "%s: %s, %s\n", #call, ncclGetErrorString(code), ncclGetLastError(NULL)); \
      return 1; \
    } \
  } while (0)

static int work(int rank, ncclUniqueId id) {
  ncclComm_t comm, child;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclCollConfig_t call = NCCL_COLLCONFIG_INITIALIZER;
  float values[1000], other[1000];
  int count = -1, version = 0;
  CHECK(ncclGetVersion(&version));
  if (version != NCCL_VERSION_CODE || version != NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)) return 2;
  config.blocking = 1;
  CHECK(ncclCommInitRankConfig(&comm, 2, id, rank, &config));
  for (int i = 0; i < 1000; i++) values[i] = (float)(rank + i);
  CHECK(ncclAllReduce(values, values, 1000, ncclFloat32, ncclSum, comm, NULL));
  CHECK(pncclAllReduceConfig(values, values, 1000, ncclFloat, ncclMax, comm, NULL, &call));
  for (int i = 0; i < 1000; i++)
    if (values[i] != (float)(2 * i + 1)) return 3;
  CHECK(ncclGroupStart());
  CHECK(ncclSend(values, 1000, ncclFloat, 1 - rank, comm, NULL));
  CHECK(ncclRecv(other, 1000, ncclFloat, 1 - rank, comm, NULL));
  CHECK(ncclGroupEnd());
  if (memcmp(values, other, sizeof values) != 0) return 4;
  CHECK(ncclCommSplit(comm, rank, 0, &child, NULL));
  CHECK(ncclCommCount(child, &count));
  if (count != 1 || ncclTeamWorld(comm).nRanks != 2) return 5;
  if (ncclBroadcast(values, values, 1, ncclFloat, 2, comm, NULL) != ncclInvalidArgument) return 6;
  if (!strstr(ncclGetLastError(comm), "root")) return 8;
  CHECK(ncclCommDestroy(child));
  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  return 0;
}

int main(void) {
  ncclUniqueId id;
  int status = 0;
  CHECK(ncclGetUniqueId(&id));
  pid_t pid = fork();
  if (pid == 0) return work(1, id);
  int own = work(0, id);
  if (waitpid(pid, &status, 0) != pid || status != 0) return 7;
  char line[4096];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, ".so") && (strstr(line, "nccl") || strstr(line, "nickel"))) fputs(strchr(line, '/'), stdout);
  return own;
}
"""
BY_CTYPES = r"""
import ctypes, os
nccl = ctypes.CDLL("libnccl.so.2")
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
id, comm, values = Id(), ctypes.c_void_p(), (ctypes.c_double * 4)(1, 2, 3, 4)
assert nccl.ncclGetUniqueId(ctypes.byref(id)) == 0
child = os.fork()
nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
assert nccl.ncclCommInitRank(ctypes.addressof(comm), 2, id, 0 if child else 1) == 0
assert nccl.ncclAllReduce(values, values, ctypes.c_size_t(4), 8, 0, comm, None) == 0
assert list(values) == [2, 4, 6, 8]
assert nccl.ncclCommDestroy(comm) == 0
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print({line.split()[-1] for line in open("/proc/self/maps") if "nccl" in line or "nickel" in line})
"""
BY_NCCL4PY = r"""
import os
import numpy as np
import nccl.bindings.nccl as nccl
id = nccl.get_unique_id()
child = os.fork()
rank = 0 if child else 1
comm = nccl.comm_init_rank(2, id.ptr, rank)
values = np.full(1000, rank + 1, np.float32)
nccl.all_reduce(values.ctypes.data, values.ctypes.data, 1000, 7, 0, comm, 0)
assert (values == 3).all()
nccl.group_start()
nccl.send(values.ctypes.data, 10, 7, 1 - rank, comm, 0)
nccl.recv(values.ctypes.data + 400, 10, 7, 1 - rank, comm, 0)
nccl.group_end()
half = nccl.comm_split(comm, 0, -rank, 0)
assert (nccl.comm_user_rank(half), nccl.comm_count(half)) == (1 - rank, 2)
try:
    nccl.broadcast(values.ctypes.data, values.ctypes.data, 1000, 7, 9, comm, 0)
except nccl.NCCLError as error:
    assert error.status == 4
else:
    raise AssertionError("root 9 was taken")
nccl.comm_destroy(half)
nccl.comm_destroy(comm)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(nccl.get_library_path(), nccl.get_version())
"""


def rows() -> list[dict[str, str]]:
    """NVIDIA's functions."""
    with open(TESTS / "data" / "functions.tsv", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def exports(path: Path | str) -> dict[str, str]:
    """Name to nm's letter."""
    done = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True, timeout=30)
    return {fields[-1].split("@")[0]: fields[-2] for fields in map(str.split, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m pynickel host-lib` makes."""
    made = tmp_path_factory.mktemp("host-lib")
    subprocess.run([sys.executable, "-m", "pynickel", "host-lib", str(made)], check=True, timeout=30, capture_output=True)
    return made


def run(folder: Path, *command: str | Path) -> str:
    """What a program prints that finds NCCL in this folder by the loader's path; it must succeed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYNICKEL", "NCCL", "NICKEL"))}
    done = subprocess.run(
        command, env={**env, "LD_LIBRARY_PATH": str(folder), "NICKEL_TIMEOUT": "10"}, cwd="/", capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_exports() -> None:
    """Exported is what NVIDIA's 2.32.3 exports, weak ncclX and strong pncclX, and the additions of nickel.h; nothing else."""
    functions = {row["name"] for row in rows() if row["exported_by_2.32.3"] == "y"}
    expected = {**dict.fromkeys(functions, "W"), **{f"p{name}": "T" for name in functions}}
    expected |= {"ncclResetDebugInitInternal": "T", **dict.fromkeys(NICKEL, "T")}
    found = exports(host_c.path())
    assert len(functions) >= 95 and "ncclCftBarrierCreateRequirement" not in functions
    assert {name: letter for name, letter in found.items() if expected.get(name) != letter} == {}
    assert expected.keys() - found.keys() == set()
    assert set(re.findall(r"\b(nickel\w+)\(", (TESTS.parent / "cdef" / "nickel.h").read_text())) == NICKEL


@forks.nursery()
def test_what_needs_a_gpu() -> None:
    """The functions of the device API are there and refuse with a text that says why; teams are the world, or a rank alone."""
    comm, lib = Comm(1, host_c.unique_id(), 0), library()
    for name in ("DevCommCreate", "DevCommDestroy", "GetLsaMultimemDevicePointer", "GetPeerDevicePointer", "LLA2ACreateRequirement"):
        function = getattr(lib, f"nccl{name}")
        assert function(*[None] * 6) == INVALID_USAGE
        text = lib.ncclGetLastError(None).decode()
        assert name in text and "GPU" in text, text
    assert lib.ncclLLA2ACalcSlots(8, 8) == 0
    comm.barrier()


def compiled(folder: Path, *flags: str) -> Path:
    """The C program, linked with what the flags say."""
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    strict = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
    compile_c(source, *strict, "-I", pynickel.get_include(), "-o", str(program), "-Wl,--no-as-needed", *flags)
    return program


def test_c_program(folder: Path, tmp_path: Path) -> None:
    """A C program that is compiled against our nccl.h, strictly, and linked with -lnccl runs with the folder on the loader's path."""
    assert str(folder) in run(folder, compiled(tmp_path, f"-L{folder}", "-lnccl"))


def test_program_built_against_soname(folder: Path, tmp_path: Path) -> None:
    """A program that was linked with a library of NVIDIA's SONAME, libnccl.so.2, gets ours from the folder."""
    names = [row["name"] for row in rows() if row["exported_by_2.32.3"] == "y"]
    stubs = "#include <stdlib.h>\n" + "\n".join(f"void {name}(void) {{ abort(); }}\nvoid p{name}(void) {{ abort(); }}" for name in names)
    other = shared_library(tmp_path / "libnccl.so", stubs, "-Wl,-soname,libnccl.so.2", "-fno-builtin")
    program = compiled(tmp_path, str(other))
    needed = subprocess.run(["readelf", "-dW", str(program)], capture_output=True, text=True, check=True, timeout=30).stdout
    assert "[libnccl.so.2]" in needed
    printed = run(folder, program)
    assert str(folder) in printed and str(tmp_path / "lib") not in printed


def test_plain_ctypes(folder: Path) -> None:
    """Plain ctypes finds libnccl.so.2 in the folder, in a process without the package."""
    assert str(folder) in run(folder, sys.executable, "-I", "-c", BY_CTYPES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_binding(folder: Path, tmp_path: Path) -> None:
    """nccl4py's low-level calls, on host pointers, run on the folder's library."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = subprocess.run([*pip, "install", "-q", "nccl4py"], capture_output=True, text=True, timeout=250)
    assert install.returncode == 0, install.stderr
    assert str(folder) in run(folder, python, "-c", BY_NCCL4PY)
