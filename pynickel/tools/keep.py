"""Keeps the ranks of one run: starts them, shows their output, passes signals on, and ends all soon after the first failure."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import signal
import subprocess
import sys
import time

from . import watch
from .lines import Lines, write

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # after these the ranks are expected to end
_OWN_STORY = 1.0  # seconds that the other ranks have, after the first failure, to say what they saw of it
_CONSEQUENCES = tuple(f"pynickel.errors.{name}" for name in ("RemoteError", "AbortedError", "RendezvousError"))
_TICK = 0.1  # seconds between two looks at the clock
_PIPE = 65536
_NOT_FOUND, _NOT_RUNNABLE = 127, 126  # as a shell says it


class Rank:
    """One rank: its process, and the lines of its stdout and stderr."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], outputs: dict[int, Lines]) -> None:
        self.number, self.process, self.outputs = number, process, outputs
        self.status: int | None = None  # the exit status, or minus the signal

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process and what it has started, unless it has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def release(self, now: float) -> None:
        """Show what was held for long."""
        for lines in self.outputs.values():
            lines.release(now)

    def end(self) -> None:
        """Show all that is left."""
        for lines in self.outputs.values():
            lines.end()

    def last(self) -> list[str]:
        """The last lines of both outputs."""
        return [line for lines in self.outputs.values() for line in lines.last()]

    @property
    def is_consequence(self) -> bool:
        """Whether it says itself that it failed because another rank did: then that one's story is the one to tell."""
        return any(line.startswith(_CONSEQUENCES) for line in self.last())


def begin(keeper: int) -> None:
    """In the child: a process group of its own, for signals, but not a session: Linux hands a core over within a session only
    (sched_autogroup), and ranks that outnumber the cores wait for each other by giving theirs away."""
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.setpgrp()
    watch.end_with_parent(keeper)


