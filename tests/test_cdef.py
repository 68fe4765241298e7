"""The headers in cdef/ say what the tables in tests/data say, compile alone, and make one nccl.h for C and C++."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import re
import runpy
import shutil
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.c import CDEF, STRICT, compile_c

from pynickel._nccl import ffi, lib

DATA = Path(__file__).parent / "data"
BUILD = runpy.run_path(str(CDEF / "build.py"))
HEADERS = BUILD["Headers"]()


def table(name: str) -> list[dict[str, str]]:
    with open(DATA / f"{name}.tsv", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


FUNCTIONS, CONSTANTS, FIELDS = table("functions"), table("enums"), table("structs")
NAMED_CONSTANTS = [row for row in CONSTANTS if row["group"] != "literal"]
SIZES = {  # bytes on a 64-bit machine, as the releases of NCCL have grown them
    "ncclUniqueId": 128, "ncclConfig_t": 120, "ncclCollConfig_t": 72, "ncclSimInfo_t": 24, "ncclWaitSignalDesc_t": 16,
    "ncclEncryptionConfig_t": 32, "ncclTeam_t": 12, "ncclCommProperties_t": 152,
}
C_HEADERS = sorted(CDEF.glob("*.h"))


def text(pointer: Any) -> str | None:
    return ffi.string(pointer).decode() if pointer else None


def symbols() -> dict[str, str]:
    """Name and release of every function in the binding's table."""
    found = [lib.pn_symbol_at(i) for i in range(lib.pn_symbol_count())]
    return {str(text(s.name)): str(text(s.since)) for s in found}


def normal(signature: str) -> str:
    """A signature without what C does not care about: spaces, the place of const, a missing void, names for the same type."""
    signature = re.sub(r"\b(\w+) const\b", r"const \1", signature)
    signature = re.sub(r"\b(ncclTeam|ncclGinOutboxHandle|ncclGinInboxA2AHandle|ncclDevResourceRequirements)\b(?! *\()", r"\1_t", signature)
    return re.sub(r"\s+", " ", re.sub(r"\s*([*(),])\s*", r"\1", signature)).replace("()", "(void)")


def test_table_has_every_function_of_its_release() -> None:
    """The binding's table names the functions of NCCL 2.32.3, no more and no less, each with the release that brought it."""
    assert {n: s for n, s in symbols().items() if s != "host"} == {row["name"]: row["since"] for row in FUNCTIONS}


def test_only_the_cpu_library_has_names_of_its_own() -> None:
    """What is not NCCL's is called nickel... and marked host."""
    assert {n for n, s in symbols().items() if s == "host"} == {n for n in symbols() if n.startswith("nickel")} != set()


def test_signatures() -> None:
    """Every prototype has the result and the parameters, by type and name, that NCCL's headers give it."""
    ours = {f.name: normal(f.prototype()) for f in HEADERS.functions if f.since != "host"}
    assert ours == {row["name"]: normal(row["signature"]) for row in FUNCTIONS}


def test_each_prototype_is_written_once() -> None:
    """No function is declared in two headers, nor twice in one."""
    counts = Counter(f.name for f in HEADERS.functions)
    assert [name for name, n in counts.items() if n > 1] == []


def test_all_h_includes_every_release() -> None:
    """all.h lists each release header, oldest first."""
    included = re.findall(r'#include "(nccl_\w+\.h)"', (CDEF / "all.h").read_text())
    assert included == [p.name for p in HEADERS.releases if p.stem != "nickel"]


@pytest.mark.parametrize("row", NAMED_CONSTANTS, ids=lambda row: row["name"])
def test_constant(row: dict[str, str]) -> None:
    """A constant has NCCL's value and release."""
    value = getattr(lib, row["name"])
    if row["value"] == "NULL":
        assert value == ffi.NULL
    elif row["value"].endswith("f") and not row["value"].startswith("0x"):
        assert value == float(row["value"][:-1])
    else:
        assert value == int(row["value"], 0)
    assert text(lib.pn_constant_since(row["name"].encode())) == row["since"]


def test_no_constant_without_a_source() -> None:
    """The headers have no constant of NCCL's that the table lacks."""
    assert {n for n, since in HEADERS.constants.items() if since != "host"} == {row["name"] for row in NAMED_CONSTANTS}
    assert lib.pn_constant_since(b"ncclNoSuchThing") == ffi.NULL


def field_of(kind: Any, path: str) -> tuple[Any, int]:
    """Type and offset of a field, "key.vendorId" included."""
    offset = 0
    for name in path.split("."):
        field = dict(kind.fields)[name]
        kind, offset = field.type, offset + field.offset
    return kind, offset


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: f"{row['struct']}.{row['field']}")
def test_field(row: dict[str, str]) -> None:
    """A struct's field has NCCL's type, offset and release."""
    c_type = re.sub(r" \(.*\)|NCCL_\w+", lambda m: str(getattr(lib, m[0], "")), row["c_type"])
    kind, offset = field_of(ffi.typeof(row["struct"]), row["field"])
    assert (kind, offset) == (ffi.typeof(c_type), int(row["offset_lp64"]))
    assert text(lib.pn_field_since(row["struct"].encode(), row["field"].encode())) == row["since"]


