"""The parameters of a library: what it takes from its environment variables, by name, as text or as typed values."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import report
from ._nccl import ffi, lib

if TYPE_CHECKING:
    from .library import Library

# By the type that a parameter is read as: the C function and the C type of its value.
GETTERS = {
    **{f"int{bits}": (f"ncclParamGetI{bits}", f"int{bits}_t *") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (f"ncclParamGetU{bits}", f"uint{bits}_t *") for bits in (8, 16, 32, 64)},
    "str": ("ncclParamGetStr", "const char **"),
}


class Parameters(Mapping[str, str]):
    """What `Library.parameters` is: a mapping from every name to its value as text (NCCL 2.30.4 and later)."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def __getitem__(self, key: str) -> str:
        if key not in self._keys():
            raise KeyError(key)
        out, size = ffi.new("const char **"), ffi.new("int *")
        code = lib.ncclParamGetParameter(self.library.table, key.encode(), out, size)
        self.library.check(code, "ncclParamGetParameter")
        return report.text(out[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def read(self, key: str, kind: str = "int64") -> int | str:
        """The value as a type: "int8" to "int64", "uint8" to "uint64", "str"; InvalidArgumentError if it is of another one."""
        if kind not in GETTERS:
            raise ValueError(f"kind must be one of {', '.join(GETTERS)}, not {kind!r}")
        function, c_type = GETTERS[kind]
        handle, out = self._bind(key), ffi.new(c_type)
        self.library.check(getattr(lib, function)(self.library.table, handle, out), function)
        return report.text(out[0]) if kind == "str" else int(out[0])

    def raw(self, key: str) -> bytes:
        """The value as the library stores it, whatever its type."""
        handle, size, room = self._bind(key), ffi.new("int *"), 4096
        out = ffi.new("char[]", room)
        self.library.check(lib.ncclParamGet(self.library.table, handle, out, room, size), "ncclParamGet")
        return bytes(ffi.buffer(out, min(size[0], room)))

    def dump(self) -> None:
        """The library prints all of them on its standard output."""
        if not self.library.has("ncclParamDumpAll"):
            raise self.library.missing("ncclParamDumpAll")
        lib.ncclParamDumpAll(self.library.table)

    def __repr__(self) -> str:
        return f"<Parameters of {self.library.label}>"

    def _bind(self, key: str) -> Any:
        """The library's handle for a name."""
        handle = ffi.new("ncclParamHandle_t *")
        self.library.check(lib.ncclParamBind(self.library.table, handle, str(key).encode()), "ncclParamBind")
        return handle[0]

    def _keys(self) -> list[str]:
        """All names; the library's table lives until the thread's next such call."""
        table, length = ffi.new("const char ***"), ffi.new("int *")
        self.library.check(lib.ncclParamGetAllParameterKeys(self.library.table, table, length), "ncclParamGetAllParameterKeys")
        return [report.text(table[0][i]) for i in range(length[0])]
