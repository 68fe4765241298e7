"""On a rank: the body of a test, with pytest's skip and xfail as an exception that can be sent. Imports no pytest."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Verdict(Exception):
    """The body called pytest.skip() or pytest.xfail(): which of them, and the reason."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason


def call(comm: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The function; pytest is asked for its exceptions only if the function has brought it."""
    try:
        return function(comm, *args)
    except BaseException as error:
        pytest = sys.modules.get("pytest")
        for what in ("skip", "xfail"):
            if pytest is not None and isinstance(error, getattr(pytest, what).Exception):
                raise Verdict(what, str(error)) from None
        raise


def marked(comm: Any, test: Callable[..., Any], given: dict[str, Any], wanted: list[str]) -> None:
    """A marked test, with its communicator wherever it asked for it."""
    call(comm, lambda comm: test(**given, **dict.fromkeys(wanted, comm)))
