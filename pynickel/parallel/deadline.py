"""How long a wait may last: a number of seconds, checked once, then counted down."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import time

default_timeout = 60.0  # seconds; `parallel.timeout` reads and sets it


def seconds(timeout: float, name: str = "timeout") -> float:
    """Return the timeout as a float, or say what is wrong with it."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"{name} must be a number of seconds (math.inf waits without end), not {timeout!r}")
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {timeout!r}")
    return float(timeout)


class Deadline:
    """The end of one wait, from the `timeout` that the caller gave (None: `parallel.timeout`)."""

    def __init__(self, timeout: float | None = None) -> None:
        self.seconds = default_timeout if timeout is None else seconds(timeout)
        self._end = time.monotonic() + self.seconds

    def left(self) -> float:
        """Seconds that are left, never below 0 and, for the sake of the C library, never above an hour."""
        return min(max(self._end - time.monotonic(), 0.0), 3600.0)

    def check(self) -> None:
        """Raise TimeoutError when no time is left."""
        if self.left() <= 0:
            raise TimeoutError(f"not done within {self.seconds:g} s")
