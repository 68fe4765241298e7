"""Open MPI's mpirun; its "node rank" counts over all jobs on the node and is no node number, so it is not used."""
# SPDX-License-Identifier: Apache-2.0

from .launcher import Launcher

OPENMPI = Launcher(
    "openmpi",
    rank=("OMPI_COMM_WORLD_RANK",),
    nranks=("OMPI_COMM_WORLD_SIZE",),
    local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
    local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    is_mpi=True,
)
