"""Work that tests of pynickel.parallel give to children; children import it by name."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time

from pynickel import parallel


def echo() -> None:
    """Meet the parent and send back what it sends, until it says 'break'."""
    while (message := parallel.yield_()) != "break":
        parallel.send((parallel.id, message, parallel.receive()))


def sleep() -> None:
    """Do nothing for longer than any test."""
    time.sleep(60)


ANSWER = "from pynickel import parallel\nparallel.send(parallel.receive())"
