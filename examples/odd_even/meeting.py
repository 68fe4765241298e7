"""How the workers meet: the parent joins, the children yield; and how the others hear that one of them is lost."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pynickel import RemoteError, parallel

LOST = "lost: "
PATIENCE = 2.0  # seconds in which the others come to hear the bad news; from inside NCCL it takes them up to one


class WorkerLost(RuntimeError):
    """Another worker has failed; the text says which."""


class Meeting:
    """Where the workers wait for each other. With `debug` each of them tells what it heard there."""

    def __init__(self, debug: bool = False) -> None:
        self.debug = debug

    def meet(self, message: str) -> str:
        """Wait until all are here; every worker returns the parent's message."""
        if parallel.id == 0:
            parallel.children.join(message)
        else:
            message = parallel.yield_()
            if message.startswith(LOST):
                raise WorkerLost(message.removeprefix(LOST))
        if self.debug:
            parallel.print(f"meeting: {message}")
        return message

    def give(self, what: str, *values: Any, answered: bool = True) -> None:
        """Parent: meet, then send one value to all children, or one to each; show what they answer."""
        self.meet(what)
        children = list(parallel.children.values())
        for child, value in zip(children, values if len(values) > 1 else values * len(children), strict=True):
            child.send(value)
        if answered:
            for id, answer in parallel.children.receive().items():
                if self.debug:
                    parallel.print(f"worker {id} answers: {answer}")

    def take(self) -> Any:
        """Child: meet, then return what the parent gives."""
        self.meet("")
        return parallel.receive()


@contextmanager
def telling_others() -> Iterator[None]:
    """Parent: if the body fails, let the children know why this is the end, and leave them time to say so."""
    try:
        yield
    except Exception as found:
        error = reason(found)
        until = time.monotonic() + PATIENCE
        children = list(parallel.children.values())
        for child in children:
            tell(child, LOST + in_words(error), until)
        while any(child.running and child.exitcode is None for child in children) and time.monotonic() < until:
            time.sleep(0.01)
        if error is found:
            raise
        raise error from found


def reason(error: Exception) -> Exception:
    """The failure of the worker that NCCL misses, if that becomes known soon: NCCL's error is only what came of it."""
    children = {child.id: child for child in parallel.children.values()}
    missed = children.get(error.rank) if isinstance(error, RemoteError) else None
    until = time.monotonic() + PATIENCE / 2
    while missed is not None and missed.failure is None and time.monotonic() < until:
        time.sleep(0.01)
    return error if missed is None or missed.failure is None else missed.failure


def tell(child: parallel.Child, words: str, until: float) -> None:
    """Give a child these words at the meeting that it comes to next, if it comes in time."""
    while child.exitcode is None and child.failure is None and time.monotonic() < until:
        try:
            child.join(words, timeout=until - time.monotonic())
            return
        except parallel.ChildError as another:
            if another.id == child.id:
                return
        except (RuntimeError, OSError):  # it has nothing to run yet, does not come in time, or has just gone
            return


def last_words(error: BaseException) -> None:
    """Child: say who was lost, in one line.

    What NCCL says need not be the whole story: a rank that it misses may have left because of another. So hear the parent.
    """
    until = time.monotonic() + PATIENCE
    text = in_words(error)
    if isinstance(error, RemoteError):
        with suppress(OSError):  # the parent may be what is lost
            while not (heard := parallel.yield_(timeout=max(0.0, until - time.monotonic()))).startswith(LOST):
                continue
            text = heard.removeprefix(LOST)
    parallel.print(f"ends: {text}", file=sys.stderr)


def in_words(error: BaseException) -> str:
    """What happened, in one line."""
    if isinstance(error, RemoteError):
        return f"worker {error.rank} (pid {error.pid}) is lost"
    text = str(error).partition("\n")[0]
    if isinstance(error, (parallel.ChildError, WorkerLost, ConnectionError, TimeoutError)):
        return text
    return f"worker {parallel.id} failed: {type(error).__name__}: {text}"
