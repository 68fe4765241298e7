"""This process's place in the tree of processes: who it is, its parent, its children; forking and closing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from pynickel.parallel import address, deadline, serial
from pynickel.parallel import channel as kinds
from pynickel.parallel.child import Child
from pynickel.parallel.children import Children, Table
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.failure import ChildError
from pynickel.parallel.keeper import Keeper
from pynickel.parallel.link import Link, news
from pynickel.parallel.parent import NoParent, Parent
from pynickel.parallel.remote import Remote

GRACE = 2.0  # seconds for asking children to end, half of them by closing the connection, half by SIGTERM
_STARTING = 2.0  # seconds that a keeper has to say by itself why a child did not start in time
_KILLED = 5.0  # seconds in which a killed process must have gone


class Place:
    """Who this process is, and whom it knows."""

    def __init__(self) -> None:
        self.id = 0
        self.ip = address.LOOPBACK
        self.args: tuple[Any, ...] = ()
        self.parent: Parent | NoParent = NoParent()
        self.children = Table()
        self.keepers: list[Keeper] = []
        self.remotes: list[Remote] = []
        self.next_id = 1
        self.prepared = False  # for the end of this process


here = Place()


def become_child(parent: Parent, id: int, args: tuple[Any, ...]) -> None:
    """Take the place that the parent has given to this process."""
    here.parent, here.id, here.args = parent, id, args
    _prepare()


def number(n: int, what: str) -> int:
    """Return a number of children, or say what is wrong with it."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{what} needs a number of children, not {n!r}")
    if n < 0:
        raise ValueError(f"{what} needs 0 or more children, not {n}")
    return n


def nfork(machines: Sequence[Remote | None], args: tuple[object, ...], until: Deadline) -> Children:
    """Start an idle child on each of these machines, None being this one; either all of them or none."""
    news.raise_failure()
    parts = serial.dump(args)
    _prepare()
    keepers: list[Keeper] = []
    try:
        for machine in machines:
            keepers.append(_start(machine, until))
        _introduce(keepers, parts, until)
    except BaseException:
        _end(keepers, GRACE)
        raise
    return Children(keeper.child for keeper in keepers)


def _start(machine: Remote | None, until: Deadline) -> Keeper:
    child = Child(here.next_id, _forget, machine)
    keeper: Keeper
    if machine is None:
        from pynickel.parallel.keeper_here import KeeperHere

        keeper = KeeperHere(child)
    else:
        from pynickel.parallel.keeper_away import KeeperAway

        keeper = KeeperAway(child, machine, _door_for(machine), until)
    here.next_id += 1
    keeper.start()
    here.keepers.append(keeper)
    return keeper


def _door_for(machine: Remote) -> str:
    """Return the one address of ours at which a child there shall come in: what was set, else the one on the way there, else out."""
    if here.ip != address.LOOPBACK:
        return here.ip
    facing = address.facing(machine.address) or address.of_interfaces(None)  # a name that ssh alone knows has no address here
    if facing is None:
        warnings.warn(
            f"no way to {machine.host!r} is known here, so its child must come in at {address.LOOPBACK}, which no other machine "
            "can reach; set parallel.ip",
            RuntimeWarning,
            stacklevel=5,
        )
        return address.LOOPBACK
    return facing


def _introduce(keepers: list[Keeper], args: list[bytes | memoryview], until: Deadline) -> None:
    """Tell each child who it is, once all of them have been started."""
    for keeper in keepers:
        keeper.started.wait(until.left() + _STARTING)
        if keeper.error is not None or not keeper.child.pid:
            id, host, reason = keeper.child.id, keeper.child.host, keeper.error or "no answer from the system"
            text = f"child {id}{'' if host is None else f' on {host}'} could not be started: {reason}"
            if isinstance(reason, TimeoutError):
                raise TimeoutError(text) from reason
            raise ChildError(text, id=id) from keeper.error
    for child in (keeper.child for keeper in keepers):
        here.children.add(child)
        setup = {"id": child.id, "parent_id": here.id, "timeout": deadline.default_timeout}
        child._push(kinds.SETUP, [json.dumps(setup).encode(), *args], until)


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


def close(grace: float) -> None:
    """End all children, softly if they let us; then raise a failure that no wait has raised."""
    _raise_or_show(_close(grace))


def reset(grace: float) -> None:
    """End all children and forget the machines, the address and which ids were given."""
    failure = _close(grace)
    here.remotes, here.ip, here.next_id = [], address.LOOPBACK, 1
    _raise_or_show(failure)


def end(children: Sequence[Child]) -> None:
    """End these children."""
    _end([keeper for keeper in here.keepers if keeper.child in children], GRACE)


def _raise_or_show(failure: ChildError | None) -> None:
    if failure is None:
        return
    if sys.exc_info()[0] is None:
        raise failure
    _show(failure)  # another exception is on its way and must stay the one that is raised


def _close_at_exit() -> None:
    failure = _close(GRACE)
    if failure is not None:
        _show(failure)


def _show(failure: ChildError) -> None:
    sys.stderr.write(f"{type(failure).__name__}: {failure}\n")


def _close(grace: float) -> ChildError | None:
    _end(here.keepers, grace)
    return news.take_untold()


def _end(keepers: list[Keeper], grace: float) -> None:
    """End these children: by closing the connection, by SIGTERM, by SIGKILL; an interrupt goes to the last at once."""
    keepers = list(keepers)
    for keeper in keepers:
        keeper.hang_up()
        here.children.remove(keeper.child)
    try:
        if not _have_ended(keepers, grace / 2):
            _signal(keepers, signal.SIGTERM)
            _have_ended(keepers, grace / 2)
    finally:
        _signal(keepers, signal.SIGKILL)
        for keeper in keepers:
            keeper.join(_KILLED)
        here.keepers = [keeper for keeper in here.keepers if keeper not in keepers]


def _signal(keepers: list[Keeper], number: signal.Signals) -> None:
    for keeper in keepers:
        keeper.kill(number)


def _have_ended(keepers: list[Keeper], patience: float) -> bool:
    def ended() -> bool:
        return all(keeper.child.exitcode is not None or keeper.error is not None for keeper in keepers)

    with news.changed:
        return news.changed.wait_for(ended, patience)
