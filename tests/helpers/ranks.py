"""pynickel.testing under the names of these tests: `kind`, `deadline`, `make_comm`; by default the id, and 10 seconds for all."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from pynickel import testing
from pynickel.testing import Outcome, RankError

__all__ = ["Outcome", "RankError", "by_value", "outcomes", "run"]
TESTS = Path(__file__).resolve().parent.parent


def run(
    nranks: int,
    function: Callable[..., Any],
    *args: Any,
    deadline: float = 10.0,
    kind: str = "processes",
    library: str | None = None,
    make_comm: bool = True,
    env: Mapping[str, str | None] | None = None,
) -> list[Any]:
    """See pynickel.testing.run."""
    return testing.run(
        nranks, function, *args, ranks=kind, timeout=deadline, library=library or "host", communicator=make_comm, env=env
    )


def outcomes(
    nranks: int,
    function: Callable[..., Any],
    *args: Any,
    deadline: float = 10.0,
    kind: str = "processes",
    library: str | None = None,
    make_comm: bool = True,
    env: Mapping[str, str | None] | None = None,
) -> list[Outcome]:
    """See pynickel.testing.outcomes."""
    return testing.outcomes(
        nranks, function, *args, ranks=kind, timeout=deadline, library=library or "host", communicator=make_comm, env=env
    )


def by_value(function: Callable[..., Any]) -> None:
    """Let a function that is an argument travel by value, wherever it is packed in."""
    module = sys.modules.get(function.__module__)
    path = Path(getattr(module, "__file__", None) or "/").resolve()
    if module is not None and TESTS in path.parents and path.parent != Path(__file__).parent:
        cloudpickle.register_pickle_by_value(module)
