"""A rendezvous by a file: rank 0 writes there where its store listens and with which key; the others wait for the file."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import RendezvousError
from . import secret
from .store import ANSWER, Guest, Server, connect, listen

LOOPBACK = "127.0.0.1"
_PAUSE = 0.05  # seconds between two looks at the file
_TRY = 1.0  # seconds for what the file says, before the file is read again: an old one is replaced by rank 0
_STALE = 0.3  # seconds in which the machine that a file names, if it is there and its writer lives, accepts a connection


class FileServer(Server):
    """Rank 0's side; takes its file away when it closes."""

    def __init__(self, path: Path, hosts: list[str], turn: int, gone: Callable[[bytes], bytes | None]) -> None:
        key = secret.fresh()
        super().__init__(listen([LOOPBACK] if hosts == [LOOPBACK] else ["0.0.0.0"], 0), key.encode(), turn, gone)
        self._path, self._sign = path, secret.Sign(hosts, self.port, key)
        try:
            secret.write(path, self._sign)
        except BaseException:
            super().close(0, 0.0)
            raise

    def close(self, expected: int, until: float) -> None:
        """As Server.close; the file goes at the end, if it is still ours."""
        try:
            super().close(expected, until)
        finally:
            with contextlib.suppress(RendezvousError):  # then it is another's
                if secret.read(self._path) == self._sign:
                    self._path.unlink(missing_ok=True)


def path_of(folder: Path, job: str, turn: int) -> Path:
    """The file of one rendezvous of a job."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in job) or "ranks"
    return folder / f"{name}.{turn}.rendezvous"


def own_names(on_one_machine: bool, known_as: str = "") -> list[str]:
    """Under which names the others reach this machine, best first."""
    if on_one_machine:
        return [LOOPBACK]
    return list(dict.fromkeys(filter(None, [known_as, socket.gethostname(), socket.getfqdn()])))


def serve(path: Path, hosts: list[str], turn: int, until: float, gone: Callable[[bytes], bytes | None]) -> Server | Guest:
    """Rank 0's log; or that of another process that says it is rank 0 and still lives, so that both are told."""
    there = secret.read(path)
    if there is not None:
        host = _accepting(there)
        if host is not None:
            with contextlib.suppress(TimeoutError, ConnectionError):
                patience = min(until, time.monotonic() + ANSWER)
                return connect([(host, there.port)], there.key.encode(), turn, patience, _STALE / 2)
        path.unlink(missing_ok=True)  # left behind by a job that was killed
    return FileServer(path, hosts, turn, gone)


def _accepting(sign: secret.Sign) -> str | None:
    """Where the file's writer, or another program by now, can be reached: for a process that stands still its kernel accepts."""
    for host in sign.hosts:
        with contextlib.suppress(OSError), socket.create_connection((host, sign.port), _STALE):
            return host
    return None


def join(path: Path, turn: int, until: float) -> Guest:
    """Another rank's log, once rank 0 has written its file; TimeoutError with the reason when it does not in time."""
    said = f"rank 0 has not written {path}"
    while time.monotonic() < until:
        sign = secret.read(path)
        if sign is not None:
            try:
                patience = min(until, time.monotonic() + _TRY)
                return connect([(host, sign.port) for host in sign.hosts], sign.key.encode(), turn, patience)
            except (TimeoutError, ConnectionError) as error:
                said = f"{path} says {', '.join(sign.hosts)} port {sign.port}, but {error}"
        time.sleep(min(_PAUSE, max(0.0, until - time.monotonic())))
    raise TimeoutError(said)
