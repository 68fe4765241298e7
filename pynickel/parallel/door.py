"""How a child on another machine comes in: one listening socket for one child, and both sides prove that they have the key.

The listener says a random number first; the child answers with one of its own and an HMAC of both; the listener with another HMAC.
Nothing else is read from, or told to, anybody before that. What follows is not encrypted.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hmac
import logging
import secrets
import select
import socket
import time
from collections.abc import Callable

from pynickel.parallel.deadline import Deadline

_NONCE = 32  # bytes of a random number, of a key, and of an HMAC
_CHILD, _PARENT = b"pynickel child 1", b"pynickel parent 1"  # so that nobody's answer serves as another's
_PATIENCE = 5.0  # seconds in which somebody who has connected must have answered
VANISHED = (10, 5, 3)  # seconds of silence before a machine is asked whether it is there, between two questions, and questions
_GUESTS = 16  # of whom we wait for an answer at a time
_GLANCE = 100  # milliseconds between two looks at the rest of the world


class _Guest:
    """Somebody who has connected and not yet proved anything."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.connection = connection
        self.name = name
        self.nonce = secrets.token_bytes(_NONCE)
        self.answer = b""
        self.until = time.monotonic() + _PATIENCE
        connection.setblocking(False)
        connection.send(self.nonce)

    def has_answered(self) -> bool:
        """Read what has come; True once it is all there. EOFError when they left."""
        try:
            data = self.connection.recv(2 * _NONCE - len(self.answer))
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        self.answer += data
        return len(self.answer) == 2 * _NONCE


class Door:
    """Listens at one address of this machine until the child has come in."""

    def __init__(self, ip: str) -> None:
        self.key = secrets.token_bytes(_NONCE)
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        self._listener = socket.create_server((ip, 0), family=family)
        self._listener.setblocking(False)
        self.ip, self.port = self._listener.getsockname()[:2]
        self._guests: dict[int, _Guest] = {}

    def admit(self, deadline: Deadline, look: Callable[[], None]) -> socket.socket:
        """Return the connection to whoever has the key; `look` is called now and then. TimeoutError: nobody came."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            look()
            for descriptor, _ in poll.poll(min(_GLANCE, 1000 * deadline.left())):
                guest = self._guests.get(descriptor)
                if guest is None:
                    self._open(poll)
                elif self._has_key(guest, poll):
                    return guest.connection
            for guest in [guest for guest in self._guests.values() if time.monotonic() > guest.until]:
                self._turn_away(guest, poll, "said nothing")
            deadline.check()

    def _open(self, poll: select.poll) -> None:
        try:
            connection, address = self._listener.accept()
            guest = _Guest(connection, str(address[0]))
        except OSError:
            return  # they left at once
        if len(self._guests) == _GUESTS:
            self._turn_away(next(iter(self._guests.values())), poll, "was one of too many")
        self._guests[connection.fileno()] = guest
        poll.register(connection, select.POLLIN)

    def _has_key(self, guest: _Guest, poll: select.poll) -> bool:
        try:
            if not guest.has_answered():
                return False
            nonce, proof = guest.answer[:_NONCE], guest.answer[_NONCE:]
            if not hmac.compare_digest(proof, _proof(self.key, _CHILD, guest.nonce, nonce)):
                self._turn_away(guest, poll, "does not have the key")
                return False
            guest.connection.send(_proof(self.key, _PARENT, guest.nonce, nonce))
        except (OSError, EOFError):
            self._turn_away(guest, poll, "left")
            return False
        del self._guests[guest.connection.fileno()]
        return True

    def _turn_away(self, guest: _Guest, poll: select.poll, why: str) -> None:
        logging.getLogger("pynickel").warning("a connection from %s to %s:%d %s; it was closed", guest.name, self.ip, self.port, why)
        poll.unregister(guest.connection)
        del self._guests[guest.connection.fileno()]
        guest.connection.close()

    def close(self) -> None:
        """Stop listening. Harmless twice."""
        for guest in self._guests.values():
            guest.connection.close()
        self._guests.clear()
        self._listener.close()


def knock(ip: str, port: int, key: bytes, seconds: float) -> socket.socket:
    """Connect to a parent's door and return the connection once both sides have proved that they have the key."""
    connection = socket.create_connection((ip, port), timeout=seconds)
    try:
        theirs, ours = _exactly(connection), secrets.token_bytes(_NONCE)
        connection.sendall(ours + _proof(key, _CHILD, theirs, ours))
        if not hmac.compare_digest(_exactly(connection), _proof(key, _PARENT, theirs, ours)):
            raise ConnectionError(f"who listens at {ip}:{port} does not have the key")
    except BaseException:
        connection.close()
        raise
    return connection


def _exactly(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < _NONCE:
        more = connection.recv(_NONCE - len(data))
        if not more:
            raise ConnectionError("the connection was closed before both sides had proved that they have the key")
        data += more
    return data


def _proof(key: bytes, who: bytes, listener: bytes, child: bytes) -> bytes:
    return hmac.digest(key, who + listener + child, "sha256")


def tuned(connection: socket.socket) -> socket.socket:
    """Small messages go at once, and a machine that has vanished is noticed, whether it owes us an answer or not."""
    idle, between, tries = VANISHED
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, tries)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (idle + between * tries))
    return connection
