"""Registered buffers of the CPU library: counted as NCCL counts them, and otherwise of no consequence."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from ctypes import byref, c_void_p

import numpy as np
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, raised
from helpers.host_more import Comm, both_ways
from helpers.host_structs import library


def register(comm: Comm, buffer: np.ndarray, size: int | None = None) -> int | None:
    """ncclCommRegister; the handle."""
    handle = c_void_p(0)
    comm.on("CommRegister", buffer.ctypes.data, buffer.nbytes if size is None else size, byref(handle))
    return handle.value


@forks.nursery()
def test_registration_is_counted() -> None:
    """A buffer that is registered three times is deregistered three times, the fourth is ncclInvalidUsage; every order of several works,
    and collectives in registered memory of both kinds are right."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        for memory in (np.zeros(20_000, np.float32), host_c.empty(20_000, np.float32)):
            handles = [register(comm, memory) for _ in range(3)]
            part = register(comm, memory, 400)
            assert all(handles) and part and part not in handles
            memory[:] = rank + 1
            comm.all_reduce(memory, memory)
            assert (memory == 3).all()
            for handle in (handles[2], part, handles[0], handles[1]):
                comm.on("CommDeregister", handle)
            for handle in (*handles, part):
                assert both_ways(lambda handle=handle: comm.on("CommDeregister", handle)).code == INVALID_USAGE
        several = [np.zeros(100, np.int32) for _ in range(50)]
        handles = [register(comm, one) for one in several]
        assert len(set(handles)) == 50
        for handle in handles[::2] + handles[::-2]:
            comm.on("CommDeregister", handle)
        comm.barrier()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_arguments() -> None:
    """NULL and empty buffers, a NULL place and a NULL communicator are ncclInvalidArgument; a NULL handle is success, an unknown one and
    one of another communicator are ncclInvalidUsage."""
    comm, other = Comm(1, host_c.unique_id(), 0), Comm(1, host_c.unique_id(), 0)
    memory, handle, lib = np.zeros(10), c_void_p(5), library()
    for pointer, size in ((None, 8), (memory.ctypes.data, 0)):
        error = both_ways(lambda pointer=pointer, size=size: comm.on("CommRegister", pointer, size, byref(handle)))
        assert error.code == INVALID_ARGUMENT
    assert lib.ncclCommRegister(comm.handle, memory.ctypes.data, 8, None) == INVALID_ARGUMENT
    assert lib.ncclCommRegister(None, memory.ctypes.data, 8, byref(handle)) == INVALID_ARGUMENT
    assert lib.ncclCommDeregister(None, handle) == INVALID_ARGUMENT == lib.ncclCommDeregister(None, None)
    assert lib.ncclCommDeregister(comm.handle, None) == SUCCESS
    mine = register(comm, memory)
    for wrong in (1, mine + 1, memory.ctypes.data):
        assert raised(comm.on, "CommDeregister", wrong).code == INVALID_USAGE
    assert raised(other.on, "CommDeregister", mine).code == INVALID_USAGE
    comm.on("CommDeregister", mine)


@forks.nursery()
def test_left_registered() -> None:
    """What is still registered when a communicator is closed, aborted or fails goes with it; after that its handles are refused with it."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        memory = np.zeros(10, np.float32)
        for id, end in zip(ids, ("destroy", "abort", "revoke"), strict=True):
            comm = Comm(nranks, id, rank)
            handle = register(comm, memory)
            comm.barrier()
            getattr(comm, end)()
            if end == "revoke":
                comm.on("CommDeregister", handle)
                assert raised(register, comm, memory).code == INVALID_USAGE
                comm.destroy()
            assert raised(comm.on, "CommDeregister", handle).code == INVALID_ARGUMENT

    forks.values(forks.fork(2, rank_main, ids=3))


@forks.nursery()
def test_forked_child() -> None:
    """In a forked child the parent's registrations are refused, and those of the parent stay."""
    comm, memory = Comm(1, host_c.unique_id(), 0), np.zeros(10)
    handle = register(comm, memory)
    child = os.fork()
    if child == 0:
        os._exit(library().ncclCommDeregister(comm.handle, handle))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == INVALID_USAGE
    comm.on("CommDeregister", handle)
