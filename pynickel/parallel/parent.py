"""The child's side: what it asks of its parent. In the root process there is no parent, and each call says so."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any, NamedTuple, NoReturn

from pynickel.parallel import channel as kinds
from pynickel.parallel import given, serial
from pynickel.parallel.channel import Channel, Message
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.link import Link, news, wait_for


class Setup(NamedTuple):
    """What a child learns first: its id, its parent's id, the default timeout, and the arguments of its fork."""

    id: int
    parent_id: int
    timeout: float
    args: tuple[Any, ...]


class NoParent:
    """Stands for the parent in the root process; its id is -1."""

    id = -1
    pid = 0

    def send(self, value: object, *, timeout: float | None = None) -> NoReturn:
        """Raise RuntimeError."""
        self._refuse("send", "parallel.children.send")

    def receive(self, into: Any = None, wait: bool = True, *, timeout: float | None = None) -> NoReturn:
        """Raise RuntimeError."""
        self._refuse("receive", "parallel.children.receive")

    def yield_(self, timeout: float | None = None) -> NoReturn:
        """Raise RuntimeError."""
        self._refuse("yield_", "parallel.children.join")

    @staticmethod
    def _refuse(call: str, instead: str) -> NoReturn:
        raise RuntimeError(f"{call} is for children, and this is the root process; use {instead} here")


class Parent(Link):
    """The process that forked this one."""

    def __init__(self, channel: Channel, pid: int, host: str | None = None) -> None:
        super().__init__()
        self.channel = channel
        self.id = 0
        self.pid = pid
        self.host = host
        self.gone = False
        self._first: deque[list[bytearray]] = deque()  # SETUP, then EXEC
        self._meetings: deque[list[bytearray]] = deque()

    @property
    def name(self) -> str:
        """'the parent (pid 4711)', or 'the parent (pid 4711 on node0)'."""
        where = "" if self.host is None else f" on {self.host}"
        return f"the parent (pid {self.pid}{where})"

    def send(self, value: object, *, timeout: float | None = None) -> None:
        """Send an object to the parent; returns when the kernel has it."""
        self._push(kinds.OBJECT, serial.dump(value), Deadline(timeout))

    def receive(self, into: Any = None, wait: bool = True, *, timeout: float | None = None) -> Any:
        """Return the next object that the parent sent.

        `into`: an array, or a list of them, that what the parent sent is written into and that is returned; type and shape
        must agree. `wait=False`: None when nothing has come yet; ConnectionError once nothing can come any more.
        """
        if into is not None:
            given.check(into)
        deadline = given.patience(wait, timeout)
        if deadline is None:
            deadline = Deadline(0)
            with news.changed:
                if not self.inbox:
                    self._check_end("send anything")
                    return None
        parts = self._take_from(self.inbox, "send anything", deadline)
        if into is None:
            return serial.load(parts)
        try:
            fillings = given.match(into, serial.load(parts), self.name)
        except given.MisfitError:
            with news.changed:
                self.inbox.appendleft(parts)
            raise
        given.fill(fillings)
        self.channel.use_again(parts)
        return into

    def yield_(self, timeout: float | None = None) -> Any:
        """Wait for the parent's join, tell it that this child was there, and return its message."""
        deadline = Deadline(timeout)
        number, *parts = self._take_from(self._meetings, "join", deadline)
        message = serial.load(parts)
        self._push(kinds.JOINED, [bytes(number)], deadline)
        return message

    def setup(self) -> Setup:
        """Return the first message."""
        head, *args = self._take_from(self._first, "say who this child is", Deadline(math.inf))
        return Setup(**json.loads(bytes(head)), args=serial.load(args))

    def work(self) -> list[bytearray]:
        """Wait, for ever if need be, for something to run."""
        return self._take_from(self._first, "give anything to run", Deadline(math.inf))

    def tell(self, kind: int, *parts: bytes) -> None:
        """Tell the parent how this child is doing."""
        self._push(kind, parts, Deadline())

    def _take_from(self, queue: deque[list[bytearray]], doing: str, deadline: Deadline) -> list[bytearray]:
        with news.changed:
            wait_for([self], lambda _: bool(queue), doing, deadline)
            return queue.popleft()

    def _take(self, message: Message) -> None:
        """Note what the parent said (the watcher calls this)."""
        queues = {kinds.OBJECT: self.inbox, kinds.JOIN: self._meetings}
        with news.changed:
            queues.get(message.kind, self._first).append(message.parts)
            news.changed.notify_all()

    def left(self) -> None:
        """Note that the parent has gone or wants no more of this child (the watcher calls this)."""
        with news.changed:
            self.gone = True
            news.changed.notify_all()

    def _check_end(self, doing: str) -> None:
        """Raise ConnectionError if the parent has gone."""
        if self.gone:
            self._lost(doing)

    def _lost(self, doing: str) -> NoReturn:
        """Raise ConnectionError."""
        raise ConnectionError(f"{self.name} did not {doing}: it has closed the connection to this child")
