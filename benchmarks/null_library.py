"""A libnccl that does nothing, made from cdef/: every function succeeds at once, so that what is left of a call's time is the binding."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The few that must write something, for a communicator of two ranks whose rank 0 this is.
BODIES = {
    "ncclGetVersion": "*version = 23203; return ncclSuccess;",
    "ncclGetUniqueId": "for (int i = 0; i < 128; i++) uniqueId->internal[i] = (char)(i + 1); return ncclSuccess;",
    "ncclCommInitRank": "*comm = (ncclComm_t)here; return ncclSuccess;",
    "ncclCommInitRankConfig": "*comm = (ncclComm_t)here; return ncclSuccess;",
    "ncclCommInitRankScalable": "*newcomm = (ncclComm_t)here; return ncclSuccess;",
    "ncclCommCount": "*count = 2; return ncclSuccess;",
    "ncclCommUserRank": "*rank = 0; return ncclSuccess;",
    "ncclCommCuDevice": "*device = 0; return ncclSuccess;",
    "ncclCommGetAsyncError": "*asyncError = ncclSuccess; return ncclSuccess;",
    "ncclGetErrorString": 'return "";',
    "ncclGetLastError": 'return "";',
}


def build(folder: Path) -> Path:
    """Compile it; its name is the one that other bindings look for."""
    sys.path.insert(0, str(ROOT))
    from cdef.build import Headers

    functions = [f for f in Headers().functions if f.since != "host" and (f.result.strip() == "ncclResult_t" or f.name in BODIES)]
    lines = ['#include "all.h"', "static char here[64];"]
    for f in functions:
        lines.append(f'__attribute__((visibility("default"))) {f.prototype()} {{ {BODIES.get(f.name, "return ncclSuccess;")} }}')
    source, library = folder / "null.c", folder / "libnccl.so.2"
    source.write_text("\n".join(lines) + "\n")
    flags = ["-O2", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnccl.so.2", f"-I{ROOT / 'cdef'}"]
    subprocess.run(["gcc", "-std=gnu11", *flags, "-o", str(library), str(source)], check=True, timeout=60)
    return library
