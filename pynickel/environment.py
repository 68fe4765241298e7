"""What the environment tells NCCL: a warning for variables that come too late to count, and for names that look misspelt."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .library import Library

log = logging.getLogger("pynickel")
PREFIXES = ("NCCL_", "NICKEL_", "PYNICKEL_")
AT_ANY_TIME = ("NICKEL_TIMEOUT", "NCCL_COMM_BLOCKING", "PYNICKEL_KEY")  # read whenever they are needed
# What NCCL's and our own documentation name; NCCL has more, so that a name which is not here is only reported if it resembles one.
KNOWN = [
    *(f"NICKEL_{name}" for name in "TIMEOUT TRACE FAULT KERNELS".split()),
    *(f"PYNICKEL_{name}" for name in "LIBRARY KEY".split()),
    *(f"NCCL_{name}" for name in """
    ALGO PROTO BUFFSIZE NTHREADS MIN_NCHANNELS MAX_NCHANNELS MIN_CTAS MAX_CTAS CGA_CLUSTER_SIZE CTA_POLICY CHECKS_DISABLE CHECK_POINTERS
    CHECK_MODE LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT
    DEBUG_TIMESTAMP_LEVELS CONF_FILE COMM_ID COMM_BLOCKING HOSTID ENABLE_VERSION_CHECK MULTI_RANK_GPU_ENABLE SET_THREAD_NAME
    SET_STACK_SIZE IGNORE_CPU_AFFINITY NO_CACHE RUNTIME_CONNECT UID_STAGGER_RATE UID_STAGGER_THRESHOLD OOB_NET_ENABLE OOB_NET_IFNAME
    SOCKET_IFNAME SOCKET_FAMILY SOCKET_NTHREADS SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_POLL_TIMEOUT_MSEC NSOCKS_PERTHREAD
    CROSS_NIC NET NET_PLUGIN NET_GDR_LEVEL NET_GDR_READ NET_GDR_C2C NET_SHARED_BUFFERS NET_SHARED_COMMS NETDEVS_POLICY DMABUF_ENABLE
    TUNER_PLUGIN PROFILER_PLUGIN ENV_PLUGIN COLLNET_ENABLE COLLNET_NODE_THRESHOLD TOPO_FILE TOPO_DUMP_FILE P2P_DISABLE P2P_LEVEL
    P2P_DIRECT_DISABLE P2P_PXN_LEVEL P2P_NET_CHUNKSIZE P2P_LL_THRESHOLD ALLOC_P2P_NET_LL_BUFFERS PXN_DISABLE PXN_C2C NVB_DISABLE SHM_DISABLE
    CUMEM_ENABLE CUMEM_HOST_ENABLE MEM_SYNC_DOMAIN NVLS_ENABLE NVLS_NCHANNELS MNNVL_ENABLE MNNVL_UUID MNNVL_CLIQUE_ID SINGLE_RING_THRESHOLD
    LL_THRESHOLD TREE_THRESHOLD GRAPH_REGISTER GRAPH_MIXING_SUPPORT LOCAL_REGISTER LEGACY_CUDA_REGISTER SINGLE_PROC_MEM_REG_ENABLE
    IPC_USE_ABSTRACT_SOCKET RAS_ENABLE RAS_ADDR RAS_TIMEOUT_FACTOR SYM_KERNEL SYM_CTAS SYM_GIN_KERNELS_ENABLE WIN_ENABLE WIN_STRIDE
    GIN_ENABLE GIN_TYPE IB_DISABLE IB_HCA IB_TIMEOUT IB_RETRY_CNT IB_GID_INDEX IB_ADDR_FAMILY IB_ADDR_RANGE IB_ROCE_VERSION_NUM IB_SL IB_TC
    IB_FIFO_TC IB_RETURN_ASYNC_EVENTS IB_AR_THRESHOLD IB_QPS_PER_CONNECTION IB_SPLIT_DATA_ON_QPS IB_CUDA_SUPPORT IB_PCI_RELAXED_ORDERING
    IB_ADAPTIVE_ROUTING IB_ECE_ENABLE IB_MERGE_NICS
    """.split()),
]  # fmt: skip

read: dict[str, dict[str, str]] = {}  # by a library's path: what was set when it made its first communicator here


def settings() -> dict[str, str]:
    """The variables of NCCL, of the CPU library and of pynickel that are set in this process."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}


def likely(name: str) -> str | None:
    """The variable that an unknown name was probably meant to be."""
    if name in KNOWN:
        return None
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, KNOWN, 1, 0.88)), None)


def look(library: Library) -> None:
    """Called for each new communicator: tell what its library will not see."""
    now, before = settings(), read.get(library.path)
    read[library.path] = now
    if before is None:
        for name in now:
            if meant := likely(name):
                log.warning("the environment has %s, which NCCL does not know; was %s meant?", name, meant)
    elif now != before:
        for name in sorted(now.keys() | before.keys()):
            if now.get(name) != before.get(name) and name not in AT_ANY_TIME:
                log.warning(
                    "%s was %s after %s had read it for the first communicator; that has no effect in this process, so do it before",
                    name, f"set to {now[name]!r}" if name in now else "removed", library.label,
                )  # fmt: skip
