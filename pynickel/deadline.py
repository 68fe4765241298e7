"""Seconds that callers give, and sleeping until something is so."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from numbers import Real


def checked_timeout(timeout: float | None) -> float | None:
    """Seconds, or None."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds (math.inf waits for ever), not {timeout!r}")
    return float(timeout)


def host_seconds(timeout: float | None) -> float:
    """A timeout as the CPU library wants it: below 0 is its own default, 0 is for ever."""
    return -1.0 if timeout is None else 0.0 if math.isinf(timeout) else timeout


def looks(timeout: float | None) -> Iterator[bool]:
    """One value for each look at something: False as long as there is time, True for the last. The pauses between grow to 5 ms."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    pause = 20e-6
    while time.monotonic() < until:
        yield False
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(pause * 1.5, 5e-3)
    yield True
