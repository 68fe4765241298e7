"""One thread per child: starts the process, reads what it says, passes its stderr on, notices its end."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pynickel.parallel.child import Child

_IDLE = 1000  # milliseconds between two looks at the process while nothing comes from it
_ENDING = 10  # the same once it has closed its connection, which it does by ending
_PIPE = 65536  # bytes that a pipe holds, so one read empties it
_TAIL = 4096  # bytes of stderr that are kept for the error
_TAIL_LINES = 20
_STDERR = 2


class Keeper(threading.Thread):
    """Keeps one child. It lives as long as the child does.

    So the child may ask the kernel for its end when the thread that started it ends: that is then the end of the
    whole parent, whichever of its threads called fork.
    """

    def __init__(self, child: Child, theirs: socket.socket) -> None:
        super().__init__(name=f"pynickel.parallel child {child.id}", daemon=True)
        self.child = child
        self.started = threading.Event()
        self.error: Exception | None = None  # why it could not be started
        self._theirs = theirs
        self._tail = b""
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start the child and stay with it."""
        # The child begins with Ctrl-C blocked, as this thread has it, and so is not caught half-way through its start.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            stderr, process = self._start()
        except Exception as error:
            self.error = error
            return
        finally:
            self._theirs.close()
            self.started.set()
        try:
            self._keep(process, stderr)
        except Exception as error:
            process.kill()
            self.child.ended(process.wait(), f"its messages could not be read: {error!r}")
            raise
        finally:
            os.close(stderr)
            self.child.channel.close()

    def signal(self, number: signal.Signals) -> None:
        """Send the child a signal, if it still lives."""
        if self._process is not None:
            self._process.send_signal(number)

    def _start(self) -> tuple[int, subprocess.Popen[bytes]]:
        """Start the process; return the end of its stderr that we read, and the process."""
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
        os.set_blocking(stderr, False)
        self._process = process
        self.child.pid = process.pid
        return stderr, process

    def _keep(self, process: subprocess.Popen[bytes], stderr: int) -> None:
        connection = self.child.channel.fileno()
        sources: dict[int, Callable[[], bool]] = {connection: self._read, stderr: lambda: self._pass_on(stderr)}
        poll = select.poll()
        for descriptor in sources:
            poll.register(descriptor, select.POLLIN)
        ended = False
        while not ended:
            readable = [descriptor for descriptor, _ in poll.poll(_IDLE if connection in sources else _ENDING)]
            quiet = not readable or connection not in sources
            ended = quiet and process.poll() is not None
            # Once it has ended, all that it ever wrote is there to be read.
            for descriptor in list(sources) if ended else readable:
                if not sources[descriptor]():
                    poll.unregister(descriptor)
                    del sources[descriptor]
        lines = self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        self.child.ended(process.returncode, "\n".join(lines))

    def _read(self) -> bool:
        """Take the messages that have come; False at the end."""
        try:
            for message in self.child.channel.arrived():
                self.child.take(message)
        except EOFError:
            return False
        return True

    def _pass_on(self, stderr: int) -> bool:
        """Write what the child wrote on its stderr to ours, and keep the last of it; False at the end."""
        try:
            data = os.read(stderr, _PIPE)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-_TAIL:]
        rest = data
        while rest:
            try:
                rest = rest[os.write(_STDERR, rest) :]
            except OSError:
                break  # our own stderr is closed or full: the child must not wait for it
        return bool(data)


@contextmanager
def _last_words() -> Iterator[int]:
    """A copy of our own stderr for the child: where it says that we have ended, when nobody passes its stderr on; -1 if ours is closed."""
    try:
        ours = os.dup(_STDERR)
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
    path = [entry for entry in sys.path if isinstance(entry, str)]
    ours = str(Path(__file__).resolve().parents[2])
    if ours not in path:
        path.append(ours)
    program = f"import sys; sys.path[:] = {path!r}; from pynickel.parallel.worker import main"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # what multiprocessing gives its children, too
    return [sys.executable, *flags, "-c", f"{program}; main({descriptor}, {os.getpid()}, {last_words})"]
