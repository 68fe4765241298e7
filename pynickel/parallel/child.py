"""The parent's side of its children: one child, or a list or table of them, with the same five methods."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex, overload

from pynickel.parallel import channel as kinds
from pynickel.parallel import serial
from pynickel.parallel.channel import Channel, Message
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.failure import ChildError, end_in_words, quoted
from pynickel.parallel.link import Link, news, wait_for

_ENDING = 5.0  # seconds in which the reason for a broken connection turns up


class Commands:
    """What a parent can ask of children. Every wait also raises the ChildError of any child that fails meanwhile.

    `timeout` is in seconds; None means `parallel.timeout`.
    """

    def _members(self) -> list[Child]:
        raise NotImplementedError

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
            child.push(kinds.EXEC, parts, deadline)

    def join(self, message: object = None, timeout: float | None = None) -> None:
        """Meet the children: all get the message from their yield_ at once; wait until all have been there."""
        members = self._members()
        self._check_running(members, "join")
        deadline = Deadline(timeout)
        parts = serial.dump(message)
        for child in members:
            child.meeting += 1
            child.push(kinds.JOIN, [child.meeting.to_bytes(8, "little"), *parts], deadline)
        wait_for(members, lambda child: child.met >= child.meeting, "come to yield_", deadline)

    def send(self, value: object, *, timeout: float | None = None) -> None:
        """Send an object, serialised once; returns when the kernel has it. Any number may be on the way."""
        parts = serial.dump(value)
        deadline = Deadline(timeout)
        for child in self._members():
            child.push(kinds.OBJECT, parts, deadline)

    def sync(self, timeout: float | None = None) -> None:
        """Wait until the processes have ended, and remove them from `parallel.children`."""
        members = self._members()
        self._check_running(members, "sync")
        wait_for(members, lambda child: child.exitcode is not None, "end", Deadline(timeout), may_end=True)
        for child in members:
            child.forget(child)

    def _receive(self, timeout: float | None) -> dict[int, Any]:
        members = self._members()
        self._check_running(members, "receive")
        with news.changed:
            wait_for(members, lambda child: bool(child.inbox), "send anything", Deadline(timeout))
            parts = {child.id: child.inbox.popleft() for child in members}
        return {id: serial.load(part) for id, part in parts.items()}

    @staticmethod
    def _check_running(members: list[Child], what: str) -> None:
        idle = [child.name for child in members if not child.running]
        if idle:
            raise RuntimeError(f"{what} would wait for ever: {', '.join(idle)} has nothing to run; call exec first")


class Child(Link, Commands):
    """One child process. `id` is its number, `pid` the system's, `exitcode` None while it lives."""

    def __init__(self, id: int, channel: Channel, forget: Callable[[Child], None]) -> None:
        super().__init__(channel)
        self.id = id
        self.pid = 0
        self.exitcode: int | None = None
        self.running = False  # it was given something to run
        self.ready = self.done = self.closing = False  # it has started; its work returned; the parent ends it
        self.meeting = self.met = 0  # joins asked for, joins answered
        self.failure: ChildError | None = None
        self.forget = forget

    def __repr__(self) -> str:
        state = "running" if self.running else "idle"
        return f"<{self.name}, {state if self.exitcode is None else end_in_words(self.exitcode)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.name} belongs to the process that forked it and cannot be sent; send its id")

    @property
    def name(self) -> str:
        """'child 3 (pid 4711)'."""
        return f"child {self.id} (pid {self.pid})"

    def receive(self, *, timeout: float | None = None) -> Any:
        """Return the next object that the child sent."""
        return self._receive(timeout)[self.id]

    def _members(self) -> list[Child]:
        return [self]

    def take(self, message: Message) -> None:
        """Note what the child said (the keeper calls this)."""
        with news.changed:
            if message.kind == kinds.OBJECT:
                self.inbox.append(message.parts)
            elif message.kind == kinds.JOINED:
                self.met = int.from_bytes(message.parts[0], "little")
            elif message.kind == kinds.READY:
                self.ready = True
            elif message.kind == kinds.DONE:
                self.done = True
            elif message.kind == kinds.FAILED:
                told = json.loads(bytes(message.parts[0]))
                self.fail(f"failed: {told['error']}", traceback=told["traceback"])
            news.changed.notify_all()

    def ended(self, exitcode: int, last_lines: str) -> None:
        """Note the end of the process (the keeper calls this)."""
        with news.changed:
            self.exitcode = exitcode
            if self.failure is not None:
                self.failure.exitcode = exitcode
            elif exitcode or not self.done:
                stage = " after its work had returned" if self.done else "" if self.ready else " before it had started"
                self.fail(end_in_words(exitcode) + stage, last_lines=last_lines)
            news.changed.notify_all()

    def fail(self, what: str, traceback: str = "", last_lines: str = "") -> None:
        """Keep the failure for the next wait, unless the parent itself is ending this child."""
        text = f"{self.name} {what}{quoted('its traceback', traceback)}{quoted('its last lines on stderr', last_lines)}"
        error = ChildError(text, id=self.id, pid=self.pid, traceback=traceback, exitcode=self.exitcode)
        with news.changed:
            self.failure = error
            if not self.closing:
                news.failures.append(error)
            news.changed.notify_all()

    def check_end(self, doing: str) -> None:
        """Raise ChildError if this child has failed or ended."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.done or self.exitcode is not None:
            end = "its work has returned" if self.exitcode is None else f"it {end_in_words(self.exitcode)}"
            raise ChildError(f"{self.name} did not {doing}: {end}", id=self.id, pid=self.pid, exitcode=self.exitcode)

    def lost(self, doing: str) -> NoReturn:
        """Wait for the reason of a broken connection and raise it."""
        wait_for([self], lambda child: child.exitcode is not None, "say why its connection broke", Deadline(_ENDING))
        self.check_end(doing)
        raise ChildError(f"{self.name} cannot {doing}", id=self.id, pid=self.pid)


class Children(list[Child], Commands):
    """A list of children; `receive` returns a dict by child id."""

    def receive(self, *, timeout: float | None = None) -> dict[int, Any]:
        """Return the next object of each child, by child id; if one is missing, none is taken."""
        return self._receive(timeout)

    def _members(self) -> list[Child]:
        return list(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Child: ...
    @overload
    def __getitem__(self, index: slice) -> Children: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Child | Children:
        """Return a child, or for a slice the children in it with the same methods."""
        if isinstance(index, slice):
            return Children(super().__getitem__(index))
        return super().__getitem__(index)


class Table(Mapping[int, Child], Commands):
    """The children of this process by id, in the order in which they were forked."""

    def __init__(self, children: Sequence[Child] = ()) -> None:
        self._by_id = {child.id: child for child in children}

    def __getitem__(self, id: int) -> Child:
        """Return the child with this id."""
        try:
            return self._by_id[id]
        except KeyError:
            known = ", ".join(map(str, self._by_id)) or "none"
            raise KeyError(f"no child has the id {id!r}; ids: {known}") from None

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_id))

    def __len__(self) -> int:
        return len(self._by_id)

    def receive(self, *, timeout: float | None = None) -> dict[int, Any]:
        """Return the next object of each child, by child id; if one is missing, none is taken."""
        return self._receive(timeout)

    def add(self, child: Child) -> None:
        """Take a new child in."""
        self._by_id[child.id] = child

    def remove(self, child: Child) -> None:
        """Take a child out. Harmless twice."""
        self._by_id.pop(child.id, None)

    def _members(self) -> list[Child]:
        return list(self._by_id.values())
