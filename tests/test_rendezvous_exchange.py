"""exchange(): every rank's bytes on every rank, and what is said when one of them does not come, or is at something else."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from typing import Any

import pytest
from helpers import fake_mpi
from helpers.processes import Script

from pynickel import RendezvousError, WaitTimeoutError, rendezvous
from pynickel.tools.run import free_port

PROGRAM = """
    import os, sys
    from pynickel import rendezvous
    rank = os.environ["RANK"]
    if rank != "{absent}":
        what = {work}
        print(rank, what, flush=True)
"""


def ranks(work: str, absent: str = "none", n: int = 3) -> list[str]:
    """What the ranks print, as `RANK text`, when each evaluates this expression; one of them may be absent."""
    port = str(free_port())
    env = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYNICKEL_KEY": "k" * 32}
    started = [Script(PROGRAM.format(work=work, absent=absent), env={**env, "RANK": str(rank)}) for rank in range(n)]
    said = []
    for script in started:
        with script:
            result = script.finish(30)
            assert result.left == []
            said.append(result.stdout + result.stderr)
    return said


def test_all_bytes_on_all_ranks() -> None:
    """Three processes exchange twice: each ends up with the bytes of all in rank order; alone a process has its own."""
    work = "[rendezvous.exchange(rank.encode() * n) for n in (1, 2)]"
    assert ranks(work) == [f"{rank} [[b'0', b'1', b'2'], [b'00', b'11', b'22']]\n" for rank in range(3)]
    assert rendezvous.exchange(b"own", "single") == [b"own"]
    with pytest.raises(ValueError, match="at most 50000 can be exchanged"):
        rendezvous.exchange(os.urandom(60_000), "single")


def test_rank_that_does_not_come() -> None:
    """At the deadline the missing rank is named, by number alone, since nothing else is known of it."""
    said = ranks("rendezvous.exchange(b'', timeout=3)", absent="2")
    assert "only 2 of 3 ranks came to exchange() within 3 s; missing: rank 2\n" in said[0]
    assert "missing: rank 2" in said[1] or "rank 0 at 127.0.0.1" in said[1]


def test_by_mpi() -> None:
    """Ranks of MPI exchange by it; when one does not come, the error does not claim to know which."""
    assert fake_mpi.run(3, lambda comm: rendezvous.exchange(b"%d" % comm.rank, comm)) == [[b"0", b"1", b"2"]] * 3

    def one_comes(comm: fake_mpi.Comm) -> Any:
        return comm.rank == 1 and rendezvous.exchange(b"", comm, timeout=0.2)

    told = fake_mpi.run(2, one_comes)[1]
    assert isinstance(told, WaitTimeoutError) and told.missing == ()
    assert "rank 1 of 2 heard nothing within 0.2 s: MPI's ranks" in str(told)


def test_rank_at_something_else() -> None:
    """An exchange and an init() that meet by MPI are told apart, and so is what is no row at all."""

    def work(comm: fake_mpi.Comm) -> Any:
        return rendezvous.exchange(b"", comm) if comm.rank else rendezvous.init(comm, library="host")

    told = fake_mpi.run(2, work)
    assert isinstance(told[1], RendezvousError) and "rank 0 called rendezvous.init() where the others called exchange()" in str(told[1])
    assert isinstance(told[0], RendezvousError)
