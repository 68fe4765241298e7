"""One connection of a rendezvous: both ends prove that they have the key, then send messages that carry a mark made with it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence

# Server: greeting | client: proof | server: answer, proof | then messages: size, body, mark.
_MAGIC = b"nickel01"
_GREETING = struct.Struct("!8sI32s")  # magic, which rendezvous of the process this is, a random number
_PROOF = struct.Struct("!32s32s")  # a random number, the mark of both numbers
_ANSWER = struct.Struct("!c32s")
_YES, _BAD_KEY = b"+", b"-"
_SIZE = struct.Struct("!I")
_MARK = 32
_LONGEST = 1 << 16


class BadKeyError(ConnectionError):
    """The other end has another key."""


class NotOursError(ConnectionError):
    """The other end speaks something else, or is at another rendezvous."""


class SilentError(NotOursError):
    """The other end has said nothing in the time that it had, however short that was."""


def mark(key: bytes, *parts: bytes) -> bytes:
    """What only those can make who have the key."""
    return hmac.new(key, b"".join(struct.pack("!I", len(part)) + part for part in parts), hashlib.sha256).digest()


class Wire:
    """A socket that never waits, with what has come and what is still to go."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.come, self.to_go = bytearray(), bytearray()
        self._session = b""
        self._sent = self._received = 0

    def push(self) -> bool:
        """Hand over what the kernel takes; whether something is left."""
        while self.to_go:
            try:
                count = self.socket.send(self.to_go)
            except BlockingIOError:
                return True
            del self.to_go[:count]
        return False

    def pull(self) -> bool:
        """Take what has come; False when nothing has. EOFError once the other end has closed."""
        try:
            data = self.socket.recv(_LONGEST)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError("the connection was closed")
        self.come += data
        return True

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes, once they are there."""
        if len(self.come) < size:
            return None
        data = bytes(self.come[:size])
        del self.come[:size]
        return data

    def begin(self, key: bytes, numbers: bytes) -> None:
        """From now on there are messages, with marks of this connection's own."""
        self._session = mark(key, b"session", numbers)

    def put(self, body: bytes, way: bytes) -> None:
        """Queue a message."""
        self.to_go += _SIZE.pack(len(body)) + body + mark(self._session, way, struct.pack("!Q", self._sent), body)
        self._sent += 1

    def messages(self, way: bytes) -> Iterator[bytes]:
        """The messages that are complete; ValueError for one that is too long or was not marked by the other end."""
        while len(self.come) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self.come)
            if size > _LONGEST:
                raise ValueError(f"a message of {size} bytes is longer than any of ours")
            whole = self.take(_SIZE.size + size + _MARK)
            if whole is None:
                return
            body, found = whole[_SIZE.size : -_MARK], whole[-_MARK:]
            if not hmac.compare_digest(found, mark(self._session, way, struct.pack("!Q", self._received), body)):
                raise ValueError("a message does not carry the mark of this connection's key")
            self._received += 1
            yield body


class Peer:
    """The server's view of one connection: a greeting, a proof, then its row and the log."""

    def __init__(self, wire: Wire, key: bytes, turn: int) -> None:
        self.wire, self._key = wire, key
        self.row: bytes | None = None  # what it has said last
        self._greeting = _GREETING.pack(_MAGIC, turn, os.urandom(32))
        wire.to_go += self._greeting
        self._told: int | None = None  # rows that it has got, once it has proved that it may

    def receive(self) -> list[bytes]:
        """Rows that have come; BadKeyError, EOFError, OSError or ValueError when this is no rank any more."""
        ended = False
        most = _PROOF.size if self._told is None else _SIZE.size + _LONGEST + _MARK  # what is more can wait: it may never end
        try:
            while len(self.wire.come) < most and self.wire.pull():
                continue
        except EOFError:
            ended = True
        rows = list(self.wire.messages(b"up")) if self._told is not None or self._prove() else []
        if ended and not rows:
            raise EOFError("the connection was closed")
        return rows

    @property
    def is_stranger(self) -> bool:
        """Whether it has not proved that it has the key."""
        return self._told is None

    def send(self, rows: Sequence[bytes]) -> bool:
        """Queue what it has not got and hand over what the kernel takes; whether something is left."""
        if self._told is not None:
            for row in rows[self._told :]:
                self.wire.put(row, b"down")
            self._told = len(rows)
        return self.wire.push()

    def _prove(self) -> bool:
        data = self.wire.take(_PROOF.size)
        if data is None:
            return False
        number, found = _PROOF.unpack(data)
        if not hmac.compare_digest(found, mark(self._key, b"client", self._greeting, number)):
            self.wire.to_go += _ANSWER.pack(_BAD_KEY, bytes(32))  # for the server to send
            raise BadKeyError("its key is another one")
        self.wire.to_go += _ANSWER.pack(_YES, mark(self._key, b"server", self._greeting, number))
        self.wire.begin(self._key, self._greeting + number)
        self._told = 0
        return True


class Client:
    """A rank's own connection to the server. The waits can be interrupted."""

    def __init__(self, address: tuple[str, int], key: bytes, turn: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wire = Wire(socket.create_connection(address, seconds))
        try:
            self._shake_hands(key, turn, until)
        except EOFError as error:
            raise NotOursError(f"it closed the connection: {error}") from error
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, key: bytes, turn: int, until: float) -> None:
        greeting = self._need(_GREETING.size, until)
        magic, theirs, _ = _GREETING.unpack(greeting)
        if magic != _MAGIC:
            raise NotOursError(f"it says {greeting[:8]!r}")
        if theirs != turn:
            raise NotOursError(f"it is at its rendezvous number {theirs}, this process at number {turn}")
        number = os.urandom(32)
        self._wire.to_go += _PROOF.pack(number, mark(key, b"client", greeting, number))
        self._wire.push()
        answer, proof = _ANSWER.unpack(self._need(_ANSWER.size, until))
        if answer != _YES or not hmac.compare_digest(proof, mark(key, b"server", greeting, number)):
            raise BadKeyError("PYNICKEL_KEY, or the file with the key, must be the same for all ranks")
        self._wire.begin(key, greeting + number)

    def send(self, row: bytes) -> None:
        """Send a row; it is small, and goes at once or with the next wait."""
        self._wire.put(row, b"up")
        self._wire.push()

    def receive(self, until: float) -> list[bytes]:
        """The rows that have come, after at least one has, or at the end of time."""
        while True:
            found = list(self._wire.messages(b"down"))
            if found or not self._wait(until):
                return found
            self._wire.pull()

    def close(self) -> None:
        """Close the connection. Harmless twice."""
        self._wire.socket.close()

    def _need(self, size: int, until: float) -> bytes:
        while (data := self._wire.take(size)) is None:
            if not self._wait(until):
                raise SilentError("it says nothing")
            self._wire.pull()
        return data

    def _wait(self, until: float) -> bool:
        """Wait until something has come; send what is left in the meantime. False at the end of time."""
        poll = select.poll()
        while True:
            more = self._wire.push()
            poll.register(self._wire.socket, select.POLLIN | (select.POLLOUT if more else 0))
            left = until - time.monotonic()
            ready = poll.poll(max(0.0, min(left, 3600.0)) * 1000)
            if ready and ready[0][1] & ~select.POLLOUT:
                return True
            if left <= 0:
                return False
