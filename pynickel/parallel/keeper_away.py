"""Keeps a child on another machine: starts it through a command, and lets it in at a door of ours."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import time

from pynickel.parallel import channel as kinds
from pynickel.parallel import door
from pynickel.parallel.away import greeting
from pynickel.parallel.channel import Channel
from pynickel.parallel.child import Child
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.failure import end_in_words, quoted
from pynickel.parallel.keeper import Keeper
from pynickel.parallel.keeper_here import search_path
from pynickel.parallel.remote import Remote

_LOST = 5.0  # seconds in which the command must have ended once the connection has


class KeeperAway(Keeper):
    """Keeps one child that a command (ssh, for one) starts on another machine.

    The command is a session of its own: Ctrl-C does not reach it, and if it must be killed so is all that it has started here.
    """

    def __init__(self, child: Child, remote: Remote, ip: str, deadline: Deadline) -> None:
        super().__init__(child)
        self._remote = remote
        self._deadline = deadline
        try:
            self._door = door.Door(ip)
        except OSError as error:
            text = f"no child can come in at {ip}: {error.strerror}; set parallel.ip to an address of this machine, or call autoip()"
            raise OSError(error.errno, text) from error
        self._lost = math.inf  # when the command must have ended, once the connection has

    def _start(self) -> tuple[int, subprocess.Popen[bytes]]:
        """Start the command and wait until the child has come in."""
        try:
            stderr, theirs = os.pipe()
            try:
                process = subprocess.Popen(self._remote.starting(), stdin=subprocess.PIPE, stderr=theirs, start_new_session=True)
            except BaseException:
                os.close(stderr)
                raise
            finally:
                os.close(theirs)
            os.set_blocking(stderr, False)
            self._process = process
            try:
                self._meet(process, stderr)
            except BaseException:
                self._pass_signal(process, signal.SIGKILL)
                process.wait()
                os.close(stderr)
                raise
            return stderr, process
        finally:
            self._door.close()

    def _meet(self, process: subprocess.Popen[bytes], stderr: int) -> None:
        self._tell(process)
        where = f"{self._door.ip}:{self._door.port}"
        try:
            connection = self._door.admit(self._deadline, lambda: self._look(process, stderr))
        except TimeoutError:
            raise TimeoutError(
                f"it did not connect to {where} within {self._deadline.seconds:g} s: can {self._remote.host} reach that address, "
                f"and does the command pass on its standard input?{quoted('its last lines on stderr', self.last_lines())}"
            ) from None
        self.child.channel = Channel(door.tuned(connection))
        self.child.pid = self._greet(process, stderr)

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        """Write the program that the interpreter there reads from its standard input."""
        paths = f"import sys; sys.path += [path for path in {search_path()!a} if path not in sys.path]"
        told = (
            self._door.ip, self._door.port, self._door.key.hex(), min(self._deadline.left(), 3600.0), os.getpid(), socket.gethostname()
        )  # fmt: skip
        program = f"{paths}\nfrom pynickel.parallel import away\naway.main(*{told!a})\n"
        stdin = process.stdin
        if stdin is None:
            raise OSError("the command has no standard input")
        try:
            stdin.write(program.encode("ascii"))
            stdin.close()
        except BrokenPipeError:
            return  # it has ended: why, we shall see

    def _look(self, process: subprocess.Popen[bytes], stderr: int) -> None:
        """Pass on what it writes; raise when it has ended, or is not wanted any more."""
        self._pass_on(stderr)
        if process.poll() is not None:
            self._pass_on(stderr)
            end = end_in_words(process.returncode)
            raise ChildProcessError(f"it {end} before it had started{quoted('its last lines on stderr', self.last_lines())}")
        if self.child.closing:
            raise ChildProcessError("it was ended before it had started")

    def _greet(self, process: subprocess.Popen[bytes], stderr: int) -> int:
        """Read its first message, from which we know that both sides are of one kind; return its pid."""
        while True:
            self._look(process, stderr)
            try:
                for message in self.child.channel.arrived():
                    if message.kind == kinds.HELLO:
                        return self._compare(json.loads(bytes(message.parts[0])))
            except EOFError:
                time.sleep(0.01)  # its end, and what it wrote, are on their way
            self._deadline.check()
            time.sleep(0.001)

    def _compare(self, told: dict[str, object]) -> int:
        ours = greeting()
        if {name: told.get(name) for name in ours} != ours:
            there, here = (", ".join(f"{name} {known.get(name)}" for name in ours) for known in (told, ours))
            raise ChildProcessError(f"{self._remote.host} has {there}, and we have {here}; choose another interpreter there with python=")
        return int(str(told["pid"]))

    def _connection_ended(self, process: subprocess.Popen[bytes]) -> None:
        """A machine that has vanished does not end its command by itself."""
        self._lost = min(self._lost, time.monotonic() + _LOST)
        if time.monotonic() > self._lost:
            if process.poll() is None and self.child.failure is None:
                self.child._fail(f"is lost: the connection to {self._remote.host} has ended")
            self._pass_signal(process, signal.SIGKILL)

    def _pass_signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # all of it has ended
