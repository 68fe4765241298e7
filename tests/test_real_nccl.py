"""The headers in cdef/ and the binding's table agree with an installed NCCL: its header, its exports, what the loader finds in it."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.c import ROOT, compile_c
from test_cdef import FIELDS, FUNCTIONS, HEADERS, NAMED_CONSTANTS, SIZES

WINDOWS_ONLY = {row["name"] for row in FUNCTIONS if "Windows" in row["notes"]}  # exported, but no header on Linux declares them
UNDECLARED = {"ncclResetDebugInitInternal"}  # exported, no header declares it
MOVING = {"ncclNumResults", "ncclNumOps", "ncclNumTypes", "ncclNumOps_dummy", "NCCL_GIN_MAX_TYPES", "NCCL_VERSION_CODE", "NCCL_MINOR",
          "NCCL_PATCH"}  # each release has its own value
TABLES = (2, 32, 3)  # the release that the tables describe
PLAIN_STRUCTS = {"ncclUniqueId", "ncclConfig_t", "ncclConfigExt_t", "ncclCollConfig_t", "ncclSimInfo_t", "ncclWaitSignalDesc_t",
                 "ncclEncryptionConfig_t"}  # those of nccl.h

CUDA = {  # as much of CUDA as NCCL's headers mention
    "cuda_runtime.h": "#include <stddef.h>\n#define CUDART_VERSION 13000\n"
                      "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n",
    "cuda.h": "typedef int CUmemLocationType;\n", "cuda_fp16.h": "", "cuda_fp8.h": "",
    "cuda_bf16.h": "#define __CUDA_BF16_TYPES_EXIST__ 1\n",  # older releases have bfloat16 where CUDA has it
}


def installed() -> list[Path]:
    """The folders of NCCL wheels in this environment."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(p) / "nccl" for p in (spec.submodule_search_locations or [])] if spec else []
    return [p for p in places if (p / "include" / "nccl.h").is_file() and (p / "lib" / "libnccl.so.2").is_file()]


def version_of(header: Path) -> tuple[int, ...]:
    found = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    return int(found["MAJOR"]), int(found["MINOR"]), int(found["PATCH"])


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@pytest.fixture(scope="module")
def nccl() -> Path:
    if not installed():
        pytest.skip("no NCCL wheel is installed here (nvidia-nccl-cu12 or nvidia-nccl-cu13)")
    return installed()[0]


@pytest.fixture(scope="module")
def version(nccl: Path) -> tuple[int, ...]:
    return version_of(nccl / "include" / "nccl.h")


def assertion(condition: str, about: str) -> str:
    return f'_Static_assert({condition}, "{about}");'


def same_type(left: str, right: str) -> str:
    return f"__builtin_types_compatible_p({left}, {right})"


def prototypes(version: tuple[int, ...], device: bool) -> list[str]:
    wanted = {row["name"] for row in FUNCTIONS if number(row["since"]) <= version and (device or row["header"] == "nccl.h")}
    return [assertion(same_type(f"__typeof__(&{f.name})", f"{f.result}(*)({', '.join(p.text for p in f.params) or 'void'})"), f.name)
            for f in HEADERS.functions if f.name in wanted - WINDOWS_ONLY]


def constants(version: tuple[int, ...], device: bool) -> list[str]:
    lines = []
    for row in NAMED_CONSTANTS:
        name, value = row["name"], row["value"]
        of_device = row["group"].startswith(("ncclGin", "ncclCft")) or "_GIN_MAX" in name or name == "NCCL_LE_ID_INVALID"
        if number(row["since"]) > version or name in MOVING and version != TABLES or of_device and not device:
            continue
        if value == "NULL" or value.endswith(".0f"):
            lines.append(assertion(f"{same_type(f'__typeof__({name})', f'__typeof__({value})')}", name))
        else:
            lines.append(assertion(f"{name} == {value.replace('-2147483648', 'INT_MIN')}", name))
    return lines


