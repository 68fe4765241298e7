"""The interpreter's exit: groups that nobody has shut down are ended before threads and the library are taken apart."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any

from .soon import soon

_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def remember(group: Any) -> None:
    """End this group at exit, unless it is ended before."""
    global _registered
    _groups.add(group)
    if not _registered:
        _registered = True
        atexit.register(end_all)
        os.register_at_fork(after_in_child=_groups.clear)  # what the parent has, a child must not end


def forget(group: Any) -> None:
    """It has been ended."""
    _groups.discard(group)


def end_all() -> None:
    """Abort what is left: a peer may wait for ever, and an exit must not."""
    for group in list(_groups):
        group.abort()
    soon.end()