@pytest.mark.parametrize("struct", sorted({row["struct"] for row in FIELDS}))
def test_struct_has_no_other_fields(struct: str) -> None:
    """A struct has the fields of the table, in its order, and none beside them."""
    expected = list(dict.fromkeys(row["field"].split(".")[0] for row in FIELDS if row["struct"] == struct))
    assert [name for name, _ in ffi.typeof(struct).fields] == expected


@pytest.mark.parametrize(("struct", "size"), SIZES.items())
def test_size(struct: str, size: int) -> None:
    """A struct is as large as NCCL 2.32.3 makes it."""
    assert ffi.sizeof(struct) == size


def test_unknown_field_has_no_release() -> None:
    """A field that does not exist, or a struct that does not, has no release."""
    assert lib.pn_field_since(b"ncclConfig_t", b"nothing") == lib.pn_field_since(b"nothing", b"size") == ffi.NULL


@pytest.mark.parametrize("struct", [kind for _, kind in HEADERS.initializers])
def test_initial_value(struct: str) -> None:
    """A first value carries its own size, a magic, this version, and leaves every setting of an int or a text to the library."""
    first = getattr(lib, f"pn_initial_{struct}")
    magic = {"ncclSimInfo_t": 0x74685283}.get(struct, lib.NCCL_API_MAGIC)
    assert (first.size, first.magic, first.version) == (ffi.sizeof(struct), magic, lib.NCCL_VERSION_CODE)
    if struct in ("ncclConfig_t", "ncclCollConfig_t"):
        values = {name: getattr(first, name) for name, _ in ffi.typeof(struct).fields[3:]}
        other = {name: v for name, v in values.items() if v not in (lib.NCCL_CONFIG_UNDEF_INT, ffi.NULL)}
        assert other == ({} if struct == "ncclConfig_t" else {"forceAlgSelection": 1, "userProfilerTag": 0})


@pytest.mark.parametrize("header", C_HEADERS, ids=lambda p: p.name)
def test_header_compiles_alone(header: Path) -> None:
    """A header needs no other to be included before it, and draws no warning."""
    compile_c(header, "-std=c11", *STRICT, "-fsyntax-only", "-isystem", sysconfig.get_path("include"))


@pytest.mark.parametrize("name", ["loader", "plan"])
def test_own_c_is_free_of_warnings(name: str, tmp_path: Path) -> None:
    """The C of the extension is C11 and clean under -Wall -Wextra -Wconversion."""
    compile_c(CDEF / f"{name}.c", "-std=c11", "-O2", *STRICT, "-c", "-o", str(tmp_path / f"{name}.o"))


def layout_checks(assertion: str) -> str:
    rows = [f'{assertion}(offsetof({r["struct"]}, {r["field"]}) == {r["offset_lp64"]}, "{r["struct"]}.{r["field"]}");' for r in FIELDS]
    return "\n".join(rows + [f'{assertion}(sizeof({name}) == {size}, "{name}");' for name, size in SIZES.items()])


def first_values() -> str:
    return "\n".join(f"  {kind} first{i} = {macro}; (void)first{i};" for i, (macro, kind) in enumerate(HEADERS.initializers))


@pytest.mark.parametrize(("suffix", "command", "standard"), [(".c", "gcc", "c11"), (".c", "gcc", "gnu99"), (".cpp", "g++", "c++14")])
def test_generated_header(tmp_path: Path, suffix: str, command: str, standard: str) -> None:
    """The nccl.h made from cdef/ serves C and C++ without CUDA: layouts, constants, first values, and both names of every function."""
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    (tmp_path / "nccl.h").write_text(BUILD["nccl_header"]())
    assertion = "static_assert" if suffix == ".cpp" else "_Static_assert"
    uses = "\n".join(f"  call = (any){f.name}; call = (any)p{f.name};" for f in HEADERS.functions if f.since != "host")
    program = (
        f'#include <nccl.h>\n#include <nccl.h>\n{layout_checks(assertion)}\n'
        f'{assertion}(NCCL_VERSION_CODE == NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), "version");\n'
        f'{assertion}(NCCL_VERSION(2, 8, 4) == 2804, "old version");\n'
        'typedef void (*any)(void);\nextern any call;\nany call;\n'
        f"int main(void)\n{{\n{first_values()}\n{uses}\n  return call != 0;\n}}\n")
    # A cast between function types is the point here: only the names are wanted.
    compile_c(program, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", f"-I{tmp_path}", "-c",
              "-o", str(tmp_path / "out.o"), folder=tmp_path, suffix=suffix, command=[command])


def test_generated_header_is_the_installed_one() -> None:
    """The nccl.h beside the package is what the headers make today."""
    installed = CDEF.parent / "pynickel" / "include" / "nccl.h"
    assert installed.read_text() == BUILD["nccl_header"]()
