"""What a start has found and changed, kept in the log directory for `stop` and for clients."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from .gpus import NAMES, Gpu
from .places import STATE, Group


def remember(group: Group, chosen: Iterable[Gpu]) -> None:
    """Note the devices, and for `stop` their compute modes; those of an earlier start that was never stopped stay."""
    file = group.logs / STATE
    devices = {gpu.uuid: gpu.mode for gpu in chosen}
    text = json.dumps({"devices": list(devices), "compute_modes": devices | modes(group)}) + "\n"
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    # In a directory for all users somebody could have laid a link under either name; it is not followed.
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w", encoding="utf-8") as out:
        out.write(text)
    fresh.replace(file)


def modes(group: Group) -> dict[str, int]:
    """Compute modes before the start, by UUID."""
    try:
        return {str(uuid): int(mode) for uuid, mode in content(group, mine=True)["compute_modes"].items() if int(mode) in NAMES}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def devices(group: Group) -> list[str]:
    """UUIDs of the devices that the daemon of the group was started with; none if that is not known here."""
    try:
        return [str(uuid) for uuid in content(group, mine=False)["devices"]]
    except (KeyError, TypeError):
        return []


def content(group: Group, mine: bool) -> Any:
    """What the file holds, {} without one. `mine`: only if this user has written it, since anybody may write into a shared directory."""
    file = group.logs / STATE
    try:
        about = file.lstat()
        if not stat.S_ISREG(about.st_mode) or (mine and about.st_uid != os.geteuid()):
            return {}
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
