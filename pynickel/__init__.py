"""pynickel: NVIDIA's NCCL, AMD's RCCL, or a CPU library with the same functions, from Python.

Importing it loads nothing: a name brings its module when it is first used, and the first use of a library loads that.
"""
# SPDX-License-Identifier: Apache-2.0

from importlib import import_module

# The public names, in reading order, by the module that has them.
HOMES = {
    "communicator": ["Communicator"],
    "config": ["Config", "CollConfig"],
    "unique_id": ["UniqueId"],
    "batch": ["group"],
    "plan": ["Plan"],
    "ending": ["abort_all"],
    "enums": [
        "DataType", "RedOp", "Result", "SUM", "PROD", "MAX", "MIN", "AVG", "int8", "uint8", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2",
    ],
    "memory": ["empty", "mem_alloc"],
    "library": ["Library", "load", "get_library", "set_default_library", "address", "get_include", "check"],
    "lowlevel": ["ffi", "lib"],
    "errors": [
        "NCCLError", "CudaError", "NCCLSystemError", "InternalError", "InvalidArgumentError", "InvalidUsageError", "RemoteError",
        "WaitTimeoutError", "CollectiveMismatchError", "DeadlockError", "CommunicatorClosedError", "AbortedError", "ForkedError",
        "BusyError", "RendezvousError", "LauncherMismatchError", "NotAvailableError", "LibraryNotFoundError", "UnevenBatchesError",
        "NonContiguousError", "OverlapError",
    ],
    "_version": ["__version__"],
}  # fmt: skip
MODULES = ["parallel", "rendezvous", "testing", "training"]  # public modules, there without an import of their own
__all__ = [name for names in HOMES.values() for name in names] + MODULES


def __getattr__(name):
    for module, names in HOMES.items():
        if name in names:
            value = getattr(import_module(f".{module}", __name__), name)
            globals()[name] = value
            return value
    if name in MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
