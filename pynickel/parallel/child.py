"""The parent's side of one child: what it has said, and how it ended."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from pynickel.parallel import channel as kinds
from pynickel.parallel import given
from pynickel.parallel.channel import Message
from pynickel.parallel.commands import Commands
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.failure import ChildError, end_in_words, quoted
from pynickel.parallel.link import Link, news, wait_for
from pynickel.parallel.remote import Remote

_ENDING = 5.0  # seconds in which the reason for a broken connection turns up


class Child(Link, Commands):
    """One child process. `id` is its number, `pid` the system's, `exitcode` None while it lives.

    `remote` is the machine it runs on and `host` that machine's name, both None on this one; `speed` is the machine's.
    """

    def __init__(self, id: int, forget: Callable[[Child], None], remote: Remote | None = None) -> None:
        super().__init__()
        self.id = id
        self.remote = remote
        self.speed = 1.0 if remote is None else remote.speed
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
        """'child 3 (pid 4711)', or 'child 3 (pid 4711 on node1)'."""
        where = "" if self.host is None else f" on {self.host}"
        return f"child {self.id} (pid {self.pid}{where})"

    @property
    def host(self) -> str | None:
        """The machine's name; None on this one."""
        return None if self.remote is None else self.remote.host

    @property
    def over(self) -> bool:
        """Whether nothing more can come from it."""
        return self.done or self.exitcode is not None

    def receive(self, into: Any = None, wait: bool = True, *, timeout: float | None = None) -> Any:
        """Return the next object that the child sent.

        `into`: an array, or a list of them, that what the child sent is written into and that is returned; type and shape
        must agree. `wait=False`: None when nothing has come yet; ChildError once nothing can come any more.
        """
        if into is not None:
            given.check(into)
        return self._receive(None if into is None else {self.id: into}, wait, timeout).get(self.id)

    def _members(self) -> list[Child]:
        return [self]

    def _take(self, message: Message) -> None:
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
                self._fail(f"failed: {told['error']}", traceback=told["traceback"], follows=told["follows"])
            news.changed.notify_all()

    def _ended(self, exitcode: int, last_lines: str) -> None:
        """Note the end of the process (the keeper calls this)."""
        with news.changed:
            self.exitcode = exitcode
            if self.failure is not None:
                self.failure.exitcode = exitcode
            elif exitcode or not self.done:
                stage = " after its work had returned" if self.done else "" if self.ready else " before it had started"
                self._fail(end_in_words(exitcode) + stage, last_lines=last_lines)
            news.changed.notify_all()

    def _fail(self, what: str, traceback: str = "", last_lines: str = "", follows: bool = False) -> None:
        """Keep the failure for the next wait, unless it comes of the parent's ending this child."""
        text = f"{self.name} {what}{quoted('its traceback', traceback)}{quoted('its last lines on stderr', last_lines)}"
        error = ChildError(text, id=self.id, pid=self.pid, traceback=traceback, exitcode=self.exitcode)
        error.follows = follows
        with news.changed:
            self.failure = error
            if not self.closing or (traceback and not follows):
                news.add_failure(error)
            news.changed.notify_all()

    def _check_end(self, doing: str) -> None:
        """Raise ChildError if this child has failed or ended."""
        if news.holds(self.failure):
            return
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.over:
            end = "its work has returned" if self.exitcode is None else f"it {end_in_words(self.exitcode)}"
            raise ChildError(f"{self.name} did not {doing}: {end}", id=self.id, pid=self.pid, exitcode=self.exitcode)

    def _lost(self, doing: str) -> NoReturn:
        """Wait for the reason of a broken connection and raise it."""
        wait_for([self], lambda child: child.exitcode is not None, "say why its connection broke", Deadline(_ENDING))
        wait_for([self], lambda child: not news.holds(child.failure), "say why its connection broke", Deadline(_ENDING))
        self._check_end(doing)
        raise ChildError(f"{self.name} cannot {doing}", id=self.id, pid=self.pid)
