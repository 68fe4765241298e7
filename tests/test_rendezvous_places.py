"""Who started this process, and as which rank: variables of every launcher, their order of trust, Slurm's short forms."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from pynickel import LauncherMismatchError, RendezvousError, rendezvous
from pynickel.rendezvous import slurm, trust
from pynickel.rendezvous.launcher import Place
from pynickel.rendezvous.ways import master_port

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
ENV = {"RANK": "2", "WORLD_SIZE": "5"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "5",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-a-1@1",
}
MVAPICH = {f"MV2_COMM_WORLD_{name}": value for name, value in (("RANK", "2"), ("SIZE", "4"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2"))}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
PALS = {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "2", "PALS_RANKID": "1"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[01-03,7]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.99",
}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "9"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Place(0, 1, 0, 1, "single")),
        (TORCHRUN, Place(3, 8, 1, 2, "torchrun")),
        (ENV, Place(2, 5, None, None, "env")),
        (OPENMPI, Place(1, 6, 0, 3, "openmpi")),
        (MVAPICH, Place(2, 4, 0, 2, "mvapich")),
        (PMI, Place(1, 3, 1, 3, "pmi")),
        (PALS, Place(1, 3, 0, 2, "pmi")),
        (SRUN, Place(5, 7, 1, 2, "slurm")),
        ({**BATCH, "SLURM_NTASKS": "1"}, Place(0, 1, 0, 1, "single")),
    ],
)
def test_each_family(env: dict[str, str], expected: Place) -> None:
    """Every launcher's variables give rank, number of ranks, local rank and local size; without any there is one process."""
    assert trust.find(None, env) == expected


@pytest.mark.parametrize(
    ("env", "winner"),
    [
        ({**SRUN, **PMI, **MVAPICH, **OPENMPI, **TORCHRUN}, "torchrun"),
        ({**SRUN, **PMI, **MVAPICH, **OPENMPI}, "openmpi"),
        ({**SRUN, **PMI, **MVAPICH}, "mvapich"),
        ({**SRUN, **PMI}, "pmi"),
        ({**BATCH, **OPENMPI}, "openmpi"),
        ({**BATCH, **PMI}, "pmi"),
        ({**BATCH, **PMI, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "", "SLURM_NPROCS": ""}, "pmi"),
        ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "7"}, "slurm"),
        ({**SRUN, "PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.1.0"}, "slurm"),
    ],
)
def test_order_of_trust(env: dict[str, str], winner: str) -> None:
    """The most trusted family gives all values: MPI inside a Slurm job is believed, unless srun itself has set its variables."""
    found = trust.find(None, env)
    assert found.launcher == winner
    alone = trust.find(winner, env)
    assert found == alone


