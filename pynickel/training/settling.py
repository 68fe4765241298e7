"""Results that the next line uses have to be there, whatever kind of communicator it is."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..communicator import Communicator


def settle(comm: Communicator, stream: Any = None) -> None:
    """Return when what was called last is done, which a communicator with blocking=False leaves to its caller."""
    if not comm._waits:
        comm.wait(stream)
