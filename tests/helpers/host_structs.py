"""The structs and prototypes of the CPU library that host_c.py has no need of."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import functools
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int16,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from helpers import host_c
from helpers.host_c import COMM, UniqueId

MAGIC, SIM_MAGIC, VERSION = 0xCAFEBEEF, 0x74685283, 23203
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT
COLLECTIVES = ("AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter")
INTEGERS = {"I8": c_int8, "I16": c_int16, "I32": c_int32, "I64": c_int64, "U8": c_uint8, "U16": c_uint16, "U32": c_uint32, "U64": c_uint64}
CONFIG_INTS = (
    "collnetEnable", "CTAPolicy", "shrinkShare", "nvlsCTAs", "nChannelsPerNetPeer", "nvlinkCentricSched", "graphUsageMode", "numRmaCtx",
    "maxP2pPeers", "graphStreamOrdering", "launchOrderImplicit", "numRmaSig", "rmaEagerInit", "hostCftMode", "nvlsHostMode",
)  # fmt: skip


class Versioned(Structure):
    """A struct that begins with its size, a magic number and a version; `new` fills it as NCCL's initializer does."""

    MAGIC = MAGIC

    @classmethod
    def new(cls, **fields: Any) -> Any:
        """The initial struct with some fields changed."""
        made = cls()
        made.size, made.magic, made.version = ctypes.sizeof(cls), cls.MAGIC, VERSION
        for name, kind, *_ in cls._fields_[3:]:
            if kind is c_int:
                setattr(made, name, UNDEFINED)
        for name, value in {**cls.initial(), **fields}.items():
            setattr(made, name, value)
        return made

    @classmethod
    def initial(cls) -> dict[str, Any]:
        """What is not UNDEFINED in the beginning."""
        return {}


HEAD = [("size", c_size_t), ("magic", c_uint), ("version", c_uint)]


class Config(Versioned):
    """ncclConfig_t."""

    _fields_ = [
        *HEAD,
        *((name, c_int) for name in ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs")),
        ("netName", c_char_p),
        *((name, c_int) for name in ("splitShare", "trafficClass")),
        ("commName", c_char_p),
        *((name, c_int) for name in CONFIG_INTS),
    ]


class CollConfig(Versioned):
    """ncclCollConfig_t."""

    _fields_ = [
        *HEAD,
        ("ext", c_void_p),
        *((name, c_int) for name in ("minCTAs", "maxCTAs", "nvlsCTAs", "cgaClusterSize")),
        ("algSelection", c_char_p),
        *((name, c_int) for name in ("forceAlgSelection", "CTAPolicy")),
        ("userProfilerTag", c_uint64),
        ("launchCompletionEvent", c_void_p),
    ]

    @classmethod
    def initial(cls) -> dict[str, Any]:
        """The field that has a value from the start."""
        return {"forceAlgSelection": 1}


class SimInfo(Versioned):
    """ncclSimInfo_t."""

    MAGIC = SIM_MAGIC
    _fields_ = [*HEAD, ("estimatedTime", c_float)]

    @classmethod
    def initial(cls) -> dict[str, Any]:
        """NCCL_UNDEF_FLOAT."""
        return {"estimatedTime": -1.0}


class EncryptionConfig(Versioned):
    """ncclEncryptionConfig_t."""

    _fields_ = [*HEAD, ("mode", c_int), ("psk", c_char_p)]

    @classmethod
    def initial(cls) -> dict[str, Any]:
        """No encryption."""
        return {"mode": 0}


class WaitDescription(Structure):
    """ncclWaitSignalDesc_t."""

    _fields_ = [(name, c_int) for name in ("opCnt", "peer", "sigIdx", "ctx")]


SIGNATURES = {
    "CommInitRankConfig": [POINTER(COMM), c_int, UniqueId, c_int, c_void_p],
    "CommInitRankScalable": [POINTER(COMM), c_int, c_int, c_int, c_void_p, c_void_p],
    "CommSplit": [COMM, c_int, c_int, POINTER(COMM), c_void_p],
    "CommShrink": [COMM, c_void_p, c_int, POINTER(COMM), c_void_p, c_int],
    "CommGrow": [COMM, c_int, c_void_p, c_int, POINTER(COMM), c_void_p],
    "CommGetUniqueId": [COMM, c_void_p],
    **dict.fromkeys(("CommRevoke", "CommSuspend"), [COMM, c_int]),
    "CommResume": [COMM],
    "CommMemStats": [COMM, c_int, POINTER(c_uint64)],
    "CommQueryProperties": [COMM, c_void_p],
    "CommRegister": [COMM, c_void_p, c_size_t, POINTER(c_void_p)],
    **dict.fromkeys(("CommDeregister", "CommWindowDeregister"), [COMM, c_void_p]),
    "CommWindowRegister": [COMM, c_void_p, c_size_t, POINTER(c_void_p), c_int],
    "WinGetUserPtr": [COMM, c_void_p, POINTER(c_void_p)],
    "RedOpCreatePreMulSum": [POINTER(c_int), c_void_p, c_int, c_int, COMM],
    "RedOpDestroy": [c_int, COMM],
    "PutSignal": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_size_t, c_int, c_int, c_uint, COMM, c_void_p],
    "Signal": [c_int, c_int, c_int, c_uint, COMM, c_void_p],
    "WaitSignal": [c_int, c_void_p, COMM, c_void_p],
    **dict.fromkeys(("GroupSimulateEnd", "SetEncryption"), [c_void_p]),
    "ParamBind": [POINTER(c_void_p), c_char_p],
    **{f"ParamGet{suffix}": [c_void_p, POINTER(kind)] for suffix, kind in INTEGERS.items()},
    "ParamGetStr": [c_void_p, POINTER(c_char_p)],
    "ParamGet": [c_void_p, c_void_p, c_int, POINTER(c_int)],
    "ParamGetParameter": [c_char_p, POINTER(c_char_p), POINTER(c_int)],
    "ParamGetAllParameterKeys": [POINTER(POINTER(c_char_p)), POINTER(c_int)],
    **{f"{name}Config": [*host_c.SIGNATURES[name], c_void_p] for name in COLLECTIVES},
}


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library, with the prototypes of both modules."""
    lib = host_c.library()
    for name, arguments in SIGNATURES.items():
        getattr(lib, f"nccl{name}").argtypes = arguments
    return lib
