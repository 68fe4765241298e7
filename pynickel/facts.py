"""What a communicator can be asked about itself: its properties and the memory that it holds."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, NamedTuple

from . import report
from ._nccl import ffi, lib
from .calls import Calls
from .config import fields_of, numbers, since_of


class CommProperties(NamedTuple):
    """The fields of ncclCommProperties_t under NCCL's names; None where the loaded library does not know the field yet."""

    rank: int
    nRanks: int
    cudaDev: int
    nvmlDev: int
    deviceApiSupport: bool
    multimemSupport: bool
    ginType: int
    nLsaTeams: int | None
    hostRmaSupport: bool | None
    railedGinType: int | None
    commHash: int | None
    ginMinStride: int | None
    ginConnectionType: int | None
    ginSupport: list[bool] | None
    devCommRuntimeVersionSize: int | None
    cftSupport: bool | None
    cftMulticastSupport: bool | None
    cftCountedSupport: bool | None


class MemoryStats(NamedTuple):
    """Bytes of GPU memory of a communicator: what suspend() gives back, what stays, both; and whether it is suspended.

    The CPU library has no GPU memory and counts shared memory.
    """

    suspend: int
    suspended: bool
    persist: int
    total: int


class Facts(Calls):
    """Questions."""

    __slots__ = ()

    def last_error(self) -> str:
        """The library's last warning in words; NVIDIA's keeps one for the whole process. (ncclGetLastError)"""
        return report.last_error(self.library)

    def properties(self) -> CommProperties:
        """What this rank's communicator supports; see CommProperties. (ncclCommQueryProperties)"""
        version = min(self.library.version, (lib.NCCL_MAJOR, lib.NCCL_MINOR, lib.NCCL_PATCH))
        found = ffi.new("ncclCommProperties_t *", lib.pn_initial_ncclCommProperties_t)
        # The library refuses a version newer than its own, and writes the fields that this one had.
        found.version = version[0] * 10000 + version[1] * 100 + version[2]
        self._finish(lib.comm_ncclCommQueryProperties, found)
        known: dict[str, Any] = {}
        for field in fields_of("ncclCommProperties_t"):
            value: Any = getattr(found, field)
            known[field] = None if version < numbers(since_of("ncclCommProperties_t", field)) else plain(value)
        return CommProperties._make(known.values())

    def memory_stats(self) -> MemoryStats:
        """How much memory this rank's communicator holds; see MemoryStats. A suspended communicator answers too. (ncclCommMemStats)"""
        kinds = (lib.ncclStatGpuMemSuspend, lib.ncclStatGpuMemSuspended, lib.ncclStatGpuMemPersist, lib.ncclStatGpuMemTotal)

        def asked(comm: Any) -> list[tuple[int, int]]:
            outs = [ffi.new("uint64_t *") for _ in kinds]
            return [(lib.ncclCommMemStats(self.library.table, comm, kind, out), out[0]) for kind, out in zip(kinds, outs, strict=True)]

        values = self._inside("ncclCommMemStats", asked)
        for code, _ in values:
            if code != lib.ncclSuccess:
                raise self._error(code, "ncclCommMemStats")
        suspend, suspended, persist, total = (value for _, value in values)
        return MemoryStats(suspend, bool(suspended), persist, total)


def plain(value: Any) -> Any:
    """A field as a Python value."""
    return value if isinstance(value, int) else list(value)
