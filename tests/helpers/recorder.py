"""A libnccl that does nothing: it counts its calls, notes their arguments, and returns what a test asks for."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdef.build import Function, Headers
from pynickel._nccl import ffi

from .c import CDEF, shared_library

BODIES = {
    "ncclGetVersion": "*version = set_version;",
    "ncclGetUniqueId": "for (int i = 0; i < 128; i++) uniqueId->internal[i] = (char)(i + 1);",
    "ncclCommCount": "*count = 4;",
    "ncclCommUserRank": "*rank = 1;",
    "ncclCommCuDevice": "*device = 0;",
    "ncclCommGetAsyncError": "*asyncError = async_polls-- > 0 ? ncclInProgress : set_async;",
    "ncclCommInitRank": "*comm = (ncclComm_t)&marks[0];",
    "ncclCommInitRankConfig": "*comm = (ncclComm_t)&marks[0]; seen_blocking = config->blocking; seen_config = *config;",
    "ncclCommInitRankScalable": "*newcomm = (ncclComm_t)&marks[0];",
    "ncclCommSplit": "*newcomm = color < 0 ? NULL : (ncclComm_t)&marks[1]; if (config) seen_config = *config;",
    "ncclAllGather": "if (datatype == 2 && sendcount == 1) for (int i = 0; i < 4; i++) ((int *)recvbuff)[i] = i;",
    "ncclCommShrink": "*newcomm = (ncclComm_t)&marks[2];",
    "ncclCommGrow": "*newcomm = (ncclComm_t)&marks[3];",
    "ncclAllReduceConfig": "seen_call_config = *config;",
    "ncclCommWindowRegister": "*win = (ncclWindow_t)&marks[4];",
    "ncclRedOpCreatePreMulSum": "*op = 77; memcpy(seen_scalar, scalar, 8);",
    "ncclCommQueryProperties": "seen_version = (int)props->version; props->rank = 1; props->nLsaTeams = 9;",
    "ncclCommInitAll": "for (int i = 0; i < ndev; i++) comm[i] = (ncclComm_t)&marks[i];",
    "ncclMemAlloc": "*ptr = malloc(size);",
    "ncclMemFree": "free(ptr);",
}
BY_VALUE = ("ncclUniqueId ", "ncclTeam", "ncclMultimemHandle")
PRELUDE = """
#include "all.h"
#include <stdlib.h>
#include <string.h>
#define EXPORT __attribute__((visibility("default")))
static char marks[64];
EXPORT ncclConfig_t seen_config; EXPORT ncclCollConfig_t seen_call_config; EXPORT char seen_scalar[8]; EXPORT int seen_version;
EXPORT int set_version = 23203, set_async = 0, async_polls = 0, seen_blocking = -1;
EXPORT int log_length; EXPORT char log_names[1000][40]; EXPORT long long log_args[1000][8];
static struct { char name[40]; int result; } results[16];
EXPORT void set_result(const char *name, int result)
{
  for (int i = 0; i < 16; i++) {
    if (results[i].name[0] && strcmp(results[i].name, name)) continue;
    strcpy(results[i].name, name);
    results[i].result = result;
    return;
  }
}
EXPORT void forget(void)
{
  log_length = 0;
  memset(results, 0, sizeof results);
  set_version = 23203;
  set_async = async_polls = 0;
}
static int note(const char *name, long long *args, int n)
{
  if (log_length < 1000) {
    strcpy(log_names[log_length], name);
    memset(log_args[log_length], 0, sizeof log_args[log_length]);
    memcpy(log_args[log_length++], args, (size_t)(n > 8 ? 8 : n) * sizeof *args);
  }
  for (int i = 0; i < 16; i++) if (!strcmp(results[i].name, name)) return results[i].result;
  return 0;
}
"""


def build(folder: Path, lacks: Sequence[str] = (), only: Callable[[Function], bool] = lambda f: True, name: str = "libnccl.so.2") -> Path:
    """The library, without some functions."""
    functions = [f for f in Headers().functions if f.since != "host" and f.name not in lacks and only(f)]
    return shared_library(folder / name, PRELUDE + "".join(map(definition, functions)), f"-I{CDEF}", "-w", "-O1", "-fvisibility=hidden")


def definition(f: Function) -> str:
    """One function that notes its call."""
    if f.name == "ncclGetErrorString":
        body = 'return result > 8 || result < 0 ? "unknown result code" : "text of the recorder";'
    elif f.name == "ncclGetLastError":
        body = 'return "last words of the recorder";'
    elif f.result != "ncclResult_t ":
        return ""
    else:
        values = ", ".join("0" if p.text.startswith(BY_VALUE) and "*" not in p.text else f"(long long)({p.name})" for p in f.params)
        noted = f'note("{f.name}", (long long[]){{{values or 0}}}, {max(1, len(f.params))})'
        body = f"int code = {noted}; {BODIES.get(f.name, '')} return code;"
    return f"EXPORT {f.prototype()} {{ {body} }}\n"


class Recorder:
    """The library's notes, seen through the same handle that pynickel opens."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._lib = ctypes.CDLL(self.path)
        self._lib.forget()

    def forget(self) -> None:
        """Empty notes, every result ncclSuccess."""
        self._lib.forget()

    def returns(self, name: str, code: int) -> None:
        """From now on that function returns this."""
        self._lib.set_result(name.encode(), code)

    def set(self, variable: str, value: int) -> None:
        """Set one of set_version, set_async, async_polls."""
        ctypes.c_int.in_dll(self._lib, variable).value = value

    def get(self, variable: str) -> int:
        """Read a variable."""
        return ctypes.c_int.in_dll(self._lib, variable).value

    def struct(self, variable: str, c_type: str) -> Any:
        """A copy of a variable as a C struct."""
        made = ffi.new(f"{c_type} *")
        size = ffi.sizeof(c_type)
        ffi.memmove(made, bytes((ctypes.c_char * size).in_dll(self._lib, variable)), size)
        return made

    @property
    def calls(self) -> list[tuple[str, list[int]]]:
        """Name and first eight arguments of every call, in order."""
        names = (ctypes.c_char * 40 * 1000).in_dll(self._lib, "log_names")
        args = (ctypes.c_longlong * 8 * 1000).in_dll(self._lib, "log_args")
        return [(names[i].value.decode(), list(args[i])) for i in range(self.get("log_length"))]

    @property
    def names(self) -> list[str]:
        """The names alone, without queries."""
        queries = ("ncclGetVersion", "ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice", "ncclCommGetAsyncError")
        return [name for name, _ in self.calls if name not in queries]
