"""Parent and children: start fresh Python processes, give them work, meet them, exchange objects with them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TextIO

from pynickel.parallel import deadline as _deadline
from pynickel.parallel import tree as _tree
from pynickel.parallel.child import Child, Children, Table
from pynickel.parallel.failure import ChildError
from pynickel.parallel.parent import NoParent, Parent

__all__ = [
    "Child",
    "ChildError",
    "Children",
    "args",
    "children",
    "close",
    "fork",
    "id",
    "nchildren",
    "nfork",
    "parent",
    "print",
    "receive",
    "run",
    "send",
    "timeout",
    "yield_",
]

# These change while the program runs, so they are looked up at each use: see _Live.
id: int
parent: Parent | NoParent
children: Table
nchildren: int
args: tuple[Any, ...]
timeout: float


def fork(*args: object) -> Child:
    """Start one idle child, a fresh interpreter; it finds the arguments in `parallel.args`."""
    return _tree.nfork(1, args)[0]


def nfork(n: int, *args: object) -> Children:
    """Start n idle children; all of them find the arguments in `parallel.args`."""
    return _tree.nfork(n, args)


def run(function: Callable[..., object] | str, *args: object) -> Child:
    """Fork one child and have it call the function with the arguments."""
    child = fork(*args)
    child.exec(function, *args)
    return child


def close() -> None:
    """End all children of this process: by closing their connections, by SIGTERM, and after some seconds by SIGKILL.

    A failure of a child that no wait has raised is raised now, or printed if another exception is on its way.
    """
    _tree.close()


def send(value: object, *, timeout: float | None = None) -> None:
    """Send an object from a child to its parent."""
    _tree.here.parent.send(value, timeout=timeout)


def receive(*, timeout: float | None = None) -> Any:
    """Return the next object that the parent sent to this child."""
    return _tree.here.parent.receive(timeout=timeout)


def yield_(timeout: float | None = None) -> Any:
    """Meet the parent: wait for its join, and return the message that it gave there."""
    return _tree.here.parent.yield_(timeout)


def print(*values: object, sep: str = " ", end: str = "\n", file: TextIO | None = None) -> None:
    """Print with the id before each line, `<003> text`, in one piece, so that lines of several processes stay whole."""
    prefix = f"<{_tree.here.id:03d}> "
    text = sep.join(map(str, values))
    lines = prefix + text.replace("\n", "\n" + prefix)
    builtins.print(lines + end, end="", file=file, flush=True)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Live(ModuleType):
    """This module's class: it answers for the names that change. Use them as `parallel.id`, not by a from-import."""

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """Travel by name, as every module that a function uses does."""
        return importlib.import_module, (self.__name__,)

    @property
    def id(self) -> int:
        """0 in the root process; in a child the number that its parent gave it: 1, 2, 3 ..."""
        return _tree.here.id

    @property
    def parent(self) -> Parent | NoParent:
        """The parent, with send, receive and yield_; its id is -1 in the root process."""
        return _tree.here.parent

    @property
    def children(self) -> Table:
        """The children by id, until sync or close; exec, join, send, receive and sync are for all of them."""
        return _tree.here.children

    @property
    def nchildren(self) -> int:
        """How many children there are."""
        return len(_tree.here.children)

    @property
    def args(self) -> tuple[Any, ...]:
        """What was given to the fork of this process; empty in the root."""
        return _tree.here.args

    @property
    def timeout(self) -> float:
        """Seconds that a wait lasts at most when it is not told otherwise; 60, and children inherit it at fork."""
        return _deadline.default_timeout

    @timeout.setter
    def timeout(self, value: float) -> None:
        _deadline.default_timeout = _deadline.seconds(value, "parallel.timeout")


sys.modules[__name__].__class__ = _Live
