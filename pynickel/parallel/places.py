"""Where new children shall run: here, on a machine that the caller names, or dealt out to the known ones."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from pynickel.parallel import tree
from pynickel.parallel.remote import Remote, deal


def place(host: str | Remote | None, python: str | None, command: str | Sequence[str] | None) -> Remote | None:
    """Return the machine that is meant; what add_remote was told of it counts where the caller says nothing."""
    if isinstance(host, Remote):
        known = host
    elif host is None:
        if python is None and command is None:
            return None
        known = Remote("localhost", command=["env"])
    else:
        known = next((remote for remote in tree.here.remotes if remote.host == host), None) or Remote(host)
    if python is None and command is None:
        return known
    return Remote(known.host, known.cores, python or known.python, known.command if command is None else command, known.speed)


def places(
    n: int | Mapping[str | Remote, int], host: str | Remote | None, python: str | None, command: str | Sequence[str] | None
) -> list[Remote | None]:
    """Return the machine of each of n children; a dict says how many on which host."""
    if not isinstance(n, Mapping):
        return [place(host, python, command)] * tree.number(n, "nfork")
    if host is not None:
        raise ValueError(f"nfork was given hosts twice: host={host!r} and the dict {dict(n)!r}; leave host out")
    return [machine for name, count in n.items() for machine in [place(name, python, command)] * tree.number(count, f"nfork on {name!r}")]


def dealt(n: int) -> list[Remote | None]:
    """Return the machine of each of n children: here if no other is known, else dealt out to those."""
    remotes = tree.here.remotes
    if not remotes:
        return [None] * n
    return [*deal(n, remotes, (child.remote for child in tree.here.children.values()))]


def set_ip(ip: str | None) -> str:
    """Take an address that was found as this machine's."""
    if ip is None:
        warnings.warn(f"no address was found, parallel.ip stays {tree.here.ip}; set it by hand", RuntimeWarning, stacklevel=3)
    else:
        tree.here.ip = ip
    return tree.here.ip
