"""Messages over a stream socket: a kind and any number of parts, read straight into the memory they stay in."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pynickel.parallel.deadline import Deadline

# What a message is about. Parent to child: SETUP, EXEC, JOIN; both ways: OBJECT; child to parent: the others.
SETUP, EXEC, JOIN, OBJECT, READY, JOINED, DONE, FAILED = range(1, 9)

# Both ends are processes of one machine, so its own byte order serves.
_HEAD = struct.Struct("=BxxxI")  # kind, number of parts
_SIZE = struct.Struct("=Q")  # one per part
_VECTORS = 512  # parts handed to one system call; Linux takes 1,024 at most
_GLANCE = 0.1  # seconds between two looks at the rest of the world while the peer takes nothing


class Message(NamedTuple):
    """One message: its kind and its parts."""

    kind: int
    parts: list[bytearray]


class Channel:
    """One end of a connection. One thread reads; any thread sends, one message at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # every call below says itself that it will not wait
        self._socket = connection
        self._sending = threading.Lock()
        self._whole = True  # False once a message was cut off: what followed it could not be told apart
        self._steps = _reading_order()
        self._rest = memoryview(b"")

    def fileno(self) -> int:
        """The descriptor, for poll."""
        return self._socket.fileno()

    def arrived(self) -> Iterator[Message]:
        """Yield the messages that are complete, without waiting; EOFError once the peer has closed."""
        while True:
            while len(self._rest):
                try:
                    count = self._socket.recv_into(self._rest, 0, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return
                except OSError as error:  # reset by a peer that died with our message unread
                    raise EOFError from error
                if count == 0:
                    raise EOFError
                self._rest = self._rest[count:]
            step = next(self._steps)
            if isinstance(step, Message):
                yield step
            else:
                self._rest = memoryview(step)

    def send(self, kind: int, parts: Sequence[bytes | memoryview], deadline: Deadline, glance: Callable[[], None]) -> None:
        """Hand one message to the kernel; the parts are not copied. `glance` is called now and then while it waits.

        BrokenPipeError: the peer is gone. TimeoutError: the peer takes no data.
        """
        views = [memoryview(part).cast("B") for part in parts]
        sizes = b"".join(_SIZE.pack(view.nbytes) for view in views)
        views.insert(0, memoryview(_HEAD.pack(kind, len(parts)) + sizes))
        while not self._sending.acquire(timeout=min(_GLANCE, deadline.left())):
            glance()
            deadline.check()
        try:
            if not self._whole:
                raise BrokenPipeError("an earlier message was cut off")
            self._push(views, deadline, glance)
        finally:
            self._sending.release()

    def _push(self, views: list[memoryview], deadline: Deadline, glance: Callable[[], None]) -> None:
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        started = False
        try:
            while views:
                try:
                    count = self._socket.sendmsg(views[:_VECTORS], [], flags)
                except BlockingIOError:
                    self._wait_for_room(deadline)
                    glance()
                    continue
                started = True
                _drop_front(views, count)
        except BaseException:
            # An interrupt counts too: half a message must not be followed by another, so the peer sees an end.
            if started:
                self._whole = False
                self.shutdown()
            raise

    def _wait_for_room(self, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if not poll.poll(1000 * min(_GLANCE, deadline.left())):
            deadline.check()

    def shutdown(self) -> None:
        """Say that nothing more will be sent; what the peer sends can still be read."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the peer was faster

    def close(self) -> None:
        """Close this end, once no thread is sending. Harmless twice."""
        with self._sending:
            self._socket.close()

    def abandon(self) -> None:
        """Close this end in a copy of the process made by os.fork, where the lock may never be released."""
        self._socket.close()


def _reading_order() -> Iterator[bytearray | Message]:
    """Yield each piece of memory to be filled in turn, and each message once its pieces are full."""
    while True:
        head = bytearray(_HEAD.size)
        yield head
        kind, count = _HEAD.unpack(head)
        sizes = bytearray(count * _SIZE.size)
        yield sizes
        parts = [bytearray(size) for (size,) in _SIZE.iter_unpack(sizes)]
        yield from parts
        yield Message(kind, parts)
        del parts  # or the memory of the last message would live until the next one


def _drop_front(views: list[memoryview], count: int) -> None:
    """Remove what was sent, `count` bytes, from the front of the list."""
    while views and count >= views[0].nbytes:
        count -= views.pop(0).nbytes
    if count:
        views[0] = views[0][count:]
