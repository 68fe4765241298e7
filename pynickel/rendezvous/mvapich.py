"""MVAPICH's launchers, before they left that to Hydra. Written from their documentation; not run here."""
# SPDX-License-Identifier: Apache-2.0

from .launcher import Launcher

MVAPICH = Launcher(
    "mvapich",
    rank=("MV2_COMM_WORLD_RANK",),
    nranks=("MV2_COMM_WORLD_SIZE",),
    local_rank=("MV2_COMM_WORLD_LOCAL_RANK",),
    local_size=("MV2_COMM_WORLD_LOCAL_SIZE",),
    is_mpi=True,
)
