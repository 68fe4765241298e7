"""init() under MPI, which threads of one process stand for here: what its ranks are told, and MPI against the launcher's word."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from typing import Any

import pytest
from helpers import fake_mpi

import pynickel
from pynickel import LauncherMismatchError, RendezvousError, UniqueId, WaitTimeoutError, rendezvous
from pynickel.rendezvous import devices, trust


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say themselves which launcher there is."""
    for launcher in trust.FAMILIES.values():
        for name in (*launcher.rank, *launcher.nranks, *launcher.local_rank, *launcher.local_size, "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)


def test_failing_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 34: under MPI, when rank 0 cannot make an id, all raise the same text within a second, and rank 0 the cause with it."""

    def broken(library: Any) -> UniqueId:
        raise OSError("no memory for an id")

    monkeypatch.setattr(UniqueId, "create", broken)
    began = time.monotonic()
    told = fake_mpi.run(3, lambda comm: rendezvous.init(comm))
    assert time.monotonic() - began < 5
    assert all(isinstance(error, RendezvousError) for error in told) and len(set(map(str, told))) == 1
    assert "rank 0 of 3" in str(told[0]) and "OSError: no memory for an id" in str(told[0])
    assert isinstance(told[0].__cause__, OSError)


def test_mpi_ranks_meet() -> None:
    """Ranks of an MPI communicator meet by it alone; after that each has a communicator with MPI's rank and number."""

    def work(comm: fake_mpi.Comm) -> tuple[int, int, bytearray]:
        with rendezvous.init(comm, library="host") as made:
            return made.rank, made.nranks, made.all_reduce(bytearray([1]), dtype=pynickel.uint8)

    assert fake_mpi.run(4, work) == [(number, 4, bytearray([4])) for number in range(4)]


def test_mpi_rank_that_does_not_come() -> None:
    """A rank of MPI that does not call init() is no hang: the others end at the deadline."""
    told = fake_mpi.run(2, lambda comm: comm.rank == 0 and rendezvous.init(comm, timeout=0.3))
    assert isinstance(told[0], WaitTimeoutError) and "rank 0 of 2 heard nothing within 0.3 s: MPI's ranks" in str(told[0])
    assert told[0].missing == () and "nobody came" not in str(told[0])


@pytest.mark.parametrize(
    ("variable", "env"),
    [
        ("OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}),
        ("PMI_SIZE", {"PMI_RANK": "2", "PMI_SIZE": "4"}),
        ("SLURM_NTASKS", {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "2"}),
        ("WORLD_SIZE", {"RANK": "2", "WORLD_SIZE": "4"}),
    ],
)
def test_launcher_of_another_mpi(variable: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 36: MPI says rank 0 of 1 where the launcher promises 4: the error names both numbers and the variable; 'single' opts out."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    alone = fake_mpi.World(1).comm(0)
    with pytest.raises(LauncherMismatchError, match=f"{variable}=4 promises 4 ranks, but MPI .* says that there are 1.*launcher='single'"):
        rendezvous.init(alone)
    with rendezvous.init("single") as comm:
        assert comm.nranks == 1
    monkeypatch.setenv("PYNICKEL_LAUNCHER", "single")
    with rendezvous.init() as comm:
        assert comm.nranks == 1


def test_one_rank_cannot_go_on() -> None:
    """A rank without a usable library tells the others why; all get the same text, the failing rank the cause with it."""

    def work(comm: fake_mpi.Comm) -> Any:
        return rendezvous.init(comm, library="/nowhere/libnccl.so" if comm.rank == 1 else "host")

    told = fake_mpi.run(3, work)
    assert len({str(error) for error in told}) == 1 and "rank 1 of 3" in str(told[0]) and "/nowhere/libnccl.so" in str(told[0])
    assert isinstance(told[1].__cause__, pynickel.LibraryNotFoundError)


def test_two_ranks_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks that see the same GPU, by its UUID, are told before the library's init, with the table."""
    monkeypatch.setattr(devices, "visible", lambda library: ("GPU-5",))
    for error in fake_mpi.run(2, lambda comm: rendezvous.init(comm)):
        assert isinstance(error, RendezvousError) and "ranks 0 and 1 would use the same GPU" in str(error)
        assert str(error).count("GPU-5") == 2
