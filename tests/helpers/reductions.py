"""Reductions over ranks of one thread, and whether every rank has the bits of the reference."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers import arithmetic, host_c
from helpers.arithmetic import Array, bits

OPS = (*host_c.OPS, "premulsum")
HOST_IMMEDIATE = 1


def reduction(comm: host_c.Comm, name: str, op: str, scalar: Any) -> int:
    """The number of an operation; for premulsum one is made, with the scalar as it is now."""
    if op != "premulsum":
        return host_c.op_of(op)
    made, element = ctypes.c_int(), np.array([scalar], arithmetic.TYPES[name])
    create = host_c.library().ncclRedOpCreatePreMulSum
    create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    host_c.check(create(ctypes.byref(made), element.ctypes.data, host_c.TYPES.index(name), HOST_IMMEDIATE, comm.handle))
    return made.value


def forget(comm: host_c.Comm, op: int) -> None:
    """Destroy an operation, unless it is one of NCCL's own."""
    destroy = host_c.library().ncclRedOpDestroy
    destroy.argtypes = [ctypes.c_int, ctypes.c_void_p]
    if op >= len(host_c.OPS):
        host_c.check(destroy(op, comm.handle))


def all_reduce(
    comms: Sequence[host_c.Comm], name: str, op: str, inputs: Sequence[Array], scalars: Sequence[Any] | None = None, in_place: bool = False
) -> list[Array]:
    """What each of several ranks of this thread receives."""
    sends = [array.copy() for array in inputs]
    recvs = sends if in_place else [np.full_like(bits(array), 0x5A).view(array.dtype) for array in inputs]
    ops = [reduction(comm, name, op, scalars[comm.rank] if scalars is not None else None) for comm in comms]
    with host_c.group():
        for comm in comms:
            comm.all_reduce(sends[comm.rank], recvs[comm.rank], ops[comm.rank], type=name)
    for comm in comms:
        forget(comm, ops[comm.rank])
        if not in_place:
            assert (bits(sends[comm.rank]) == bits(inputs[comm.rank])).all(), "a send buffer was written"
    return recvs


def assert_folded(name: str, op: str, inputs: Sequence[Array], results: Sequence[Array], scalars: Sequence[Any] | None = None) -> None:
    """Every rank has exactly the bits of the reference."""
    expected = arithmetic.fold(name, op, inputs, scalars)
    for rank, result in enumerate(results):
        wrong = np.nonzero(bits(result) != bits(expected))[0]
        if wrong.size:
            i = wrong[0]
            shown = ", ".join(f"{array[i]!r} ({bits(array)[i]:#x})" for array in inputs)
            raise AssertionError(
                f"{op} of {name} on rank {rank}: {wrong.size} of {expected.size} differ, first element {i}: "
                f"{result[i]!r} ({bits(result)[i]:#x}) is not {expected[i]!r} ({bits(expected)[i]:#x}), from {shown}, scalars {scalars}"
            )


def elements(name: str, *patterns: int) -> Array:
    """Elements by their bits."""
    return np.array(patterns, f"u{arithmetic.TYPES[name].itemsize}").view(arithmetic.TYPES[name])
