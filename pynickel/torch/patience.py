"""Whether an asynchronous collective may be done in its caller's own thread: if all ranks have come to it, or come in a moment."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ..communicator import Communicator

PATIENCE = 0.001  # seconds; where each rank has one core, an operation in a thread beside the caller's costs about as much
MOST_SKIPPED = 32  # operations


class Patience:
    """Waits for the others for PATIENCE at most; each time that they do not come it lets more operations pass before it waits again."""

    def __init__(self) -> None:
        self._missed = self._skip = 0

    def all_come(self, comm: Communicator) -> bool:
        """Whether all ranks are about to call the next collective, or in it; by who is about to call it here, in this thread or another."""
        waits = not self._skip
        came = comm._come(PATIENCE if waits else 0.0)
        if came:
            self._missed = self._skip = 0
        elif waits:
            self._missed += 1
            self._skip = min(1 << self._missed, MOST_SKIPPED)
        else:
            self._skip -= 1
        return came
