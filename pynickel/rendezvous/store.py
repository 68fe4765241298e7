"""The rows of one rendezvous over TCP: rank 0 keeps them in order, every rank gets all. Bytes only, and only for those who have the key.

Both sides prove that they know the key without sending it, and each message carries a mark made with it.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from ..errors import RendezvousError
from .wire import BadKeyError, Client, NotOursError, Peer, SilentError, Wire

_PAUSE = 0.05  # seconds between two tries to reach rank 0
_BUSY_PATIENCE = 2.0  # seconds for what has the port to show that it is ours
_LONGEST_WAIT = 3600.0  # seconds of one call of the kernel's
ANSWER = 5.0  # seconds that whoever answers has for the greeting
Address = tuple[str, int]


class Server:
    """Rank 0's side: the log itself. It works only while `wait` or `close` runs, and has no thread."""

    silence = ""  # its own row is always there

    def __init__(self, listening: list[socket.socket], key: bytes, turn: int, gone: Callable[[bytes], bytes | None]) -> None:
        self._rows: list[bytes] = []
        self._key, self._turn, self._gone = key, turn, gone
        self._listening = listening
        self._peers: dict[socket.socket, Peer] = {}
        self.strangers = 0  # connections with another key
        self._came = 1  # ranks that have given a row: we, and each connection once, whatever it says later
        self._selector = selectors.DefaultSelector()
        for listener in listening:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listening[0].getsockname()[1])

    @property
    def note(self) -> str:
        """Who has been turned away, who may well be the ranks that are missing."""
        return f" ({self.strangers} with another key turned away)" if self.strangers else ""

    def append(self, row: bytes) -> None:
        """Add a row, and send it to everybody who is there."""
        self._rows.append(row)
        for peer in list(self._peers.values()):
            self._feed(peer)

    def wait(self, known: int, until: float) -> list[bytes]:
        """All rows, once there are more than `known`, or at time.monotonic() `until`."""
        while len(self._rows) <= known and time.monotonic() < until:
            self._turn_once(until)
        return list(self._rows)

    def close(self, expected: int, until: float) -> None:
        """Stay until `expected` ranks have come and all of them have seen the log, but not beyond `until`."""
        try:
            while (self._came < expected or any(peer.row is not None for peer in self._peers.values())) and time.monotonic() < until:
                self._turn_once(until)
        finally:
            for known in (*self._peers, *self._listening):
                known.close()
            self._peers.clear()
            self._selector.close()

    def _turn_once(self, until: float) -> None:
        for key, _ in self._selector.select(min(max(0.0, until - time.monotonic()), _LONGEST_WAIT)):
            ready = key.fileobj
            if ready in self._listening:
                self._accept(ready)
            elif ready in self._peers:
                self._serve(self._peers[ready])

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = listener.accept()[0]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return  # else it was gone again
        peer = Peer(Wire(connection), self._key, self._turn)
        self._peers[connection] = peer
        self._selector.register(connection, selectors.EVENT_READ)
        self._feed(peer)

    def _make_room(self) -> None:
        """Without descriptors for those who come, the one that has said nothing for longest must go; a rank would come again."""
        strangers = (peer for peer in self._peers.values() if peer.is_stranger)
        silent = next(strangers, None)
        if silent is None:
            time.sleep(_PAUSE)  # only ranks are here: some of them may leave
        else:
            self._drop(silent)

    def _serve(self, peer: Peer) -> None:
        """Take what a peer sends, and send what it has not got; a peer that is gone before the end is a row as well."""
        try:
            for row in peer.receive():
                self._came += peer.row is None
                peer.row = row
                self.append(row)
            self._feed(peer)
        except BadKeyError:
            self.strangers += 1
            self._feed(peer)  # told after it is counted: whoever knows that it was turned away can rely on the count
            self._drop(peer)
        except (OSError, EOFError, ValueError):
            last = None if peer.row is None else self._gone(peer.row)
            self._drop(peer)
            if last is not None:
                self.append(last)

    def _feed(self, peer: Peer) -> None:
        try:
            more = peer.send(self._rows)
        except OSError:
            more = False  # its end shows when it is read
        if peer.wire.socket in self._peers:
            self._selector.modify(peer.wire.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if more else 0))

    def _drop(self, peer: Peer) -> None:
        connection = peer.wire.socket
        self._selector.unregister(connection)
        del self._peers[connection]
        connection.close()


