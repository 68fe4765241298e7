"""Which GPU each rank uses, decided from all ranks' rows, and whether two of them would use one."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from .. import driver
from ..errors import CudaError, RendezvousError
from ..library import Library
from .rows import Row, table

_SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"  # NCCL 2.30 and later lets ranks share a GPU where this is 1


def visible(library: Library) -> tuple[str, ...]:
    """The UUIDs of the GPUs that this process can use, in CUDA's order; none with the CPU library or where nobody can tell."""
    found = driver.driver() if library.kind == "nvidia" else None
    if found is None:
        return ()
    count = ctypes.c_int(0)
    code = found.cuInit(0) or found.cuDeviceGetCount(ctypes.byref(count))
    if code != driver.SUCCESS:
        raise CudaError(f"the GPUs cannot be counted: CUresult {code}", code=code)
    ask = getattr(found, "cuDeviceGetUuid_v2", found.cuDeviceGetUuid)  # the newer one tells parts of a GPU apart
    uuids = []
    for device in range(count.value):
        uuid = (ctypes.c_ubyte * 16)()
        if code := ask(ctypes.byref(uuid), device):
            raise CudaError(f"device {device} does not tell its UUID: CUresult {code}", code=code, device=device)
        uuids.append(bytes(uuid).hex())
    return tuple(uuids)


def local_rank(row: Row, rows: Sequence[Row]) -> int:
    """The launcher's local rank, else this rank's place among those on its host."""
    if row.local_rank is not None:
        return row.local_rank
    return sum(other.host == row.host and other.rank < row.rank for other in rows)


def device(row: Row, rows: Sequence[Row]) -> int:
    """The device of a rank: the one asked for, the only one that it sees, or the one with the number of its local rank."""
    if row.device is not None:
        return row.device
    return 0 if len(row.devices) == 1 else local_rank(row, rows)


def conflict(rows: Sequence[Row]) -> RendezvousError | None:
    """Why the ranks' devices cannot be used together: one that does not exist, or one GPU for two ranks."""
    used: dict[str, int] = {}
    outside: list[int] = []
    shared: list[tuple[int, int]] = []
    for row in rows:
        number = device(row, rows)
        if row.devices and number >= len(row.devices):
            outside.append(row.rank)
        elif row.devices and used.setdefault(row.devices[number], row.rank) != row.rank:
            shared.append((used[row.devices[number]], row.rank))
    if outside:
        ranks = f"rank{'s' * (len(outside) > 1)} {', '.join(map(str, outside))}"
        remedy = "start as many ranks per machine as it has GPUs, or choose by device= or CUDA_VISIBLE_DEVICES"
        return RendezvousError(f"{ranks} would use a GPU that is not there: {remedy}\n{_table(rows)}")
    if shared and not all(row.shared_gpu for row in rows):
        pairs = ", ".join(f"{first} and {second}" for first, second in shared)
        return RendezvousError(
            f"ranks {pairs} would use the same GPU, which NCCL refuses. Either give each rank a GPU of its own (local rank, device=, "
            f"CUDA_VISIBLE_DEVICES), or, with NCCL 2.30 or newer, set {_SHARED}=1 on all ranks\n{_table(rows)}"
        )
    return None


def may_share(env: Mapping[str, str], version: tuple[int, ...]) -> bool:
    """Whether this rank's NCCL takes several ranks on one GPU."""
    return env.get(_SHARED) == "1" and version >= (2, 30)


def _table(rows: Sequence[Row]) -> str:
    numbers = [device(row, rows) for row in rows]
    uuids = [row.devices[n] if n < len(row.devices) else "none" for n, row in zip(numbers, rows, strict=True)]
    columns = [
        ("local rank", [str(local_rank(row, rows)) for row in rows]),
        ("device", list(map(str, numbers))),
        ("visible", [str(len(row.devices)) for row in rows]),
        ("uuid", uuids),
    ]
    return table(rows, columns)
