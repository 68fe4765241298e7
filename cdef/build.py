"""Turns the headers of this folder into the extension pynickel._nccl and into the nccl.h for C programs.

Each prototype, constant and struct is written once, in a header; the header's file name (or, for the fields of structs, the
comment beside them) is the release that it came with.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from cffi import FFI
from pycparser import c_ast, c_generator, c_parser

HERE = Path(__file__).resolve().parent
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.MULTILINE)
DEFINE = re.compile(r"^#define (\w+) (\S.*?) *$", re.MULTILINE)
INITIALIZER = re.compile(r"^#define (\w+_INITIALIZER) \{ \\\n\s*sizeof\((\w+)\)", re.MULTILINE)
GUARD = re.compile(r"^#(?:ifndef|define) \w+_H$|^#endif$|^#include .*$|^/\* SPDX.*$", re.MULTILINE)

# What the compiler knows from <stdint.h>, <stddef.h> and <stdbool.h>, for a parser that reads no system header.
KNOWN_TYPES = "typedef unsigned long size_t, uint64_t, int64_t; typedef _Bool bool; typedef int " + ", ".join(
    f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32)) + ";\n"

# The part of loader.h, plan.h, dlpack.h, tensor.h and direct.h that Python uses.
LOADER = """
enum { PN_MISSING, PN_BUSY, PN_CLOSED, PN_FORKED, PN_MEMORY, PN_NONE, PN_AT_START, ... };
typedef struct { const char *name, *since; } pn_symbol;
typedef struct pn_table pn_table;
typedef struct { pn_table *table; ncclComm_t comm; int state, rank, nranks, plain; ...; } pn_comm;
pn_table *pn_open(const char *path, char *error, size_t size);
const char *pn_path(const pn_table *table);
void *pn_address(const pn_table *table, int index);
int pn_symbol_count(void);
const pn_symbol *pn_symbol_at(int index);
const char *pn_field_since(const char *struct_name, const char *field);
const char *pn_constant_since(const char *name);
pn_comm *pn_comm_new(pn_table *table);
void pn_comm_free(pn_comm *comm);
unsigned pn_generation(void);
int pn_enter(pn_comm *comm);
int pn_enter_at(pn_comm *comm, int state, int *inside);
void pn_leave(pn_comm *comm);
int pn_install_interrupt(pn_table *table);
extern "Python+C" int pn_check_signals(void);
typedef struct { int length, failed; char text[...]; ...; } pn_plan;
pn_plan *pn_plan_new(void);
void pn_plan_free(pn_plan *plan);
int pn_plan_extend(pn_plan *plan, pn_plan *other);
int pn_plan_clear(pn_plan *plan);
int pn_plan_launch(pn_plan *plan);
int pn_plan_launch_on(pn_plan *plan, uintptr_t stream);
int pn_plan_simulate(pn_plan *plan, ncclSimInfo_t *info);
int pn_plan_result(const pn_plan *plan, const pn_table *table);
void *pn_dlpack_new(int versioned, uintptr_t owner, uintptr_t address, int device_type, int device_id,
                    int code, int bits, int ndim, const int64_t *shape);
