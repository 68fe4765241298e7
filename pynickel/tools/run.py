"""`pynickel run -n N command ...`: N processes of one command on this machine, each with its rank, ended together."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import random
import secrets
import socket
import sys
from collections.abc import Mapping

import click

from ..rendezvous import trust
from . import watch
from .keep import Ranks

_MOST = 4096
_LOWEST_PORT = 15000
# What another launcher has set for this process says nothing true about its children.
_FOREIGN = ("TORCHELASTIC_", "GROUP_", "ROLE_")
_OURS = ("PYNICKEL_LAUNCHER", "PYNICKEL_RENDEZVOUS")
_PLACES = frozenset(name for family in trust.FAMILIES.values() for names in family[1:5] for name in names)


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="For several machines: torchrun --nnodes, mpirun --host or srun -N start the same program; pynickel.rendezvous.init() finds "
    "out which of them it was.",
)
@click.option("-n", "--nranks", metavar="N", type=click.IntRange(1, _MOST), required=True, help="How many ranks.")
@click.option("--prefix/--no-prefix", default=True, show_default=True, help='Begin each line of output with its rank, as in "[2] ".')
@click.option("--grace", metavar="S", type=click.FloatRange(0, 3600), default=3.0, show_default=True,
              help="Seconds from asking ranks to end (SIGTERM) until they are killed.")  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(nranks: int, prefix: bool, grace: float, command: tuple[str, ...]) -> None:
    """Start COMMAND N times on this machine, as ranks that find each other.

    Each process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and PYNICKEL_KEY. Signals are passed on
    once. When one rank fails, the others have a moment to say why and are then ended; the exit status is that of the first failure
    (128 + the signal's number for a signal). No process is left behind, not even if this command is killed.
    """
    ranks = Ranks(list(command), [environment(os.environ, rank, nranks) for rank in range(nranks)], prefix, grace)
    share(ranks)
    sys.exit(watch.run(ranks.keep))


def share(ranks: Ranks) -> None:
    """The port and the key of this run, the same for all ranks."""
    port, key = str(free_port()), secrets.token_hex(32)
    for env in ranks.environments:
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, PYNICKEL_KEY=key)


def environment(env: Mapping[str, str], rank: int, nranks: int) -> dict[str, str]:
    """The environment of one rank, but for what the ranks share."""
    kept = {name: value for name, value in env.items() if not name.startswith(_FOREIGN) and name not in _OURS and name not in _PLACES}
    kept.setdefault("PYTHONUNBUFFERED", "1")  # a line shows when it is written, and is not lost when the rank is killed
    return {**kept, "RANK": str(rank), "WORLD_SIZE": str(nranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(nranks)}


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to outgoing connections, so that none takes it meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first = int(file.read().split()[0])
    candidates = range(_LOWEST_PORT, max(first, _LOWEST_PORT + 1000))
    for port in random.sample(candidates, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise click.ClickException(f"no free port was found between {candidates[0]} and {candidates[-1]}")
