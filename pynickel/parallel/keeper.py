"""One thread per child: starts the process, reads what it says, passes its stderr on, notices its end."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from pynickel.parallel.child import Child
from pynickel.parallel.link import news

_IDLE = 1000  # milliseconds between two looks at the process while nothing comes from it
_ENDING = 10  # the same once it has closed its connection, which it does by ending
_PIPE = 65536  # bytes that a pipe holds, so one read empties it
_TAIL = 4096  # bytes of stderr that are kept for the error
_TAIL_LINES = 20
STDERR = 2


class Keeper(threading.Thread, ABC):
    """Keeps one child; how it is started, a subclass says. It lives as long as the child does.

    So the child may ask the kernel for its end when the thread that started it ends: that is then the end of the
    whole parent, whichever of its threads called fork.
    """

    def __init__(self, child: Child) -> None:
        super().__init__(name=f"pynickel.parallel child {child.id}", daemon=True)
        self.child = child
        self.started = threading.Event()
        self.error: Exception | None = None  # why it could not be started
        self._tail = b""
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _start(self) -> tuple[int, subprocess.Popen[bytes]]:
        """Start the process; return the end of its stderr that we read, and the process. Sets the child's pid and channel."""

    def _connection_ended(self, process: subprocess.Popen[bytes]) -> None:
        """What to do, again and again, while the process lives on without a connection."""

    def run(self) -> None:
        """Start the child and stay with it."""
        # The child begins with Ctrl-C blocked, as this thread has it, and so is not caught half-way through its start.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            stderr, process = self._start()
        except Exception as error:
            with news.changed:
                self.error = error
                news.changed.notify_all()
            return
        finally:
            self.started.set()
        try:
            self._keep(process, stderr)
        except Exception as error:
            self._pass_signal(process, signal.SIGKILL)
            self.child._ended(process.wait(), f"its messages could not be read: {error!r}")
            raise
        finally:
            os.close(stderr)
            self.child.channel.close()

    def hang_up(self) -> None:
        """Close our end of the connection, if there is one yet, which tells the child to end."""
        self.child.closing = True
        if self.started.is_set() and self.error is None:
            self.child.channel.shutdown()

    def kill(self, number: signal.Signals) -> None:
        """Send the child a signal, if it still lives."""
        if self._process is not None:
            self._pass_signal(self._process, number)

    def _pass_signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        process.send_signal(number)

    def _keep(self, process: subprocess.Popen[bytes], stderr: int) -> None:
        connection = self.child.channel.fileno()
        sources: dict[int, Callable[[], bool]] = {connection: self._read, stderr: lambda: self._pass_on(stderr)}
        poll = select.poll()
        for descriptor in sources:
            poll.register(descriptor, select.POLLIN)
        ended = False
        while not ended:
            readable = [descriptor for descriptor, _ in poll.poll(_IDLE if connection in sources else _ENDING)]
            if connection not in sources:
                self._connection_ended(process)
            quiet = not readable or connection not in sources
            ended = quiet and process.poll() is not None
            # Once it has ended, all that it ever wrote is there to be read.
            for descriptor in list(sources) if ended else readable:
                if not sources[descriptor]():
                    poll.unregister(descriptor)
                    del sources[descriptor]
        self.child._ended(process.returncode, self.last_lines())

    def last_lines(self) -> str:
        """The end of what it wrote on stderr."""
        return "\n".join(self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:])

    def _read(self) -> bool:
        """Take the messages that have come; False at the end."""
        try:
            for message in self.child.channel.arrived():
                self.child._take(message)
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
                rest = rest[os.write(STDERR, rest) :]
            except OSError:
                break  # our own stderr is closed or full: the child must not wait for it
        return bool(data)
