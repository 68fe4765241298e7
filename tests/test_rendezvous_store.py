"""The store that carries rows, and the files that lead to it: only those with the key get in, and strangers disturb nobody."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.order import SOON

from pynickel import RendezvousError
from pynickel.rendezvous import file, secret, store, wire

KEY = b"k" * 32
HERE = "127.0.0.1"


def soon(seconds: float = 15.0) -> float:
    """A time.monotonic() that is some seconds away."""
    return time.monotonic() + seconds


def gone(row: bytes) -> bytes:
    """The row after the last one of a rank."""
    return b"gone: " + row


@contextmanager
def serving(*rows: bytes) -> Iterator[tuple[store.Server, int]]:
    """A server, with rows of its own, whose loop runs in a thread until the body ends; the body only looks at it."""
    server = store.Server(store.listen([HERE], 0), KEY, 1, gone)
    port, stop = server.port, threading.Event()
    for row in rows:
        server.append(row)

    def loop() -> None:
        while not stop.is_set():
            server.wait(1 << 30, time.monotonic() + 0.02)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield server, port
    finally:
        stop.set()
        thread.join()
        server.close(0, 0.0)


def test_all_see_the_same_rows_in_the_same_order() -> None:
    """Rows of eight ranks, given at once, stand in one order for all; one that comes later gets them all."""

    def rank(number: int, port: int) -> list[bytes]:
        guest = store.connect([(HERE, port)], KEY, 1, soon())
        guest.append(b"row %d" % number * 100)
        rows: list[bytes] = []
        while len(rows) < 8:
            rows = list(guest.wait(len(rows), soon()))
        guest.close(0, 0.0)
        return rows[:8]

    with serving() as (_, port), ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(rank, range(8), [port] * 8))
        assert all(rows == seen[0] for rows in seen) and sorted(seen[0]) == [b"row %d" % number * 100 for number in range(8)]
        late = store.connect([(HERE, port)], KEY, 1, soon())
        assert late.wait(7, soon())[:8] == seen[0]
        late.close(0, 0.0)


def test_another_key() -> None:
    """A process with another key, or none, is told so at once; it has seen no row, and the server goes on."""
    with serving(b"secret") as (server, port):
        for key in (b"x" * 32, b""):
            with pytest.raises(RendezvousError, match="another key than this process.*PYNICKEL_KEY"):
                store.connect([(HERE, port)], key, 1, soon())
        assert server.strangers == 2
        guest = store.connect([(HERE, port)], KEY, 1, soon())
        assert guest.wait(0, soon()) == [b"secret"]
        guest.close(0, 0.0)


def test_strangers_get_nothing() -> None:
    """Who says nothing, nonsense or too much, or leaves half-way, gets no row and holds nobody up."""
    with serving(b"secret") as (_, port):
        strangers = []
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(200), os.urandom(5), bytes(1 << 20)):
            stranger = socket.create_connection((HERE, port), 5)
            strangers.append(stranger)
            stranger.settimeout(5)
            try:
                stranger.sendall(words)
            except OSError:
                continue  # the server had heard enough
        guest = store.connect([(HERE, port)], KEY, 1, soon())
        assert guest.wait(0, soon()) == [b"secret"]
        guest.close(0, 0.0)
        for stranger in strangers:
            stranger.close()


def test_stranger_that_never_ends() -> None:
    """Who writes without end is cut off after a few bytes, and fills no memory."""
    with serving(b"secret") as (server, port), socket.create_connection((HERE, port), 5) as stranger:
        sent = 0
        with pytest.raises(OSError):
            while sent < 1 << 28:
                sent += stranger.send(bytes(1 << 16))
        assert server.strangers == 1 and sent < 1 << 25


def test_no_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """When silent strangers have taken all descriptors, the oldest of them goes, and a rank comes in."""
    accept = socket.socket.accept

    def accepts_four(listener: socket.socket) -> Any:
        if len(server._peers) >= 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    with serving(b"secret") as (server, port):
        monkeypatch.setattr(socket.socket, "accept", accepts_four)
        first = store.connect([(HERE, port)], KEY, 1, soon())
        strangers = [socket.create_connection((HERE, port), 5) for _ in range(6)]
        guest = store.connect([(HERE, port)], KEY, 1, soon())
        assert guest.wait(0, soon()) == first.wait(0, soon()) == [b"secret"]
        for connection in (guest, first):
            connection.close(0, 0.0)
        for stranger in strangers:
            stranger.close()


def test_forged_message() -> None:
    """A message without the mark of its connection's key is the end of that connection, not a row."""
    with serving() as (server, port):
        client = wire.Client((HERE, port), KEY, 1, 5)
        client.send(b"mine")
        assert client.receive(soon()) == [b"mine"]
        client._wire.to_go += b"\0\0\0\4fake" + bytes(32)
        client._wire.push()
        with pytest.raises((EOFError, OSError)):
            for _ in range(10):
                client.receive(soon(1))
        client.close()
    assert server.wait(0, 0.0) == [b"mine", b"gone: mine"]


