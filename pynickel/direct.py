"""Operations in one step from the method to the library, where all arguments are of the usual kinds; else nothing happens."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable

from ._nccl import lib
from .batch import open_groups
from .enums import DataType, RedOp

# Each takes (comm, comm._entry, send, recv, count, dtype, stream, config, and the operator, root or peer): cdef/direct.h.
# True: the call is made, and _after() has seen its result. False: nothing has happened, and the long way must look.
Direct = Callable[..., bool]

calls = {name.removeprefix("comm_"): getattr(lib, name) for name in dir(lib) if name.startswith("comm_nccl")}
functions: dict[str, Direct] = {}

if lib.pn_direct_functions(id(functions), id(calls), id(open_groups), id(DataType), id(RedOp)):
    raise MemoryError("no memory for the operations")

all_reduce = functions["ncclAllReduce"]
broadcast = functions["ncclBroadcast"]
reduce = functions["ncclReduce"]
all_gather = functions["ncclAllGather"]
reduce_scatter = functions["ncclReduceScatter"]
all_to_all = functions["ncclAlltoAll"]
gather = functions["ncclGather"]
scatter = functions["ncclScatter"]
send = functions["ncclSend"]
recv = functions["ncclRecv"]
