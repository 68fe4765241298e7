"""Ctrl-C in a call that waits: the CPU library asks, Python looks, the exception comes out of the call that was ended."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from threading import get_ident
from types import TracebackType
from typing import Any

from ._nccl import ffi, lib

# What a signal handler raised during a wait, by thread, until that thread's call has returned.
stash: dict[int, BaseException] = {}


def keep(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> int:
    """Take the exception from the signal handler; cffi would print it. The result tells the library to end the call."""
    stash[get_ident()] = error
    return 1


@ffi.def_extern(name="pn_check_signals", onerror=keep)
def check_signals() -> int:
    """Called from the library's waits on the main thread: entering a Python function is what runs pending handlers."""
    return 0


def install(table: Any) -> None:
    """Let the CPU library ask; other libraries have no such door."""
    lib.pn_install_interrupt(table)


def reraise() -> None:
    """Raise what ended this thread's call that has just failed, if it was a signal handler."""
    if error := stash.pop(get_ident(), None):
        raise error
