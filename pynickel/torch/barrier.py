"""monitored_barrier(): a barrier that says which ranks did not come."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from datetime import timedelta

from torch import distributed as dist

from .group import PynickelProcessGroup


def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: timedelta | float | None = None) -> None:
    """Every rank returns when all ranks of the group have called it.

    `timeout`: seconds or a timedelta, by default the group's. DistBackendError: it names the ranks that did not come in time, or
    the one that ended. (torch.distributed.monitored_barrier is for gloo only.)
    """
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, PynickelProcessGroup):
        raise TypeError(f"group must be a process group of the backend pynickel, not {chosen!r}")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    chosen.meet(seconds)
