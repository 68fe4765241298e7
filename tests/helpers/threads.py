"""Ranks as threads of the test's own process, with a deadline: what each returned, or the first failure."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pynickel


def together(nranks: int, function: Callable[[pynickel.Communicator], Any], library: Any = "host", deadline: float = 8.0) -> list[Any]:
    """What `function(comm)` returned on each rank; raises the first failure."""
    ends = outcomes(nranks, function, library, deadline)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return ends


def outcomes(
    nranks: int,
    function: Callable[[pynickel.Communicator], Any],
    library: Any = "host",
    deadline: float = 8.0,
    timeout: float | None = None,
) -> list[Any]:
    """What each rank returned or raised. The communicators' own timeout, a part of the deadline, ends ranks that wait in vain."""
    unique_id = pynickel.UniqueId.create(library)
    ends: list[Any] = [TimeoutError(f"rank {rank} did not end within {deadline:g} s") for rank in range(nranks)]

    def body(rank: int) -> None:
        try:
            with pynickel.Communicator(nranks, unique_id, rank, library=library, timeout=timeout or deadline * 0.6) as comm:
                ends[rank] = function(comm)
        except BaseException as error:
            ends[rank] = error

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline)
    return ends


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start function in a thread; the list gets what it returned or raised."""
    result: list[Any] = []

    def body() -> None:
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, result