uintptr_t pn_dlpack_name(int versioned);
uintptr_t pn_dlpack_destructor(void);
int pn_know_arrays(uintptr_t kind, uintptr_t array, uintptr_t address, int64_t count, int flags, uintptr_t dtype, uintptr_t types);
void pn_know_tensors(uintptr_t kind, uintptr_t describe);
int pn_put_reader(uintptr_t place, uintptr_t types);
int pn_direct_functions(uintptr_t functions, uintptr_t calls, uintptr_t groups, uintptr_t element, uintptr_t reduction);
"""


class Param(NamedTuple):
    """One parameter: ("int *count", "count")."""

    text: str
    name: str

    @property
    def is_comm(self) -> bool:
        return re.fullmatch(r"(const )?ncclComm_t \w+", self.text) is not None

    @property
    def is_address(self) -> bool:
        """A buffer or a stream; out-parameters and structs are not."""
        return re.fullmatch(r"(?:(?:const )?void \*|cudaStream_t )\w+", self.text) is not None

    @property
    def is_stream(self) -> bool:
        return self.text.startswith("cudaStream_t ")

    @property
    def guarded(self) -> str:
        return f"uintptr_t {self.name}" if self.is_address else self.text

    @property
    def passed_on(self) -> str:
        """What a guarded wrapper gives to the library for it."""
        if self.is_comm:
            return "pn->comm"
        return f"({self.text.removesuffix(self.name)}){self.name}" if self.is_address else self.name


class Function(NamedTuple):
    """One prototype: name and release, result with the space behind it, parameters."""

    name: str
    since: str
    result: str
    params: list[Param]

    @property
    def has_comm(self) -> bool:
        return any(p.is_comm for p in self.params)

    @property
    def can_be_planned(self) -> bool:
        return self.has_comm and any(p.is_stream for p in self.params)

    def prototype(self, prefix: str = "", *first: str) -> str:
        return f"{self.result}{prefix}{self.name}({', '.join([*first, *(p.text for p in self.params)]) or 'void'})"

    def guarded_prototype(self) -> str:
        """comm_<name>: the communicator comes as its guard; buffers and streams as numbers, which cffi converts fastest."""
        return f"{self.result}comm_{self.name}({', '.join(['pn_comm *pn', *(p.guarded for p in self.params if not p.is_comm)])})"

    def planned_prototype(self) -> str:
        """plan_<name>: the same parameters as comm_<name>; the call is written down in a plan."""
        params = [p.guarded for p in self.params if not p.is_comm]
        return f"int plan_{self.name}({', '.join(['pn_plan *plan', 'pn_comm *pn', *params])})"


def release_headers() -> list[Path]:
    """nccl_2_0.h and so on, oldest first, then nickel.h."""
    releases = sorted(HERE.glob("nccl_*.h"), key=lambda p: [int(n) for n in p.stem.split("_")[1:]])
    return [*releases, HERE / "nickel.h"]


def since_of(header: Path) -> str:
    return "host" if header.stem == "nickel" else header.stem.removeprefix("nccl_").replace("_", ".")


def code_of(header: Path) -> str:
    """The C code of a header, line for line, without comments and preprocessor lines."""
    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    return DIRECTIVE.sub(blank, COMMENT.sub(blank, header.read_text()))


class Headers:
    """All headers, read once."""

    def __init__(self) -> None:
        self.types = [HERE / "types.h", HERE / "types_device.h"]
        self.releases = release_headers()
        self.functions: list[Function] = []
        self.constants: dict[str, str] = {}  # name: since
        self.defines: dict[str, str] = {}  # name: value, of the constants that are macros
        self.fields: list[tuple[str, str, str]] = []  # struct, field, since
        parts = [f'# 1 "{header}"\n{code_of(header)}\n' for header in [*self.types, *self.releases]]
        for node in c_parser.CParser().parse(KNOWN_TYPES + "".join(parts)).ext:
            self._read(node, Path(node.coord.file or ""))
        for header in self.releases:
            found = dict(DEFINE.findall(COMMENT.sub("", header.read_text())))
            self.defines |= found
            self.constants |= dict.fromkeys(found, since_of(header))
        self.initializers: list[tuple[str, str]] = INITIALIZER.findall((HERE / "initializers.h").read_text())

    def _read(self, node: Any, header: Path) -> None:
        if isinstance(node, c_ast.Typedef) and isinstance(node.type.type, c_ast.Struct) and node.type.type.decls:
            lines = header.read_text().split("\n")
            struct = node.type.type
            self._read_fields(node.name, "", struct, lines, release_at(lines, struct.coord.line, ""))
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum):
            self.constants |= {e.name: since_of(header) for e in node.type.values.enumerators}
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            self.functions.append(read_function(node, since_of(header)))

    def _read_fields(self, owner: str, prefix: str, struct: Any, lines: list[str], since: str) -> None:
        for field in struct.decls:
            own = release_at(lines, field.coord.line, since)
            self.fields.append((owner, prefix + field.name, own))
            inner = getattr(field.type, "type", None)
            if isinstance(inner, (c_ast.Struct, c_ast.Union)) and inner.decls:
                self._read_fields(owner, f"{prefix}{field.name}.", inner, lines, own)


def release_at(lines: list[str], number: int, default: str) -> str:
    """The release in the comment of that line."""
    found = re.search(r"/\* (\d[\d.]*) \*/", lines[number - 1])
    return found[1] if found else default


def read_function(node: Any, since: str) -> Function:
    generate = c_generator.CGenerator().visit
    params = [p for p in node.type.args.params if isinstance(p, c_ast.Decl)]
    declared = generate(node)
    result = declared[:declared.index(node.name + "(")]
    return Function(node.name, since, result, [Param(generate(p), p.name) for p in params])


def wrapper(f: Function, index: int) -> str:
    """The C of lib.<name>(table, ...) and, for a function of a communicator, of lib.comm_<name>(comm, ...)."""
    kind = f.result.strip()
    returns = "" if kind == "void" else "return "
    missing, refused = "return;", "return;"
    if kind in ("int", "ncclResult_t"):
        missing, refused = "return PN_MISSING;", "return pn_refused;"
    elif returns:
        missing = refused = f"return ({kind}){'0' if kind.endswith('*') else '{0}'};"
    text = (f"static {f.prototype('pn_', 'pn_table *pn')}\n{{\n"
            f"  __typeof__(&{f.name}) call = (__typeof__(&{f.name}))pn->address[{index}];\n"
            f"  if (call == NULL) {missing}\n"
            f"  {returns}call({', '.join(p.name for p in f.params)});\n}}\n")
    if f.has_comm:
        args = ", ".join(["pn->table", *(p.passed_on for p in f.params)])
        text += (f"static {f.guarded_prototype()}\n{{\n"
                 f"  int pn_refused = pn_enter(pn);\n"
                 f"  if (pn_refused != 0) {refused}\n"
                 f"  {f'{f.result}pn_result = ' if returns else ''}pn_{f.name}({args});\n"
                 f"  pn_leave(pn);\n"
                 f"  {returns}{'pn_result' if returns else 'return'};\n}}\n")
    # From here on the name means the wrapper, also in the code that cffi writes below.
    return text + f"#define {f.name} pn_{f.name}\n"


def planned(f: Function) -> str:
    """The C of lib.plan_<name>(plan, comm, ...), and of what makes the call later."""
    place = {p.name: i for i, p in enumerate(p for p in f.params if not (p.is_comm or p.is_stream))}

    def found(p: Param) -> str:
        if p.name in place:
            return f"({p.text.removesuffix(p.name)})argument[{place[p.name]}]"
        return "comm" if p.is_comm else "(cudaStream_t)stream"

    stream = next(p.name for p in f.params if p.is_stream)
    return (f"static ncclResult_t later_{f.name}(pn_table *table, ncclComm_t comm, uintptr_t stream, const uintptr_t *argument)\n{{\n"
            f"  return pn_{f.name}({', '.join(['table', *map(found, f.params)])});\n}}\n"
            f"static {f.planned_prototype()}\n{{\n"
            f"  pn_operation operation = {{later_{f.name}, pn, {stream}, {{{', '.join(f'(uintptr_t){name}' for name in place)}}}}};\n"
            f"  return pn_plan_add(plan, &operation);\n}}\n")


def constant(name: str, value: str) -> str:
    """How cffi is told of a constant; the compiler fills in the value."""
    if value == "NULL":
        return f"static {'ncclComm_t' if name == 'NCCL_COMM_NULL' else 'void *'} const {name};"
    if re.fullmatch(r"\(?-?[\d.]+f\)?", value):
        return f"static float const {name};"
    return f"#define {name} ..."


def cdef(headers: Headers) -> str:
    lines = [code_of(h) for h in headers.types] + [LOADER]
    for f in headers.functions:
        lines.append(f.prototype("", "pn_table *pn") + ";")
        if f.has_comm:
            lines.append(f.guarded_prototype() + ";")
        if f.can_be_planned:
            lines.append(f.planned_prototype() + ";")
    lines += [constant(name, headers.defines.get(name, "")) for name in headers.constants]
    lines += [f"static const {kind} pn_initial_{kind};" for _, kind in headers.initializers]
    return "\n".join(lines)


def source(headers: Headers) -> str:
    """The C that stands above cffi's own: the tables which loader.c searches, and the wrappers."""
    symbols = [f'  {{"{f.name}", "{f.since}"}},' for f in headers.functions]
    constants = [f'  {{"{name}", "{since}"}},' for name, since in headers.constants.items()]
    fields = [f'  {{"{owner}", "{field}", "{since}"}},' for owner, field, since in headers.fields]
    return "\n".join([
        '#include "all.h"', '#include "nickel.h"', '#include "plan.h"',
        '#include "dlpack.h"', '#include "tensor.h"', '#include "direct.h"', '#include "arguments.h"',
        "const pn_symbol pn_symbols[] = {", *symbols, "  {NULL, NULL}", "};",
        f"const int pn_symbols_length = {len(symbols)};",
        "const pn_symbol pn_constants[] = {", *constants, "  {NULL, NULL}", "};",
        "const pn_field pn_fields[] = {", *fields, "  {NULL, NULL, NULL}", "};",
        *(f"static const {kind} pn_initial_{kind} = {macro};" for macro, kind in headers.initializers),
        *(wrapper(f, i) for i, f in enumerate(headers.functions)),
        *(planned(f) for f in headers.functions if f.can_be_planned),
        "const pn_named_call pn_named_calls[] = {",
        *(f'  {{"{f.name}", later_{f.name}}},' for f in headers.functions if f.can_be_planned), "  {NULL, NULL}", "};",
    ])