def test_end_of_a_rank_is_a_row() -> None:
    """When a rank's connection ends before the end of the rendezvous, the others learn it by a row."""
    with serving() as (_, port):
        first, second = (store.connect([(HERE, port)], KEY, 1, soon()) for _ in range(2))
        first.append(b"first")
        assert second.wait(0, soon()) == [b"first"]
        first.close(0, 0.0)
        assert second.wait(1, soon()) == [b"first", b"gone: first"]
        second.close(0, 0.0)


def test_end_of_rank_0_is_an_error() -> None:
    """When rank 0 ends before the others have come, a waiting rank is told at once."""
    with serving() as (_, port):
        guest = store.connect([(HERE, port)], KEY, 1, soon())
    with pytest.raises(RendezvousError, match="rank 0 at .* closed the rendezvous or ended"):
        guest.wait(0, soon())
    guest.close(0, 0.0)


def test_row_for_a_rank_0_that_is_gone() -> None:
    """A row that rank 0 does not take any more raises nothing; that it is gone is said when the log is read."""
    with serving() as (_, port):
        guest = store.connect([(HERE, port)], KEY, 1, soon())
    for _ in range(20):
        guest.append(bytes(10_000))
    with pytest.raises(RendezvousError, match="closed the rendezvous or ended"):
        guest.wait(0, soon())
    guest.close(0, 0.0)