def layouts(version: tuple[int, ...]) -> list[str]:
    lines = []
    for row in FIELDS:
        # The structs of the device headers are not append-only: another release may place a field elsewhere.
        if number(row["since"]) > version or version != TABLES and row["struct"] not in PLAIN_STRUCTS:
            continue
        name, c_type = f"{row['struct']}.{row['field']}", re.sub(r" \(.*\)", "", row["c_type"])
        lines.append(assertion(f"offsetof({row['struct']}, {row['field']}) == {row['offset_lp64']}", name))
        lines.append(assertion(same_type(f"__typeof__((({row['struct']} *)0)->{row['field']})", f"__typeof__({c_type})"), name))
    if version == TABLES:
        lines += [assertion(f"sizeof({struct}) == {size}", struct) for struct, size in SIZES.items()]
    return lines


def test_headers_agree(nccl: Path, version: tuple[int, ...], tmp_path: Path) -> None:
    """The compiler finds every prototype, constant, field and size of this release in NVIDIA's headers as cdef/ has them."""
    for name, content in CUDA.items():
        (tmp_path / name).write_text(content)
    device = version >= (2, 32)  # before, a C compiler could not read the device headers
    includes = ["<limits.h>", "<stdbool.h>", "<stddef.h>", "<nccl.h>", *(["<nccl_device/host.h>"] if device else [])]
    program = "\n".join([*(f"#include {i}" for i in includes), *prototypes(version, device), *constants(version, device),
                         *layouts(version), ""])
    # NCCL_OS_LINUX: without it ncclResetDebugInit is an empty macro. -w: the headers' own warnings are not ours.
    compile_c(program, "-std=gnu11", "-w", "-fsyntax-only", "-DNCCL_OS_LINUX", f"-I{tmp_path}", f"-I{nccl / 'include'}", folder=tmp_path)


def expected_exports(version: tuple[int, ...]) -> set[str]:
    rows = [row for row in FUNCTIONS if row["exported_by_2.32.3"] == "y"]
    # 2.30.3 has the parameter functions that its header does not yet declare.
    return {row["name"] for row in rows if number(row["since"]) <= version or row["since"] == "2.30.4" and version == (2, 30, 3)}


def test_exports_agree(nccl: Path, version: tuple[int, ...]) -> None:
    """The library exports the functions that the table gives its release, and their profiling names."""
    listed = subprocess.run(["nm", "-D", "--defined-only", str(nccl / "lib" / "libnccl.so.2")], capture_output=True, text=True,
                            timeout=50, check=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    expected = expected_exports(version)
    known = {n for n in names if re.match(r"nccl[A-Z]", n)} - UNDECLARED
    assert expected <= known
    assert {"p" + name for name in expected} <= names
    if version <= TABLES:
        assert known <= expected


LIST = """
import json, sys
from pynickel._nccl import ffi, lib
error = ffi.new("char[1000]")
table = lib.pn_open(sys.argv[1].encode(), error, 1000)
if not table:
    sys.exit(ffi.string(error).decode())
found = [ffi.string(lib.pn_symbol_at(i).name).decode() for i in range(lib.pn_symbol_count()) if lib.pn_address(table, i)]
number = ffi.new("int *")
absent = lib.nickelHostVersion(table, number)
assert absent == lib.PN_MISSING and lib.ncclGetVersion(table, number) == 0
print(json.dumps([found, number[0], ffi.string(lib.ncclGetErrorString(table, 4)).decode()]))
"""


def test_loader_finds_every_export(nccl: Path, version: tuple[int, ...]) -> None:
    """The binding's table has an address for each function that the library exports, and calls reach the library."""
    # In a process of its own: a library of this size, once mapped, would be found by tests that look for one.
    done = subprocess.run([sys.executable, "-c", LIST, str(nccl / "lib" / "libnccl.so.2")], capture_output=True, text=True, timeout=50,
                          cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found, code, message = json.loads(done.stdout)
    assert expected_exports(version) <= set(found)
    assert code == version[0] * 10000 + version[1] * 100 + version[2]
    assert message.startswith("invalid argument")
