"""Process managers that speak PMI: Hydra (MPICH, Intel MPI), srun with its pmi2 plugin, Cray PALS (that one not run here)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

from .launcher import Launcher

_MANAGERS = ("hydra_pmi_proxy", "hydra_bstrap_pr", "slurmstepd")  # the kernel keeps 15 letters of a name

PMI = Launcher(
    "pmi",
    rank=("PMI_RANK",),
    nranks=("PMI_SIZE",),
    local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    local_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    is_mpi=True,
)


def job_name() -> str:
    """A name for the job on this machine: the process manager above us, by pid and start time; "" when none is found."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, _, tail = file.read().rpartition(")")
        except OSError:
            return ""
        fields = tail.split()
        if head.partition("(")[2] in _MANAGERS:
            return f"{PMI.name}-{pid}-{fields[19]}"
        pid = int(fields[1])
    return ""