def test_another_rendezvous_of_the_same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is ahead waits for rank 0 to come to the same rendezvous; the deadline's text says what it found, though rank 0 does
    not answer the last try."""
    with serving() as (server, port):
        accept = server._accept

        def accept_one(listener: socket.socket) -> None:
            accept(listener)
            monkeypatch.setattr(server, "_accept", lambda listener: time.sleep(0.01))  # the others wait in the kernel

        monkeypatch.setattr(server, "_accept", accept_one)
        with pytest.raises(TimeoutError, match="it is at its rendezvous number 1, this process at number 2"):
            store.connect([(HERE, port)], KEY, 2, soon(SOON))


def test_nobody_and_somebody_else() -> None:
    """The deadline's text tells nobody from somebody else; rank 0 is told at once when another program has its port."""
    with socket.create_server((HERE, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError, match=f"port {port}, which another program uses.*choose another MASTER_PORT"):
            store.serve_or_join([HERE], port, KEY, 1, soon(0.5), gone)
    with pytest.raises(TimeoutError, match=f"nobody answers at {HERE}:{port}"):
        store.connect([(HERE, port)], KEY, 1, soon(0.1))


def test_listens_where_it_is_told() -> None:
    """The store listens on the given address alone."""
    listener = store.listen([HERE], 0)[0]
    port = listener.getsockname()[1]
    assert listener.getsockname() == (HERE, port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)
    listener.close()


def test_file_leads_to_the_store(tmp_path: Path) -> None:
    """The file of rank 0 is its owner's alone, leads the others to the store with the key, and is gone afterwards."""
    path = file.path_of(tmp_path, "job/../1 2", 1)
    assert path.parent == tmp_path and "/" not in path.name
    server = file.serve(path, [HERE], 1, soon(), gone)
    assert isinstance(server, file.FileServer) and path.stat().st_mode & 0o777 == 0o600
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(file.join, path, 1, soon())
        server.append(b"zero")
        while not joined.done():
            server.wait(1 << 30, soon(0.02))
        guest = joined.result()
    server.wait(1 << 30, soon(0.02))
    assert guest.wait(0, soon()) == [b"zero"]
    guest.close(0, 0.0)
    server.close(1, soon())
    assert list(tmp_path.iterdir()) == []


def test_second_rank_0_meets_the_first(tmp_path: Path) -> None:
    """A second process that says it is rank 0 joins the first one's store, so that both can be told."""
    path = tmp_path / "ranks"
    first = file.serve(path, [HERE], 1, soon(), gone)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(file.serve, path, [HERE], 1, soon(), gone)
        while not second.done():
            first.wait(1 << 30, soon(0.02))
    assert isinstance(second.result(), store.Guest)
    second.result().close(0, 0.0)
    first.close(0, 0.0)


def test_first_rank_0_that_stands_still(tmp_path: Path) -> None:
    """A first rank 0 that does not answer for a while is not taken for one that was killed: the second waits for it."""
    path = tmp_path / "ranks"
    first = file.serve(path, [HERE], 1, soon(), gone)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(file.serve, path, [HERE], 1, soon(), gone)
        time.sleep(3 * file._STALE)
        while not second.done():
            first.wait(1 << 30, soon(0.02))
    assert isinstance(second.result(), store.Guest)
    second.result().close(0, 0.0)
    first.close(0, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_file_left_behind(tmp_path: Path) -> None:
    """A file that a killed job has left is replaced by rank 0, and a rank that reads it first goes on to wait for the new one."""
    path = tmp_path / "ranks"
    secret.write(path, secret.Sign([HERE], 1, "old"))
    with pytest.raises(TimeoutError, match="port 1, but nobody answers"):
        file.join(path, 1, soon(0.3))
    server = file.serve(path, [HERE], 1, soon(), gone)
    assert isinstance(server, file.FileServer) and secret.read(path).key != "old"  # type: ignore[union-attr]
    server.close(0, 0.0)


def test_foreign_files_are_not_trusted(tmp_path: Path) -> None:
    """A file that others can read or write, that belongs to somebody else, a link, and nonsense are refused."""
    path = tmp_path / "ranks"
    secret.write(path, secret.Sign([HERE], 1, "key"))
    path.chmod(0o640)
    with pytest.raises(RendezvousError, match="mode 640; only this user's own, mode 600, is trusted"):
        secret.read(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RendezvousError, match="cannot be read"):
        secret.read(tmp_path / "link")
    for text in ("", "{}", "[1, 2, 3]", '[["a"], "1", "key"]'):
        path.write_text(text)
        with pytest.raises(RendezvousError, match="is no rendezvous file"):
            secret.read(path)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(RendezvousError, match="belongs to user 65534"):
            secret.read(path)


def test_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder for ranks of one machine has mode 0700; one that others can write to is refused."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = secret.private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700 and secret.private_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(RendezvousError, match="not a folder of this user's alone"):
        secret.private_folder()


def test_key_from_the_environment() -> None:
    """PYNICKEL_KEY is used as it is; one that could be guessed is refused."""
    assert secret.from_environment({}) is None and secret.from_environment({"PYNICKEL_KEY": "0123456789abcdef"}) == b"0123456789abcdef"
    with pytest.raises(RendezvousError, match="at least 16"):
        secret.from_environment({"PYNICKEL_KEY": "short"})
