"""What holds for the communicator of every helper: it is one, it is not in a group, and results are there when the next line uses them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from ..batch import refuse_in_group
from ..communicator import Communicator


def check_comm(comm: Any, what: str) -> None:
    """Refuse what is no communicator or one that has ended, and calls inside group(), where nothing would be done before its end."""
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm must be a Communicator, not {type(comm).__name__} {comm!r}")
    refuse_in_group(what)
    comm._require_ready(what)  # before a gradient is changed


def settle(comm: Communicator, stream: Any = None) -> None:
    """Return when what was called last is done, which a communicator with blocking=False leaves to its caller."""
    if not comm._waits:
        comm.wait(stream)
