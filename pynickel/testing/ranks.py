"""Run a function on n ranks, each in a fresh interpreter or thread, and never hang: survivors are killed before anything is reported."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..arguments import as_flag
from .outcome import Outcome, RankError, outputs
from .process import Process, collect
from .travel import sent

TIMEOUT = 30.0  # seconds for all of it; much more than a test needs, so that a loaded machine does not fail it
GRACE = 2.0  # seconds that the other ranks of `run` have, after the first failure, to tell their own story
PLACES = ("processes", "threads", "mixed")


def run(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    ranks: str = "processes",
    timeout: float = TIMEOUT,
    library: str = "host",
    communicator: bool = True,
    env: Mapping[str, str | None] | None = None,
) -> list[Any]:
    """What `function(comm, *args)` returned on each of n ranks, in rank order; RankError if any rank did not return.

    `comm` is the rank's Communicator, closed after a return and aborted after an exception. With communicator=False the
    call is `function(rank, n, unique_id, *args)`, for code that makes its own. The function may be of a test module, a
    closure or a lambda; it, the arguments and the results go through cloudpickle, so that the ranks see copies.

    `ranks`: "processes", each a fresh interpreter; "threads" of one fresh interpreter; or "mixed", even ranks in one, odd ones in
    another. `timeout`: seconds for all of it; then what still runs, with everything it has started, is killed. After a
    rank's failure the others have two more seconds. A rank that waits for others gives up a little earlier and says for
    whom. `library`: what Communicator takes. `env`: environment variables of the ranks; None takes one away.

    What the ranks have written goes to sys.stdout with the rank in front, or into the error. Raises TypeError if function or
    arguments cannot be pickled.
    """
    ends = launch(n, function, args, ranks, timeout, library, communicator, env, GRACE)
    if not all(end.ok for end in ends):
        raise RankError(ends, f"{ranks}, timeout {timeout:g} s")
    for who, text in outputs(ends):
        print(*(f"[{who}] {line}" for line in text.splitlines()), sep="\n")
    return [end.value for end in ends]


def outcomes(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    ranks: str = "processes",
    timeout: float = TIMEOUT,
    library: str = "host",
    communicator: bool = True,
    env: Mapping[str, str | None] | None = None,
) -> list[Outcome]:
    """How each rank ended, for tests in which some are meant to fail; arguments as for `run`.

    Raises nothing about the ranks, and lets all of them come to their end or to the timeout.
    """
    return launch(n, function, args, ranks, timeout, library, communicator, env, None)


def launch(
    n: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    ranks: str,
    timeout: float,
    library: str,
    communicator: bool,
    env: Mapping[str, str | None] | None,
    grace: float | None,
) -> list[Outcome]:
    """Start the processes, take in what they say, and end them whatever happens here."""
    check(n, function, ranks, timeout)
    check_choices(library, communicator, env)
    task = pickle.dumps((n, communicator, [path for path in sys.path if isinstance(path, str)])) + sent(function, args)
    given = environment(library, timeout, env)
    processes: list[Process] = []
    with tempfile.TemporaryDirectory(prefix="pynickel-ranks-") as folder:
        try:
            Path(folder, "task").write_bytes(task)
            for part in placement(n, ranks):
                processes.append(Process(part, Path(folder), given))
            collect(processes, timeout, grace)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.end()
    found = {outcome.rank: outcome for process in processes for outcome in process.outcomes.values()}
    return [found[rank] for rank in range(n)]


def check(n: int, function: Callable[..., Any], ranks: str, timeout: float) -> None:
    """Refuse what cannot be run."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n must be an int, the number of ranks, not {n!r}")
    if n < 1:
        raise ValueError(f"n must be at least 1 rank, not {n}")
    if not callable(function):
        raise TypeError(f"function must be callable with a communicator, not {function!r}")
    if ranks not in PLACES:
        raise ValueError(f"ranks must be 'processes', 'threads' or 'mixed', not {ranks!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be above 0 seconds and finite, so that no test can hang, not {timeout!r}")


def check_choices(library: Any, communicator: Any, env: Any) -> None:
    """Refuse what the ranks could only stumble over."""
    if not isinstance(library, str):
        raise TypeError(f"library must be 'host', 'nvidia', 'rccl' or a path, a str, not {library!r}")
    as_flag(communicator, "communicator")
    if env is not None and not isinstance(env, Mapping):
        raise TypeError(f"env must be a mapping from names to values, or None, not {env!r}")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, type(None))):
            raise TypeError(f"env[{name!r}] must be a str, or None to take the variable away, not {value!r}")


def placement(n: int, ranks: str) -> list[list[int]]:
    """Which ranks share a process."""
    if ranks == "processes":
        return [[rank] for rank in range(n)]
    everyone = list(range(n))
    return [everyone] if ranks == "threads" else [part for part in (everyone[::2], everyone[1::2]) if part]


def environment(library: str, timeout: float, extra: Mapping[str, str | None] | None) -> dict[str, str]:
    """The ranks' environment: the library by name, and a deadline of its own, so that it can say who is missing before we kill."""
    given: dict[str, str | None] = {"NICKEL_TIMEOUT": str(max(1, int(timeout * 0.8))), **os.environ}
    given |= {"PYNICKEL_LIBRARY": library, "PYTHONUNBUFFERED": "1", **(extra or {})}
    return {name: value for name, value in given.items() if value is not None}
