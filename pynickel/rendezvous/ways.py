"""By which way the rows of a rendezvous travel: MPI, torchrun's store, our own store at an address, or one that a file leads to."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import RendezvousError
from . import file, hydra, mpi, secret, slurm, store, torchrun, trust
from .launcher import Environment, Place, number
from .rows import GONE, Row

DEFAULT_PORT = 29500
_JOB_PORTS = (20000, 12000)  # first, and how many: below those that Linux gives to outgoing connections
_ANYWHERE = "0.0.0.0"


class Log(Protocol):
    """Rows of all ranks, in one order that all see alike. `silence`: what it means when none comes."""

    silence: str

    @property
    def note(self) -> str:
        """A remark in brackets, if there is one, for the error at the deadline."""

    def append(self, row: bytes) -> None:
        """Add a row."""

    def wait(self, known: int, until: float) -> list[bytes]:
        """All rows, once there are more than `known`, or at time.monotonic() `until`."""

    def close(self, expected: int, until: float) -> None:
        """Leave; who keeps the rows stays until all that are `expected` have got them, but not beyond `until`."""


class Way(NamedTuple):
    """What decides the way: the launcher asked for, the place, the environment, which rendezvous of this process it is, its end."""

    launcher: Any
    place: Place
    env: Environment
    turn: int
    until: float

    def open(self, row: Row) -> Log:
        """The log of this rendezvous; TimeoutError with the reason when it cannot be reached in time."""
        place, env = self.place, self.env
        by_torchrun = place.launcher in (torchrun.TORCHRUN.name, torchrun.ENV.name)
        if mpi.carries(self.launcher, place, env):
            return mpi.MpiLog(mpi.communicator(trust.asked_for(self.launcher, env)))
        if by_torchrun and torchrun.agent_has_port(env) and torchrun.torch_is_there():
            return torchrun.AgentLog(env, self.turn, self.until)
        if folder := env.get(secret.FOLDER):
            return self._by_file(row, secret.named_folder(folder))
        if torchrun.ADDRESS in env and not (by_torchrun and torchrun.agent_has_port(env)):
            return self._by_address(row, env[torchrun.ADDRESS])
        if place.on_one_machine and self._job():
            return self._by_file(row, secret.private_folder())
        first = slurm.first_host(env) if place.launcher == slurm.SLURM.name else ""
        if first and env.get(secret.KEY):
            return self._by_address(row, first)
        if first:
            return self._by_file(row, secret.home_folder())
        raise RendezvousError(self._remedies())

    def _job(self) -> str:
        """The job's name on this machine."""
        if self.place.launcher == hydra.PMI.name:
            return hydra.job_name()
        family = trust.FAMILIES.get(self.place.launcher)
        return family.job_name(self.env) if family else ""

    def _by_file(self, row: Row, folder: Path) -> Log:
        path = file.path_of(folder, self._job(), self.turn)
        if row.rank != 0:
            return file.join(path, self.turn, self.until)
        names = file.own_names(self.place.on_one_machine, self.env.get("SLURMD_NODENAME", ""))
        return file.serve(path, names, self.turn, self.until, gone)

    def _by_address(self, row: Row, host: str) -> Log:
        key, port = secret.from_environment(self.env), master_port(self.env)
        if key is None and self.place.on_one_machine:
            host = file.LOOPBACK
        if key is None and not is_loopback(host):
            raise RendezvousError(
                f"ranks on several machines meet at {host}:{port}, and anybody could join them there: give all of them the same secret "
                f"in {secret.KEY} (at least 16 characters), or the same folder, which only you can read, in {secret.FOLDER}"
            )
        if row.rank != 0:
            return store.connect([(host, port)], key or b"", self.turn, self.until)
        hosts = [host if is_own(host) or key is None else _ANYWHERE]
        return store.serve_or_join(hosts, port, key or b"", self.turn, self.until, gone)

    def _remedies(self) -> str:
        return (
            f"{self.place.launcher} says that this is rank {self.place.rank} of {self.place.nranks}, but not where the ranks meet. Set "
            f"{torchrun.ADDRESS} and {torchrun.PORT} (with a secret in {secret.KEY} for several machines), or {secret.FOLDER} to a "
            "folder that all ranks can read, or install mpi4py for ranks that MPI has started"
        )


def gone(row: bytes) -> bytes | None:
    """The row that says that the rank of this row has left."""
    try:
        last = Row.from_bytes(row)
    except ValueError:
        return None
    return last._replace(what=GONE, text="ended, or left the rendezvous, before all ranks were there").to_bytes()


def master_port(env: Environment) -> int:
    """MASTER_PORT, else a port that follows from Slurm's job id, else 29500."""
    given = number(env, (torchrun.PORT,))[0]
    if given is not None:
        if not 0 < given < 1 << 16:
            raise RendezvousError(f"{torchrun.PORT}={given} is no port; ports are 1 to 65535")
        return given
    job = number(env, slurm.SLURM.job[:1])[0]
    return DEFAULT_PORT if job is None else _JOB_PORTS[0] + job % _JOB_PORTS[1]


def addresses(host: str) -> list[str]:
    """The addresses of a host name; RendezvousError if there are none."""
    try:
        return [str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise RendezvousError(f"{torchrun.ADDRESS}={host!r} is no host that this machine can find: {error}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    return all(ipaddress.ip_address(address).is_loopback for address in addresses(host))


def is_own(host: str) -> bool:
    """Whether this machine has that address."""
    try:
        for listener in store.listen([host], 0):
            listener.close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return False
        raise RendezvousError(f"rank 0 cannot listen on {host}: {error}") from error
    return True
