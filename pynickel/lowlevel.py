"""NCCL's C API as it is: every function and constant under its C name."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import cache, partial
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from . import _nccl

if TYPE_CHECKING:
    from .library import Library

ffi = _nccl.ffi
FUNCTION = type(_nccl.lib.pn_generation)
WITHOUT_ARGUMENTS = ("ncclGroupStart", "ncclGroupEnd", "ncclResetDebugInit", "ncclParamDumpAll")


@cache
def c_api() -> dict[str, Any]:
    """What the C API has: functions, enumerators, macros."""
    names = (name for name in dir(_nccl.lib) if name.startswith(("nccl", "NCCL_", "nickel")))
    return {name: getattr(_nccl.lib, name) for name in names}


class Functions:
    """The C API on one library; what it lacks is there too, and raises NotAvailableError."""

    def __init__(self, library: Library) -> None:
        for name, value in c_api().items():
            if isinstance(value, FUNCTION):
                value = _bound(value, library.table) if library.has(name) else partial(_missing, library, name)
            self.__dict__[name] = value


class DefaultFunctions(Functions):
    """The C API on the default library, which the first function loads; constants need no library."""

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        value = c_api().get(name)
        if value is None:
            raise AttributeError(f"NCCL's C API has no {name!r}")
        if not isinstance(value, FUNCTION):
            return value
        from .library import get_library

        self.__dict__.update(vars(get_library().lib))
        self.__class__ = Functions  # type: ignore[assignment]  # a class without __getattr__ finds its attributes faster
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        return list(c_api())


def _bound(function: Any, table: Any) -> Any:
    """The function with its library's table. A bound method passes it along faster than partial does."""
    if function.__name__ not in WITHOUT_ARGUMENTS:
        return MethodType(function, table)

    def call() -> Any:  # Python itself counts the arguments of these, and would count the table
        return function(table)

    call.__name__ = call.__qualname__ = function.__name__
    return call


def _missing(library: Library, name: str, *args: Any) -> NoReturn:
    raise library.missing(name)


lib: Any = DefaultFunctions()