class Ranks:
    """All ranks of one run. Made in the process that the user sees; `keep` runs in the keeper.

    `tells`: whether the ranks say themselves why they end with a status other than 0, so that only signals are left to be told.
    `for_reader`: whether they are to end when nobody reads the output any more.
    """

    def __init__(
        self,
        command: list[str],
        environments: list[dict[str, str]],
        prefix: bool,
        grace: float,
        *,
        tells: bool = False,
        for_reader: bool = False,
    ) -> None:
        self.command, self.environments, self.prefix, self.grace = command, environments, prefix, grace
        self.tells, self.for_reader = tells, for_reader
        self.ranks: list[Rank] = []
        self.failures: list[Rank] = []  # in the order of their ends
        self.signals: list[int] = []  # that have come and are not yet passed on
        self.stages: list[tuple[float, int]] = []  # when the ranks get which signal, soonest first
        self.asked = False  # a signal has asked for the end
        self.ended_by = 0  # it, if no rank had failed before
        self.launcher = select.poll()  # readable once the launcher is gone
        self.left = False  # they have to end because nobody reads what they write

    def keep(self, launcher: int) -> int:
        """Run all ranks to their end and return the exit status; `launcher` is readable once the launcher is gone."""
        selector = selectors.DefaultSelector()
        waker, wake = os.pipe()
        for descriptor in (waker, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in watch.heard():
            signal.signal(number, lambda number, frame: self.signals.append(number))
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # under `stty tostop` our output would stop us: we are in the background
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watch.PASSED_ON)
        selector.register(waker, selectors.EVENT_READ)
        selector.register(launcher, selectors.EVENT_READ)
        self.launcher.register(launcher, select.POLLIN)
        try:
            if status := self._start(selector):
                return status
            while any(rank.status is None for rank in self.ranks):
                if self._turn(selector, waker, launcher):
                    return 1  # the launcher was killed; so are the ranks, now
            return self._finish()
        finally:
            self._kill_all()

    def _start(self, selector: selectors.BaseSelector) -> int:
        """Start all ranks; the exit status if that is impossible."""
        keeper = os.getpid()
        for number, env in enumerate(self.environments):
            writes: tuple[int, ...] = ()
            try:
                reads, writes = zip(*(os.pipe() for _ in range(2)), strict=True)
                process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=writes[0],
                    stderr=writes[1],
                    env=env,
                    preexec_fn=lambda: begin(keeper),
                )
            except OSError as error:
                print(f"pynickel run: {self.command[0]!r} cannot be started: {error.strerror}{self._hint(error)}", file=sys.stderr)
                return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
            finally:
                for descriptor in writes:
                    os.close(descriptor)
            prefix = f"[{number:{len(str(len(self.environments) - 1))}}] " if self.prefix else ""
            outputs = {descriptor: Lines(prefix, out, self._is_ending) for descriptor, out in zip(reads, (1, 2), strict=True)}
            self.ranks.append(Rank(number, process, outputs))
            for descriptor in outputs:
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
        return 0

    def _hint(self, error: OSError) -> str:
        if error.errno == errno.EMFILE:
            return f"; {len(self.environments)} ranks need {2 * len(self.environments)} and a few more: ulimit -n"
        return "; a Python program is started by: python " + self.command[0] if self.command[0].endswith(".py") else ""

    def _turn(self, selector: selectors.BaseSelector, waker: int, launcher: int) -> bool:
        """Look once at everything; True when the launcher is gone."""
        ready = {key.fd for key, _ in selector.select(_TICK)}
        if launcher in ready:
            return True
        if waker in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(waker, _PIPE)
        for rank in self.ranks:
            for descriptor in [known for known in rank.outputs if known in ready]:
                self._read(selector, rank, descriptor)
        self._collect(selector)
        if self.for_reader and not self.asked and any(lines.unread for rank in self.ranks for lines in rank.outputs.values()):
            self.left = True
            self.signals.append(signal.SIGINT)
        while self.signals:
            self._pass_on(self.signals.pop(0))
        self._advance()
        return False

    def _read(self, selector: selectors.BaseSelector, rank: Rank, descriptor: int) -> bool:
        """Show what a rank has written; False when there is nothing (more)."""
        try:
            data = os.read(descriptor, _PIPE)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):
                selector.unregister(descriptor)
            return False
        rank.outputs[descriptor].take(data)
        return True

    def _collect(self, selector: selectors.BaseSelector) -> None:
        """Take in which processes have ended; orphans of the ranks are ours as well."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                for rank in self.ranks:
                    if rank.process.pid == ended[0]:
                        rank.process.returncode = rank.status = os.waitstatus_to_exitcode(ended[1])
                        self._note_end(selector, rank)

    def _note_end(self, selector: selectors.BaseSelector, rank: Rank) -> None:
        for descriptor in rank.outputs:
            while self._read(selector, rank, descriptor):
                continue
        if rank.status == 0:
            rank.end()
            return
        self.failures.append(rank)
        if len(self.failures) == 1 and not self.asked:
            now = time.monotonic()
            self.stages = [(now + _OWN_STORY, signal.SIGTERM), (now + _OWN_STORY + self.grace, signal.SIGKILL)]

    def _pass_on(self, number: int) -> None:
        """A signal goes to every rank once; if it is to end them and they do not, they are killed. A second one kills them at once."""
        if number in _ENDING and self.asked:
            number = signal.SIGKILL
        if number in _ENDING and not self.asked and not self.failures:
            self.ended_by = number
        for rank in self.ranks:
            rank.signal(number)
        if number in _ENDING:
            self.asked = True
            self.stages = [(time.monotonic() + self.grace, signal.SIGKILL)]

    def _advance(self) -> None:
        """Send what is due, and show lines that wait for their end no longer."""
        now = time.monotonic()
        while self.stages and self.stages[0][0] <= now:
            number = self.stages.pop(0)[1]
            for rank in self.ranks:
                rank.signal(number)
        for rank in self.ranks:
            if rank.status is None:
                rank.release(now)

    def _finish(self) -> int:
        """Say which rank failed first, with its last lines, and return its exit status."""
        cause = next((rank for rank in self.failures if not rank.is_consequence), self.failures[0] if self.failures else None)
        for rank in self.failures:
            if rank is not cause or self.asked:
                rank.end()
        if cause is None or cause.status is None or self.left:
            return 0
        if self.tells and self.ended_by:  # one that failed because another had the signal first says nothing, nor do we
            return 128 + self.ended_by
        status = cause.status
        if self.tells and status > 0:
            cause.end()
            return status
        how = f"was ended by {_name(-status)}" if status < 0 else f"failed with exit status {status}"
        text = f"pynickel run: rank {cause.number} of {len(self.ranks)} (pid {cause.process.pid}) {how}"
        last = [] if self.asked else cause.last()
        if last:
            text = "\n".join([f"{text}; its last lines:", *(f"  {line}" for line in last)])
        write(2, f"{text}\n".encode(errors="replace"), self._is_ending)
        return 128 - status if status < 0 else status

    def _is_ending(self) -> bool:
        """Whether nobody waits for our output: a signal has come that asks for the end, or may, or the launcher was killed."""
        return self.asked or bool(self.signals) or bool(self.launcher.poll(0))

    def _kill_all(self) -> None:
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
