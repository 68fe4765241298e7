"""This machine's addresses: of an interface, of the way out, and of the way to another machine."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
_DISCARD = 9  # a port for sockets that only ask the routing table and send nothing


def checked(ip: str) -> str:
    """Return the address, or say what is wrong with it."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        raise ValueError(f"parallel.ip must be an address of this machine, such as '10.0.0.5', not {ip!r}") from None
    if address.is_unspecified:
        raise ValueError(f"parallel.ip must be one address, not {ip!r}, which stands for all of them")
    return str(address)


def of_interfaces(names: Sequence[str] | None) -> str | None:
    """Return the first address of the named interfaces; of all but loopback, the way out first, when none is named."""
    import psutil

    found = {name: _usable(addresses) for name, addresses in psutil.net_if_addrs().items()}
    if names is None:
        out = facing("192.0.2.1")  # an address of no machine: whatever leads out leads there
        others = [address for addresses in found.values() for address in addresses]
        return out if out in others else next(iter(others), None)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ValueError(f"this machine has no interface {', '.join(map(repr, unknown))}; it has {', '.join(sorted(found))}")
    return next((address for name in names for address in found[name]), None)


def _usable(addresses: Sequence[object]) -> list[str]:
    """The addresses that other machines may reach, IPv4 before IPv6."""
    usable = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in addresses:
            if getattr(entry, "family", None) == family:
                address = ipaddress.ip_address(str(getattr(entry, "address", "")).partition("%")[0])
                if not address.is_loopback and not address.is_link_local:
                    usable.append(str(address))
    return usable


def facing(host: str) -> str | None:
    """Return the address of ours from which packets to the host leave; None when its name or the way is not known."""
    try:
        infos = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in infos:
        try:
            with socket.socket(family, kind, protocol) as asking:
                asking.connect(address)
                return str(asking.getsockname()[0])
        except OSError:
            continue
    return None
