"""What runs on another machine: come in at the parent's door, then a child, and a guardian that ends it when the parent has gone."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from pynickel.parallel import channel as kinds
from pynickel.parallel import door, worker
from pynickel.parallel.channel import Channel
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.parent import Parent

_PATIENCE = 2.5  # seconds from the end of the connection to the child's, should it not end by itself


def greeting() -> dict[str, object]:
    """What both sides must agree in: functions travel as bytecode, and messages as this package writes them."""
    from pynickel._version import __version__

    return {"Python": ".".join(map(str, sys.version_info[:2])), "pynickel": __version__}


def main(ip: str, port: int, key: str, seconds: float, parent_pid: int, parent_host: str) -> None:
    """Be a child of the process that listens there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # what was standard input is read to its end: it was this program
    connection = door.tuned(door.knock(ip, port, bytes.fromhex(key), seconds))
    guardian = os.getpid()
    child = os.fork()
    if child:
        _guard(child, connection)
    parent = Parent(Channel(connection), parent_pid, parent_host)
    told = {**greeting(), "pid": os.getpid()}
    parent.channel.send(kinds.HELLO, [json.dumps(told).encode()], Deadline(seconds), lambda: None)
    worker.main(parent, guardian, last_words=-1)


def _guard(child: int, connection: socket.socket) -> NoReturn:
    """Stay as long as the child does, see the end of the connection even if the child cannot, and end as it ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(child, signal.SIGTERM))
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(connection, select.POLLRDHUP)
    until = math.inf
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)
        left = until - time.monotonic()
        if left <= 0:
            os.kill(child, signal.SIGKILL)
        for descriptor, _ in poll.poll(None if left == math.inf else 1000 * max(left, 0.1)):
            if descriptor == woken:
                os.read(woken, 4096)
            else:
                poll.unregister(connection)
                until = time.monotonic() + _PATIENCE
