"""Network interfaces against NCCL_SOCKET_IFNAME."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence

from .finding import NOTE, OK, PROBLEM, Finding

VARIABLE = "NCCL_SOCKET_IFNAME"


def check(environ: Mapping[str, str], interfaces: Mapping[str, Sequence[str]] | None = None) -> Iterator[Finding]:
    """What NCCL would use for its sockets. `interfaces`: addresses by name, by default this machine's that are up."""
    found = up() if interfaces is None else interfaces
    every = ", ".join(f"{name} ({', '.join(addresses) or 'no address'})" for name, addresses in found.items()) or "none"
    wanted = environ.get(VARIABLE, "")
    usable = chosen(wanted, list(found))
    if wanted and not usable:
        yield Finding(
            PROBLEM, "network", f"{VARIABLE}={wanted} matches no interface that is up; there are {every}",
            f"set {VARIABLE} to the beginning of one of these names, or =NAME for exactly one",
        )  # fmt: skip
    elif wanted:
        yield Finding(OK, "network", f"{VARIABLE}={wanted} means {', '.join(usable)}; there are {every}")
    elif not any(name != "lo" for name in found):
        text = f"only loopback is up ({every}): NCCL works on this machine alone"
        yield Finding(NOTE, "network", text, f"set {VARIABLE}=lo if it finds no interface")
    else:
        yield Finding(OK, "network", f"interfaces: {every}")


def chosen(pattern: str, names: Sequence[str]) -> list[str]:
    """The interfaces that a value of NCCL_SOCKET_IFNAME means: prefixes by comma, = for a whole name, ^ for all others."""
    if not pattern:
        return list(names)
    exclude, rest = pattern.startswith("^"), pattern.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    words = [word for word in rest.split(",") if word]
    matching = [name for name in names if any(name == word if exact else name.startswith(word) for word in words)]
    return [name for name in names if name not in matching] if exclude else matching


def up() -> dict[str, list[str]]:
    """Addresses of the interfaces that are up."""
    import psutil

    stats, addresses = psutil.net_if_stats(), psutil.net_if_addrs()
    kinds = (socket.AF_INET, socket.AF_INET6)
    return {name: [one.address for one in addresses.get(name, ()) if one.family in kinds] for name, stat in stats.items() if stat.isup}
