"""What a launcher tells each process that it starts: its place among the ranks, in environment variables of one family."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import RendezvousError

Environment = Mapping[str, str]


class Place(NamedTuple):
    """Where this process stands: `rank` of `nranks`, `local_rank` of `local_size` on its machine, and who said so.

    The local values are None where the launcher does not tell them.
    """

    rank: int
    nranks: int
    local_rank: int | None
    local_size: int | None
    launcher: str

    @property
    def on_one_machine(self) -> bool:
        """Whether the launcher says that all ranks are on this machine."""
        return self.local_size == self.nranks


class Launcher(NamedTuple):
    """One family of variables: of each kind the first name that is set counts.

    `job`: the variables that together name the job, for files that its ranks share. `is_mpi`: its ranks are those of MPI.
    """

    name: str
    rank: tuple[str, ...]
    nranks: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    job: tuple[str, ...] = ()
    is_mpi: bool = False

    def read(self, env: Environment) -> Place | None:
        """The place that these variables tell, or None when none of them is set; RendezvousError when they contradict themselves."""
        rank, rank_name = number(env, self.rank)
        nranks, nranks_name = number(env, self.nranks)
        if rank is None and nranks is None:
            return None
        if rank is None or nranks is None:
            there, missing = (rank_name, self.nranks) if nranks is None else (nranks_name, self.rank)
            raise RendezvousError(
                f"{there}={env[there]} is set, but {' or '.join(missing)} is not: the launcher sets both; "
                f"unset it for a single process, or name the launcher by launcher="
            )
        local_rank, local_size = number(env, self.local_rank)[0], number(env, self.local_size)[0]
        return checked(Place(rank, nranks, local_rank, local_size, self.name), f"{rank_name}={rank}, {nranks_name}={nranks}")

    def job_name(self, env: Environment) -> str:
        """A name that all ranks of this job share and no other job on this machine has; "" when the launcher gives none."""
        parts = [env.get(name, "") for name in self.job]
        return "-".join([self.name, *filter(None, parts)]) if any(parts) else ""


def number(env: Environment, names: tuple[str, ...]) -> tuple[int | None, str]:
    """The number in the first of these variables that is set, with the variable's name."""
    for name in names:
        if text := env.get(name, "").strip():
            if not (text.isascii() and text.isdigit()):
                raise RendezvousError(f"{name}={text!r} should be a number, 0 or higher, as the launcher sets it")
            return int(text), name
    return None, names[0] if names else ""


def checked(place: Place, source: str) -> Place:
    """The same place, if it can be one."""
    if not 0 <= place.rank < place.nranks:
        raise RendezvousError(f"{source} make no sense together: a rank is 0 to size - 1")
    local_rank, local_size = place.local_rank, place.local_size
    if local_size is not None and not (local_rank or 0) < local_size <= place.nranks:
        raise RendezvousError(f"{source} and local rank {local_rank} of {local_size} make no sense together")
    return place
