"""Parent and children: start fresh Python processes, here or on other machines, give them work, meet them, exchange objects."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TextIO

from pynickel.parallel import address as _address
from pynickel.parallel import deadline as _deadline
from pynickel.parallel import places as _places
from pynickel.parallel import tree as _tree
from pynickel.parallel.child import Child
from pynickel.parallel.children import Children, Table
from pynickel.parallel.failure import ChildError
from pynickel.parallel.parent import NoParent, Parent
from pynickel.parallel.remote import Remote

__all__ = [
    "Child",
    "ChildError",
    "Children",
    "Remote",
    "add_remote",
    "args",
    "autoip",
    "calibrate",
    "children",
    "close",
    "fork",
    "id",
    "ip",
    "nchildren",
    "nfork",
    "parent",
    "print",
    "receive",
    "remotes",
    "reset",
    "run",
    "send",
    "sfork",
    "timeout",
    "yield_",
]

# These change while the program runs, so they are looked up at each use: see _Live.
id: int
ip: str
parent: Parent | NoParent
children: Table
nchildren: int
args: tuple[Any, ...]
remotes: tuple[Remote, ...]
timeout: float


def fork(
    *args: object,
    host: str | Remote | None = None,
    python: str | None = None,
    command: str | Sequence[str] | None = None,
    timeout: float | None = None,
) -> Child:
    """Start one idle child, a fresh interpreter; it finds the arguments, of any kind, in `parallel.args`.

    `host`: another machine, by name or as add_remote gave it; `python` and `command` as add_remote takes them.
    """
    return _tree.nfork([_places.place(host, python, command)], args, _deadline.Deadline(timeout))[0]


def nfork(
    n: int | Mapping[str | Remote, int],
    *args: object,
    host: str | Remote | None = None,
    python: str | None = None,
    command: str | Sequence[str] | None = None,
    timeout: float | None = None,
) -> Children:
    """Start n idle children as fork does, either all or none; a dict says how many on which host."""
    return _tree.nfork(_places.places(n, host, python, command), args, _deadline.Deadline(timeout))


def sfork(n: int, *args: object, timeout: float | None = None) -> Children:
    """Start n idle children on the remote machines, one per machine and turn, as long as cores are free; here if there are no remotes.

    Beyond the free cores it goes on in turns, with a RuntimeWarning. `child.speed` is its machine's.
    """
    return _tree.nfork(_places.dealt(_tree.number(n, "sfork")), args, _deadline.Deadline(timeout))


def run(function: Callable[..., object] | str, *args: object, timeout: float | None = None) -> Child:
    """Fork one child and have it call the function with the arguments."""
    child = fork(*args, timeout=timeout)
    child.exec(function, *args, timeout=timeout)
    return child


def add_remote(host: str, cores: int = 1, python: str | None = None, command: str | Sequence[str] | None = None) -> Remote:
    """Make a machine known to sfork, which starts up to `cores` children there; the same host may be added again.

    `python`: its interpreter; None: the path of this one. It needs this pynickel and this Python's version (3.x).
    `command`: the words before the interpreter that run it there, with `{host}` for the host, and that pass on standard input and
    output; None: ssh, which must not ask for a password. Nothing is started now.
    """
    remote = Remote(host, cores, python, command)
    _tree.here.remotes.append(remote)
    return remote


def calibrate(repetitions: int = 20_000, *, timeout: float | None = None) -> tuple[Remote, ...]:
    """Measure the remote machines: the same work on all cores at once; `speed` is 1 for the fastest, and children inherit it."""
    from pynickel.parallel import calibration

    calibration.measure(repetitions, timeout)
    return tuple(_tree.here.remotes)


def autoip(interfaces: str | Sequence[str] | None = None) -> str:
    """Find this machine's address, set `parallel.ip` to it and return it: the first that one of the interfaces has.

    None: the address of the way out. Without one, a RuntimeWarning, and `parallel.ip` stays as it is.
    """
    names = [interfaces] if isinstance(interfaces, str) else interfaces
    return _places.set_ip(_address.of_interfaces(names))


def reset(*, timeout: float = _tree.GRACE) -> None:
    """End all children as close does, and begin anew: ids from 1, no remotes, loopback as address. A child keeps its parent and id."""
    _tree.reset(_deadline.seconds(timeout))


def close(*, timeout: float = _tree.GRACE) -> None:
    """End all children of this process: by closing their connections, then by SIGTERM, and after `timeout` seconds by SIGKILL.

    A failure of a child that no wait has raised is raised now, or printed if another exception is on its way.
    """
    _tree.close(_deadline.seconds(timeout))


def send(value: object, *, timeout: float | None = None) -> None:
    """Send an object from a child to its parent."""
    _tree.here.parent.send(value, timeout=timeout)


def receive(into: Any = None, wait: bool = True, *, timeout: float | None = None) -> Any:
    """Return the next object that the parent sent to this child, as `parallel.parent.receive` does."""
    return _tree.here.parent.receive(into, wait, timeout=timeout)


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
    def ip(self) -> str:
        """The address where children on other machines come in; loopback: for each machine the one on the way to it."""
        return _tree.here.ip

    @ip.setter
    def ip(self, value: str) -> None:
        _tree.here.ip = _address.checked(value)

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
    def remotes(self) -> tuple[Remote, ...]:
        """The machines that add_remote made known."""
        return tuple(_tree.here.remotes)

    @property
    def timeout(self) -> float:
        """Seconds that a wait lasts at most when it is not told otherwise; 60, and children inherit it at fork."""
        return _deadline.default_timeout

    @timeout.setter
    def timeout(self, value: float) -> None:
        _deadline.default_timeout = _deadline.seconds(value, "parallel.timeout")


sys.modules[__name__].__class__ = _Live
