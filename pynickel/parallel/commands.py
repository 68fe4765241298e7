"""What a parent can ask of its children, of one or of many: exec, join, send, receive, sync."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pynickel.parallel import channel as kinds
from pynickel.parallel import given, serial
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.link import news, wait_for

if TYPE_CHECKING:
    from pynickel.parallel.child import Child


class Commands(ABC):
    """What a parent can ask of children. Every wait also raises the ChildError of any child that fails meanwhile.

    `timeout` is in seconds; None means `parallel.timeout`.
    """

    @abstractmethod
    def _members(self) -> list[Child]:
        """Those that are asked."""

    def exec(self, work: Callable[..., object] | str, *args: object, timeout: float | None = None) -> None:
        """Have the function called with the arguments, or the source text run with them as `args`; does not wait.

        A child runs one thing in its life and ends when that ends.
        """
        members = self._members()
        busy = [child.name for child in members if child.running]
        if busy:
            raise RuntimeError(f"{', '.join(busy)} was already given something to run; fork another child")
        parts = serial.dump_work(work, args)
        deadline = Deadline(timeout)
        for child in members:
            child.running = True
            child._push(kinds.EXEC, parts, deadline)

    def join(self, message: object = None, timeout: float | None = None) -> None:
        """Meet the children: all get the message from their yield_ at once; wait until all have been there."""
        members = self._members()
        _check_running(members, "join")
        deadline = Deadline(timeout)
        parts = serial.dump(message)
        for child in members:
            child.meeting += 1
            child._push(kinds.JOIN, [child.meeting.to_bytes(8, "little"), *parts], deadline)
        wait_for(members, lambda child: child.met >= child.meeting, "come to yield_", deadline)

    def send(self, value: object, *, timeout: float | None = None) -> None:
        """Send an object, serialised once; returns when the kernel has it. Any number may be on the way."""
        parts = serial.dump(value)
        deadline = Deadline(timeout)
        for child in self._members():
            child._push(kinds.OBJECT, parts, deadline)

    def sync(self, timeout: float | None = None) -> None:
        """Wait until the processes have ended, and remove them from `parallel.children`."""
        members = self._members()
        _check_running(members, "sync")
        wait_for(members, lambda child: child.exitcode is not None, "end", Deadline(timeout), may_end=True)
        for child in members:
            child.forget(child)

    def _receive(self, into: dict[int, Any] | None, wait: bool, timeout: float | None) -> dict[int, Any]:
        """Take the next object of every child, or, without waiting, of those that have one; by child id."""
        members = self._members()
        _check_running(members, "receive")
        deadline = given.patience(wait, timeout)
        with news.changed:
            if deadline is None:
                ready = _ready(members)
            else:
                wait_for(members, lambda child: bool(child.inbox), "send anything", deadline)
                ready = members
            parts = {child.id: child.inbox.popleft() for child in ready}
        if into is None:
            return {id: serial.load(part) for id, part in parts.items()}
        return _received_into(ready, parts, into)


def _check_running(members: Sequence[Child], what: str) -> None:
    idle = [child.name for child in members if not child.running]
    if idle:
        raise RuntimeError(f"{what} would wait for ever: {', '.join(idle)} has nothing to run; call exec first")


def _ready(members: Sequence[Child]) -> list[Child]:
    """The children that have sent something; ChildError when none has, and none can any more."""
    news.raise_failure()
    ready = [child for child in members if child.inbox]
    if not ready and members and all(child.over for child in members):
        members[0]._check_end("send anything")
    return ready


def _received_into(ready: Sequence[Child], parts: dict[int, list[bytearray]], into: dict[int, Any]) -> dict[int, Any]:
    """Put what was received into the arrays that the caller has given; if one does not fit, nothing is taken."""
    try:
        fillings = [given.match(into[child.id], serial.load(parts[child.id]), child.name) for child in ready]
    except given.MisfitError:
        with news.changed:
            for child in ready:
                child.inbox.appendleft(parts[child.id])
        raise
    for child, filling in zip(ready, fillings, strict=True):
        given.fill(filling)
        child.channel.use_again(parts[child.id])
    return {child.id: into[child.id] for child in ready}