def test_explicit_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """launcher= decides, then PYNICKEL_LAUNCHER; an unknown name lists the known ones, an absent launcher the variables it would set."""
    env = {**SRUN, **TORCHRUN}
    assert trust.find("slurm", env).launcher == "slurm" and trust.find("single", env) == (0, 1, 0, 1, "single")
    assert trust.find(None, {**env, "PYNICKEL_LAUNCHER": "slurm"}).launcher == "slurm"
    with pytest.raises(ValueError, match=r"launcher must be one of torchrun, .*, single, not 'mpirun'"):
        trust.find("mpirun", env)
    with pytest.raises(ValueError, match="PYNICKEL_LAUNCHER must be one of"):
        trust.find(None, {"PYNICKEL_LAUNCHER": "x"})
    with pytest.raises(TypeError, match="a communicator of mpi4py"):
        trust.find(3, env)
    with pytest.raises(RendezvousError, match="'openmpi' was asked for.*OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE"):
        trust.find("openmpi", env)
    monkeypatch.setenv("PYNICKEL_LAUNCHER", "single")
    assert rendezvous.place() == Place(0, 1, 0, 1, "single")


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"RANK": "1"}, "RANK=1 is set, but WORLD_SIZE is not"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2 is set, but PMI_RANK is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2 make no sense"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "make no sense"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' should be a number"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' should be a number"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2 of 2"),
        (BATCH, "promises 4 ranks, but this process was started by the batch script"),
    ],
)
def test_half_a_family(env: dict[str, str], text: str) -> None:
    """Scenario 32 (c, e): variables that cannot be true are an error that names them, not a single process."""
    with pytest.raises(RendezvousError, match=text):
        trust.find(None, env)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (OPENMPI, "OMPI_COMM_WORLD_SIZE=6 promises 6 ranks.*'openmpi'"),
        (PMI, "PMI_SIZE=3 promises 3 ranks"),
        (SRUN, "SLURM_STEP_NUM_TASKS=7 promises 7 ranks"),
    ],
)
def test_leftovers_that_make_every_rank_alone(env: dict[str, str], text: str) -> None:
    """Scenario 36: RANK=0 and WORLD_SIZE=1 from another program do not turn each rank of a job into a job of its own."""
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    with pytest.raises(LauncherMismatchError, match=f"WORLD_SIZE=1 says that this process is alone, but {text}"):
        trust.find(None, {**env, **alone})
    assert trust.find("env", {**env, **alone}).nranks == trust.find("single", {**env, **alone}).nranks == 1
    assert trust.find(None, {**BATCH, **alone}).launcher == "env" == trust.find(None, alone).launcher


def test_half_a_family_beside_a_whole_one() -> None:
    """A stray RANK of somebody else's does not keep a complete family from being believed."""
    assert trust.find(None, {"RANK": "1", **OPENMPI}).launcher == "openmpi"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("node[01-03,7],b2", ["node01", "node02", "node03", "node7", "b2"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("a,b[5],c-d.e", ["a", "b5", "c-d.e"]),
    ],
)
def test_node_list(text: str, names: list[str]) -> None:
    """Slurm's node lists give the host names in order, with their leading zeros."""
    assert list(slurm.host_names(text)) == names


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[a-b]", "n[3-1]", "n[]", "a,,b", "", "n[1-99999999999]", "a b"])
def test_node_list_that_is_none(text: str) -> None:
    """What is no node list is an error that shows the form."""
    with pytest.raises(RendezvousError, match=r"not of Slurm's form, such as node\[01-03,7\],b2"):
        list(slurm.host_names(text))


def test_task_counts() -> None:
    """Task counts are one number per node; nonsense is an error that shows the form."""
    assert slurm.task_counts("2(x3),1") == [2, 2, 2, 1] and slurm.task_counts("4") == [4]
    for text in ("2(x", "x3", "2(x3)1", "", "1(x99999999999)"):
        with pytest.raises(RendezvousError, match=r"such as 2\(x3\),1"):
            slurm.task_counts(text)


def test_where_slurm_ranks_meet() -> None:
    """The first host of the node list is where rank 0 is, whatever SLURM_LAUNCH_NODE_IPADDR says; the port follows from the job."""
    assert slurm.first_host(SRUN) == "node01"
    assert master_port(SRUN) == 20000 + 123456 % 12000
    assert master_port({**SRUN, "MASTER_PORT": "8933"}) == 8933 and master_port({}) == 29500
    with pytest.raises(RendezvousError, match="MASTER_PORT=99999 is no port"):
        master_port({"MASTER_PORT": "99999"})


def test_job_names() -> None:
    """Two jobs on one machine, and two steps of one job, have different names; without anything that names a job there is none."""
    family = trust.FAMILIES["slurm"]
    assert family.job_name(SRUN) == "slurm-123456-0" != family.job_name({**SRUN, "SLURM_STEP_ID": "1"})
    assert trust.FAMILIES["openmpi"].job_name(OPENMPI) == "openmpi-prterun-a-1@1" and family.job_name({}) == ""
