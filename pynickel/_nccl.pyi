"""The built extension, the one door to C: ffi for C data, lib for the functions, constants and loader that cdef/ declares."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

class _FFI:
    CData: type
    CType: type
    NULL: Any
    def def_extern(self, name: str = ..., error: Any = ..., onerror: Callable[..., Any] | None = ...) -> Callable[[_F], _F]: ...
    def __getattr__(self, name: str) -> Any: ...

ffi: _FFI
lib: Any
