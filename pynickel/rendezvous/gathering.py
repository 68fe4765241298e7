"""exchange(): every rank's bytes on every rank, by the way that ranks meet and without a communicator."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import math
import os
import socket
import struct
import time
import zlib
from collections.abc import Collection
from typing import Any

from ..deadline import checked_timeout
from ..errors import RendezvousError, WaitTimeoutError
from . import trust, ways
from .meeting import machine
from .rows import GONE, Row, unheard

_HEAD = struct.Struct("!2sI")  # rows of a rendezvous begin with "["; these do not
_MARK = b"ex"
_MOST = 50_000  # bytes, compressed
_turns = itertools.count(1)
_FIRST = 1 << 20  # turns from here on are exchanges, which no rendezvous of the same job meets


def exchange(data: bytes, launcher: Any = None, *, timeout: float | None = 60) -> list[bytes]:
    """Every rank ends up with the bytes of all ranks, in rank order; all of them call it. No library is loaded.

    `launcher`, `timeout`: as for `init`. ValueError: more than about 50,000 bytes when compressed. WaitTimeoutError: `missing`
    ranks did not come (as for `init`). RendezvousError: a rank went away before it had told.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data must be bytes, not {type(data).__name__} {data!r:.60}; pickle or encode what it is")
    limit = checked_timeout(timeout)
    place = trust.find(launcher, os.environ)
    packed = zlib.compress(data)
    if len(packed) > _MOST:
        raise ValueError(f"data has {len(packed)} bytes when compressed; at most {_MOST} can be exchanged")
    if place.nranks == 1:
        return [bytes(data)]
    seconds = math.inf if limit is None else limit
    until = time.monotonic() + seconds
    row = Row(place.rank, place.nranks, place.launcher, socket.gethostname(), machine(), os.getpid())
    log = ways.Way(launcher, place, os.environ, _FIRST + next(_turns), until).open(row)
    found: dict[int, bytes] = {}
    try:
        log.append(_HEAD.pack(_MARK, place.rank) + packed)
        known = 0
        while len(found) < place.nranks:
            rows = log.wait(known, until)
            found |= dict(map(opened, rows[known:]))
            if len(rows) == known and time.monotonic() >= until:
                raise late(found, row, seconds) if found else unheard(row, seconds, log.silence)
            known = len(rows)
    finally:
        log.close(place.nranks if len(found) == place.nranks else 0, until)
    return [found[rank] for rank in range(place.nranks)]


def late(found: Collection[int], row: Row, seconds: float) -> WaitTimeoutError:
    """The error of a deadline at which some ranks have told, and others have not."""
    absent = tuple(sorted(set(range(row.nranks)) - set(found)))
    names = f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
    text = f"only {len(found)} of {row.nranks} ranks came to exchange() within {seconds:g} s; missing: {names}"
    return WaitTimeoutError(text, missing=absent, function="rendezvous.exchange")


def opened(data: bytes) -> tuple[int, bytes]:
    """Whose bytes these are, and the bytes."""
    if data[:1] == b"[":
        other = Row.from_bytes(data)
        if other.what == GONE:
            raise RendezvousError(f"rank {other.rank} went away before it had told what it found")
        raise RendezvousError(f"rank {other.rank} called rendezvous.init() where the others called exchange()")
    mark, rank = _HEAD.unpack_from(data)
    if mark != _MARK:
        raise RendezvousError("a rank sent what is no part of an exchange; do all ranks use the same version of pynickel?")
    return rank, zlib.decompress(data[_HEAD.size :])
