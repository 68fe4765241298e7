"""Whether an asynchronous collective may be done in its caller's own thread: if all ranks have come to it, or come in a moment."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from ..communicator import Communicator

REST = 16  # times as long as a wait in vain: until then it only looks, so that such waits take a small part of the time at most
CROSSED = 64  # the same, if another group was waited in before: ranks that take their groups in different orders hold each other up


@dataclass
class Waits:
    """Those of all groups of the process: who waits in vain in one group comes late to the next."""

    rest_until: float = 0.0
    latest: Patience | None = None


OWN = Waits()


class Patience:
    """Waits for the others as long as it pays, and after they have not come for a while not at all."""

    def __init__(self, waits: Waits = OWN) -> None:
        self._waits = waits
        self.promised = False  # whether the others have been told of the next collective, and may wait for it

    def all_come(self, comm: Communicator) -> bool:
        """Whether all ranks are about to call the next collective, or in it; by who is about to call it here, in this thread or another."""
        begun = perf_counter()
        waits = self._waits
        self.promised = begun >= waits.rest_until
        came = comm._come(int(self.promised))
        if self.promised:
            if not came:
                now = perf_counter()
                waits.rest_until = now + (REST if waits.latest in (None, self) else CROSSED) * (now - begun)
            waits.latest = self
        return came
