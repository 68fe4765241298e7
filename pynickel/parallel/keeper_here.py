"""Keeps a child on this machine: a fresh interpreter at the other end of a pair of connected sockets, which have no address."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pynickel.parallel.channel import Channel
from pynickel.parallel.child import Child
from pynickel.parallel.keeper import STDERR, Keeper


class KeeperHere(Keeper):
    """Keeps one child on this machine."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        ours, self._theirs = socket.socketpair()
        child.channel = Channel(ours)

    def run(self) -> None:
        """Start the child and stay with it."""
        try:
            super().run()
        finally:
            self._theirs.close()
            self.child.channel.close()

    def _start(self) -> tuple[int, subprocess.Popen[bytes]]:
        """Start an interpreter like this one."""
        stderr, theirs = os.pipe()
        try:
            connection = self._theirs.fileno()
            with _last_words() as ours:
                command = _command(connection, ours)
                kept = [connection] if ours < 0 else [connection, ours]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=theirs, pass_fds=kept)
        except BaseException:
            os.close(stderr)
            raise
        finally:
            os.close(theirs)
            self._theirs.close()
        os.set_blocking(stderr, False)
        self._process = process
        self.child.pid = process.pid
        return stderr, process


@contextmanager
def _last_words() -> Iterator[int]:
    """A copy of our own stderr for the child: where it says that we have ended, when nobody passes its stderr on; -1 if ours is closed."""
    try:
        ours = os.dup(STDERR)
    except OSError:
        yield -1
        return
    try:
        yield ours
    finally:
        os.close(ours)


def _command(descriptor: int, last_words: int) -> list[str]:
    """Return the command of a fresh interpreter that finds the same modules as this one, and warns and optimises as this one does."""
    if not sys.executable:
        raise FileNotFoundError("sys.executable is empty: this program does not know its Python interpreter")
    program = f"import sys; sys.path[:] = {search_path()!r}; from pynickel.parallel import worker"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # what multiprocessing gives its children, too
    return [sys.executable, *flags, "-c", f"{program}; worker.start({descriptor}, {os.getpid()}, {last_words})"]


def search_path() -> list[str]:
    """Return where a child must look for modules to find those that we do, this package among them."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    ours = str(Path(__file__).resolve().parents[2])
    return path if ours in path else [*path, ours]
