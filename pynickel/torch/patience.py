"""Whether an asynchronous collective may be done in its caller's own thread: if all ranks have come to it, or come in a moment."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ..communicator import Communicator

MOST_SKIPPED = 32  # operations


class Patience:
    """Waits for the others as long as it pays; each time that they do not come it lets more operations pass before it waits again."""

    def __init__(self) -> None:
        self._missed = self._skip = 0
        self.promised = False  # whether the others have been told of the next collective, and may wait for it

    def all_come(self, comm: Communicator) -> bool:
        """Whether all ranks are about to call the next collective, or in it; by who is about to call it here, in this thread or another."""
        self.promised = not self._skip
        came = comm._come(int(self.promised))
        if came:
            self._missed = self._skip = 0
        elif self.promised:
            self._missed += 1
            self._skip = min(1 << self._missed, MOST_SKIPPED)
        else:
            self._skip -= 1
        return came