def body_of(header: Path) -> str:
    """A header's own text: its comments and declarations without guard, includes and licence line."""
    return re.sub(r"\n{3,}", "\n\n", GUARD.sub("", header.read_text())).strip() + "\n"


def nccl_header() -> str:
    """The nccl.h of pynickel.get_include(): everything in one file, for C and C++ without CUDA."""
    headers = Headers()
    parts = [
        "/* NCCL's C API up to 2.32.3 in one header, without CUDA; made from pynickel's cdef/ folder. */\n"
        "/* SPDX-License-Identifier: Apache-2.0 */\n#ifndef NCCL_H_\n#define NCCL_H_\n"
        "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n"
        '#ifdef __cplusplus\nextern "C" {\n#endif\n']
    parts += [body_of(header) for header in [*headers.types, *headers.releases[:-1], HERE / "initializers.h"]]
    parts.append("/* Every function under its profiling name. */\n" + "".join(
        f.prototype("p") + ";\n" for f in headers.functions if f.since != "host"))
    parts.append("#ifdef __cplusplus\n}\n#endif\n\n#endif\n")
    return "\n".join(parts)


def ffibuilder() -> FFI:
    headers = Headers()
    builder = FFI()
    builder.cdef(cdef(headers))
    builder.set_source(
        "pynickel._nccl", source(headers), include_dirs=["cdef"],
        sources=["cdef/loader.c", "cdef/plan.c", "cdef/dlpack.c", "cdef/tensor.c", "cdef/direct.c"],
        depends=[str(p.relative_to(HERE.parent)) for p in sorted(HERE.iterdir()) if p.suffix in (".c", ".h", ".py")],
        define_macros=[("Py_LIMITED_API", "0x030a0000")], py_limited_api=True,
        extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread"], extra_link_args=["-pthread"])
    return builder
