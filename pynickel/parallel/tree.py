"""This process's place in the tree of processes: who it is, its parent, its children; forking and closing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
from typing import Any

from pynickel.parallel import channel as kinds
from pynickel.parallel import deadline, serial
from pynickel.parallel.channel import Channel
from pynickel.parallel.child import Child, Children, Table
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.failure import ChildError
from pynickel.parallel.keeper import Keeper
from pynickel.parallel.link import Link, news
from pynickel.parallel.parent import NoParent, Parent

_GRACE = 1.0  # seconds for each way of asking a child to end, before the next one
_KILLED = 5.0  # seconds in which a killed process must have gone


class Place:
    """Who this process is, and whom it knows."""

    def __init__(self) -> None:
        self.id = 0
        self.args: tuple[Any, ...] = ()
        self.parent: Parent | NoParent = NoParent()
        self.children = Table()
        self.keepers: list[Keeper] = []
        self.next_id = 1
        self.prepared = False  # for the end of this process


here = Place()


def become_child(parent: Parent, id: int, args: tuple[Any, ...]) -> None:
    """Take the place that the parent has given to this process."""
    here.parent, here.id, here.args = parent, id, args
    _prepare()


def nfork(n: int, args: tuple[object, ...]) -> Children:
    """Start n idle children; either all of them or none."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"nfork needs a number of children, not {n!r}")
    if n < 0:
        raise ValueError(f"nfork needs 0 or more children, not {n}")
    news.raise_failure()
    parts = serial.dump(args)
    _prepare()
    keepers: list[Keeper] = []
    try:
        for _ in range(n):
            keepers.append(_start())
        _introduce(keepers, parts)
    except BaseException:
        _end(keepers)
        raise
    return Children(keeper.child for keeper in keepers)


def _start() -> Keeper:
    ours, theirs = socket.socketpair()
    keeper = Keeper(Child(here.next_id, Channel(ours), _forget), theirs)
    here.next_id += 1
    keeper.start()
    here.keepers.append(keeper)
    return keeper


def _introduce(keepers: list[Keeper], args: list[bytes | memoryview]) -> None:
    """Tell each child who it is, once all of them have been started."""
    until = Deadline()
    for keeper in keepers:
        keeper.started.wait(until.left())
        if not keeper.child.pid:
            id, reason = keeper.child.id, keeper.error or "no answer from the system"
            raise ChildError(f"child {id} could not be started: {reason}", id=id) from keeper.error
    for child in (keeper.child for keeper in keepers):
        here.children.add(child)
        setup = {"id": child.id, "parent_id": here.id, "timeout": deadline.default_timeout}
        child.push(kinds.SETUP, [json.dumps(setup).encode(), *args], until)


def _forget(child: Child) -> None:
    here.children.remove(child)
    here.keepers = [keeper for keeper in here.keepers if keeper.child is not child]


def _prepare() -> None:
    """See to it, once, that the children end with this process and stay out of its own forks."""
    if not here.prepared:
        here.prepared = True
        atexit.register(_close_at_exit)
        os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    """In a copy made by os.fork: the children and the parent are the original's, not ours."""
    for link in (*here.children.values(), here.parent):
        if isinstance(link, Link):
            link.channel.abandon()
    news.renew()
    here.parent, here.children, here.keepers = NoParent(), Table(), []


def close() -> None:
    """End all children, softly if they let us; then raise a failure that no wait has raised."""
    failure = _close()
    if failure is None:
        return
    if sys.exc_info()[0] is None:
        raise failure
    _show(failure)  # another exception is on its way and must stay the one that is raised


def _close_at_exit() -> None:
    failure = _close()
    if failure is not None:
        _show(failure)


def _show(failure: ChildError) -> None:
    sys.stderr.write(f"{type(failure).__name__}: {failure}\n")


def _close() -> ChildError | None:
    _end(here.keepers)
    return news.take_untold()


def _end(keepers: list[Keeper]) -> None:
    """End these children: by closing the connection, by SIGTERM, by SIGKILL; an interrupt goes to the last at once."""
    keepers = list(keepers)
    for keeper in keepers:
        keeper.child.closing = True
        keeper.child.channel.shutdown()
        here.children.remove(keeper.child)
    try:
        if not _have_ended(keepers, _GRACE):
            _signal(keepers, signal.SIGTERM)
            _have_ended(keepers, _GRACE)
    finally:
        _signal(keepers, signal.SIGKILL)
        for keeper in keepers:
            keeper.join(_KILLED)
        here.keepers = [keeper for keeper in here.keepers if keeper not in keepers]


def _signal(keepers: list[Keeper], number: signal.Signals) -> None:
    for keeper in keepers:
        keeper.signal(number)


def _have_ended(keepers: list[Keeper], patience: float) -> bool:
    def ended() -> bool:
        return all(keeper.child.exitcode is not None or keeper.error is not None for keeper in keepers)

    with news.changed:
        return news.changed.wait_for(ended, patience)