class Guest:
    """Another rank's side: connected to rank 0's log."""

    silence = "rank 0 does not answer"
    note = ""

    def __init__(self, client: Client, where: str) -> None:
        self._client, self._where = client, where
        self._rows: list[bytes] = []

    def append(self, row: bytes) -> None:
        """Send a row to rank 0, which gives it its place."""
        with contextlib.suppress(OSError):  # that rank 0 is gone shows when the log is read
            self._client.send(row)

    def wait(self, known: int, until: float) -> list[bytes]:
        """All rows, once there are more than `known`, or at time.monotonic() `until`."""
        while len(self._rows) <= known and time.monotonic() < until:
            try:
                self._rows += self._client.receive(until)
            except (EOFError, OSError, ValueError) as error:
                raise RendezvousError(
                    f"rank 0 at {self._where} closed the rendezvous or ended while ranks were missing: {error}"
                ) from error
        return list(self._rows)

    def close(self, expected: int, until: float) -> None:
        """Leave; rank 0 sees by it that this rank has seen the log."""
        self._client.close()


def listen(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Listen on these addresses; port 0 is any free one, the same for all."""
    listening: list[socket.socket] = []
    try:
        for host in hosts:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = socket.socket(family, kind, protocol)
            listening.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
    except BaseException:
        for listener in listening:
            listener.close()
        raise
    return listening


def connect(addresses: Sequence[Address], key: bytes, turn: int, until: float, patience: float | None = None) -> Guest:
    """Reach the log of rank 0, which may start later than we do; TimeoutError with the reason when it cannot be had in time.

    `patience`: seconds after which something else that answers there is an error.
    """
    began = time.monotonic()
    said: dict[Address, str] = {}  # why there is no connection to it
    while True:
        for index, address in enumerate(addresses):
            share = (until - time.monotonic()) / (len(addresses) - index)  # one that does not answer leaves time for the others
            limit = min(max(share, 0.01), ANSWER)
            where = f"{address[0]}:{address[1]}"
            try:
                return Guest(Client(address, key, turn, limit), where)
            except BadKeyError as error:
                raise RendezvousError(f"rank 0 at {where} has another key than this process: {error}") from error
            except OSError as error:
                is_other = isinstance(error, NotOursError)
                # That it has not answered within what was left of the time says less than what an earlier try has found.
                if address not in said or limit == ANSWER or not isinstance(error, (SilentError, TimeoutError)):
                    what = f"what answers at {where} is not the rendezvous of these ranks" if is_other else f"nobody answers at {where}"
                    said[address] = f"{what} ({error})"
                if is_other and patience is not None and time.monotonic() > began + patience:
                    raise TimeoutError(said[address]) from error
        time.sleep(min(_PAUSE, max(0.0, until - time.monotonic())))
        if time.monotonic() >= until:
            raise TimeoutError(next(reversed(said.values()), "nobody was asked"))


def serve_or_join(
    hosts: Sequence[str], port: int, key: bytes, turn: int, until: float, gone: Callable[[bytes], bytes | None]
) -> Server | Guest:
    """The log at this port: our own, or, where another process that says it is rank 0 has it, that one's, so that both are told."""
    try:
        return Server(listen(hosts, port), key, turn, gone)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise RendezvousError(
                f"rank 0 cannot listen on {hosts[0]}:{port}: {error}; is MASTER_ADDR an address of its machine?"
            ) from error
    try:
        return connect([(host, port) for host in hosts], key, turn, min(until, time.monotonic() + _BUSY_PATIENCE), _BUSY_PATIENCE / 2)
    except TimeoutError as error:
        raise RendezvousError(
            f"rank 0 cannot listen on port {port}, which another program uses: {error}; choose another MASTER_PORT"
        ) from error
