"""Whether an asynchronous collective may be done in its caller's own thread: if all ranks have come to it, or come in a moment."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from time import perf_counter

from ..communicator import Communicator

REST = 16  # times as long as a wait in vain: until then it only looks, so that such waits take a small part of the time at most


class Patience:
    """Waits for the others as long as it pays, and after they have not come for a while not at all."""

    def __init__(self) -> None:
        self._rests_until = 0.0
        self.promised = False  # whether the others have been told of the next collective, and may wait for it

    def all_come(self, comm: Communicator) -> bool:
        """Whether all ranks are about to call the next collective, or in it; by who is about to call it here, in this thread or another."""
        begun = perf_counter()
        self.promised = begun >= self._rests_until
        came = comm._come(int(self.promised))
        if self.promised and not came:
            now = perf_counter()
            self._rests_until = now + REST * (now - begun)
        return came
