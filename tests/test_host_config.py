"""The structs that configure calls of the CPU library: what is checked, what older and newer callers get, what is only estimated."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
from ctypes import byref
from typing import Any

import numpy as np
from helpers import forks, host_c
from helpers.host_c import COMM, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, UniqueId, raised
from helpers.host_more import IN_PROGRESS, Comm, both_ways
from helpers.host_structs import COLLECTIVES, MAGIC, UNDEFINED, VERSION, CollConfig, Config, EncryptionConfig, SimInfo, library

FLAG = (-1, 2, UNDEFINED + 1, 2**31 - 1)
WRONG = {
    **dict.fromkeys(("blocking", "splitShare", "collnetEnable", "shrinkShare", "nvlinkCentricSched", "graphStreamOrdering"), FLAG),
    **dict.fromkeys(("launchOrderImplicit", "rmaEagerInit"), FLAG),
    **dict.fromkeys(("minCTAs", "maxCTAs", "nvlsCTAs", "maxP2pPeers"), (0, -1)),
    **dict.fromkeys(("cgaClusterSize", "numRmaCtx", "numRmaSig"), (-1,)),
    "CTAPolicy": (-1, 4), "nChannelsPerNetPeer": (0, 65), "graphUsageMode": (-1, 3), "hostCftMode": (0, 4), "nvlsHostMode": (4, 8, -1),
}  # fmt: skip
RIGHT = {
    **dict.fromkeys(("splitShare", "collnetEnable", "shrinkShare", "nvlinkCentricSched", "graphStreamOrdering"), (0, 1)),
    **dict.fromkeys(("launchOrderImplicit", "rmaEagerInit", "numRmaCtx", "numRmaSig"), (0, 1)),
    **dict.fromkeys(("minCTAs", "maxCTAs", "nvlsCTAs", "nChannelsPerNetPeer", "maxP2pPeers"), (1, 64)),
    "blocking": (1,), "cgaClusterSize": (0, 8), "CTAPolicy": (0, 1, 2, 3), "graphUsageMode": (0, 1, 2), "hostCftMode": (1, 2, 3),
    "nvlsHostMode": (0, 1, 2, 3, 2**31 - 1), "trafficClass": (0, 5, -1),
}  # fmt: skip
SINCE = {
    "blocking": 21400, "cgaClusterSize": 21700, "minCTAs": 21700, "maxCTAs": 21700, "collnetEnable": 22700, "CTAPolicy": 22700,
    "shrinkShare": 22700, "nvlsCTAs": 22700, "nChannelsPerNetPeer": 22800, "nvlinkCentricSched": 22800, "graphUsageMode": 22900,
    "numRmaCtx": 22900, "maxP2pPeers": 23000, "graphStreamOrdering": 23005, "launchOrderImplicit": 23100, "numRmaSig": 23100,
    "rmaEagerInit": 23100, "hostCftMode": 23100,
}  # fmt: skip


def alone(config: Config | None) -> Comm:
    """A communicator of one rank; closed at once."""
    comm = Comm(1, host_c.unique_id(), 0, config)
    comm.barrier()
    comm.destroy()
    return comm


@forks.nursery()
def test_values() -> None:
    """Every field that is outside its range is ncclInvalidArgument, in init, split, shrink and grow, with its name and value in the text;
    every value inside is taken; no configuration is the default."""
    comm = Comm(1, host_c.unique_id(), 0)
    other = Comm.of(comm.handle, 2, 0)
    for name, values in WRONG.items():
        for value in values:
            config = Config.new(**{name: value})
            calls = (
                lambda config=config: alone(config),
                lambda config=config: comm.split(0, 0, config),
                lambda config=config: other.grow(2, bytes(128), -1, config),
            )
            for call in calls:
                error = both_ways(call)
                assert error.code == INVALID_ARGUMENT and name in error.text and str(value) in error.text, (name, value, error)
    for name, values in RIGHT.items():
        for value in values:
            alone(Config.new(**{name: value}))
            comm.split(0, 0, Config.new(**{name: value})).destroy()
    alone(None)
    alone(Config.new(netName=b"Socket", commName=b"the name"))
    comm.barrier()


@forks.nursery()
def test_ctas() -> None:
    """minCTAs above maxCTAs is ncclInvalidArgument; one of them without the other is taken, and both are of no interest before 2.17."""
    assert raised(alone, Config.new(minCTAs=5, maxCTAs=4)).code == INVALID_ARGUMENT
    alone(Config.new(minCTAs=4, maxCTAs=4))
    alone(Config.new(minCTAs=5))
    alone(Config.new(maxCTAs=5))
    alone(Config.new(minCTAs=5, maxCTAs=4, version=21600))


@forks.nursery()
def test_old_versions() -> None:
    """What a caller of an older NCCL has in a field that its version did not know yet is not looked at; from that version on it is."""
    for name, since in SINCE.items():
        for value in WRONG[name]:
            alone(Config.new(**{name: value}, version=since - 1))
            assert raised(alone, Config.new(**{name: value}, version=since)).code == INVALID_ARGUMENT, (name, value)
    for name in ("splitShare",):  # no version resets it
        assert raised(alone, Config.new(**{name: 2}, version=21400)).code == INVALID_ARGUMENT
    for version in (0, 1, 21200, 21403, VERSION + 1, 99_999_999, 2**32 - 1):
        alone(Config.new(version=version))
    assert Comm(1, host_c.unique_id(), 0, Config.new(blocking=0, version=21300)).code == SUCCESS
    comm = Comm(1, host_c.unique_id(), 0, Config.new(blocking=0, version=21400))
    assert comm.code == IN_PROGRESS
    comm.wait()


def sized(size: int, **fields: int) -> Any:
    """A configuration of which the caller says it has so many bytes; what is beyond them is full of values that would be refused."""
    config = Config.new(**fields)
    raw = (ctypes.c_uint8 * 512)(*[0x77] * 512)
    config.size = size
    ctypes.memmove(raw, byref(config), min(ctypes.sizeof(config), size, 512))
    ctypes.c_size_t.from_buffer(raw).value = size
    return raw


def init(raw: Any) -> int:
    """The code of an init with these bytes for a configuration."""
    slot = COMM()
    code = library().ncclCommInitRankConfig(byref(slot), 1, UniqueId.from_buffer_copy(host_c.unique_id()), 0, byref(raw))
    if code == SUCCESS:
        Comm.of(slot.value, 1, 0).barrier()
        library().ncclCommDestroy(slot.value)
    else:
        assert not slot.value
    return code


@forks.nursery()
def test_sizes() -> None:
    """A struct is taken as far as the caller's size reaches, so every size from 16 to far above the library's own is taken; what is beyond
    is not read; below, where the magic number is not covered, it is ncclInvalidArgument, as with another magic number."""
    for size in (*range(16, 257), 4096, 2**31, 2**63 + 120, 2**64 - 1):
        assert init(sized(size)) == SUCCESS, size
    for size in range(8):
        assert init(sized(size)) == INVALID_ARGUMENT, size
    assert init(sized(8)) == INVALID_ARGUMENT
    for magic in (0, 1, MAGIC + 1, 0xBEEFCAFE):
        assert init(Config.new(magic=magic)) == INVALID_ARGUMENT
    assert init(sized(20, blocking=1)) == SUCCESS
    assert init(sized(20, blocking=5)) == INVALID_ARGUMENT
    assert init(sized(16, blocking=5)) == SUCCESS


def collective(comm: Comm, name: str, config: Any) -> int:
    """One of the eight with a configuration; its code."""
    send, recv = np.full(2, comm.rank + 1, np.float32), np.zeros(2, np.float32)
    half = name in ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter")
    extra = {"Broadcast": (1,), "Reduce": (0, 1), "Gather": (1,), "Scatter": (1,), "AllReduce": (0,), "ReduceScatter": (0,)}
    arguments = (send.ctypes.data, recv.ctypes.data, 1 if half else 2, 7, *extra.get(name, ()), comm.handle, None)
    pointer = None if config is None else byref(config)
    code = getattr(library(), f"nccl{name}Config")(*arguments, pointer)
    expected = {
        "AllReduce": [3, 3], "Broadcast": [2, 2], "Reduce": [3, 3], "AllGather": [1, 2], "ReduceScatter": [3, 0], "AlltoAll": [1, 2],
        "Gather": [1, 2], "Scatter": [2, 0],
    }[name]  # fmt: skip
    if code or (name in ("Reduce", "Gather") and comm.rank == 0):
        expected = [0, 0]
    assert recv.tolist() == expected, (name, recv)
    return code


@forks.nursery()
def test_collectives_with_a_configuration() -> None:
    """The eight calls with a configuration do what those without do, with NULL too; a wrong magic number, forceAlgSelection or CTAPolicy
    is ncclInvalidArgument on any communicator, even none, and is not an error of the open group."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, none = Comm(nranks, ids[0], rank), Comm.of(None, nranks, rank)
        right = [{}, {"forceAlgSelection": 0}, {"CTAPolicy": 3}, {"CTAPolicy": 0}, {"minCTAs": 1}, {"version": 1}, {"version": 2**32 - 1}]
        wrong = [{"magic": 0}, {"magic": MAGIC + 1}, {"size": 0}, {"size": 8}]
        wrong += [{"forceAlgSelection": 2}, {"forceAlgSelection": -1}, {"CTAPolicy": 4}, {"CTAPolicy": -1}]
        for name in COLLECTIVES:
            assert collective(comm, name, None) == SUCCESS
            for fields in right:
                assert collective(comm, name, CollConfig.new(**fields)) == SUCCESS, (name, fields)
            for fields in ({"size": 64}, {"size": 4096}, {"size": 16}):
                assert collective(comm, name, CollConfig.new(**fields)) == SUCCESS, (name, fields)
            for fields in wrong:
                for target in (comm, none):
                    assert collective(target, name, CollConfig.new(**fields)) == INVALID_ARGUMENT, (name, fields)
                assert name in library().ncclGetLastError(None).decode()
            assert collective(none, name, CollConfig.new()) == INVALID_ARGUMENT
            value = np.ones(1, np.float32)
            with host_c.group():
                comm.all_reduce(value, value)
                assert collective(comm, name, CollConfig.new(magic=0)) == INVALID_ARGUMENT
            assert value[0] == nranks
        comm.barrier()

    forks.values(forks.fork(2, rank_main))


def simulate(info: Any) -> int:
    """ncclGroupSimulateEnd."""
    return library().ncclGroupSimulateEnd(None if info is None else byref(info))


@forks.nursery()
def test_group_simulate() -> None:
    """Simulating the end of a group closes it, launches nothing and estimates a time above 0 that grows with the work; an inner level is
    only closed; without a group it is ncclInvalidUsage; a wrong magic number is ncclInvalidArgument and closes the group, too."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, values, times = Comm(nranks, ids[0], rank), np.ones(1 << 20, np.float32), []
        for count in (1, 1 << 20):
            info = SimInfo.new()
            host_c.group_start()
            comm.all_reduce(values, values, count=count)
            if rank == 0:  # alone: the other one would be waited for if this were launched
                comm.send(values, 1)
            assert simulate(info) == SUCCESS
            times.append(info.estimatedTime)
        assert 0 < times[0] < times[1] and (values == 1).all()
        for fields in ({"magic": MAGIC}, {"magic": 0}, {"size": 8}):
            info = SimInfo.new(**fields)
            host_c.group_start()
            comm.all_reduce(values, values)
            assert simulate(info) == INVALID_ARGUMENT and info.estimatedTime == -1
        assert simulate(SimInfo.new()) == INVALID_USAGE == simulate(None)
        host_c.group_start()
        comm.all_reduce(values, values, count=2)
        host_c.group_start()
        comm.all_reduce(values[2:], values[2:], count=2)
        assert simulate(SimInfo.new()) == SUCCESS
        host_c.group_end()
        assert values.tolist()[:6] == [nranks] * 4 + [1, 1]
        info = SimInfo.new(version=1, size=20)
        host_c.group_start()
        assert simulate(info) == SUCCESS and info.size == 20 and info.version == 1
        host_c.group_start()
        assert raised(comm.bcast, values, 7).code == INVALID_ARGUMENT
        assert simulate(SimInfo.new()) == INVALID_ARGUMENT
        assert simulate(SimInfo.new()) == INVALID_USAGE
        comm.barrier()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_group_simulate_drops_inits() -> None:
    """An init, split or window in a group whose end is only simulated leaves NULL and no memory."""
    comm = Comm(1, host_c.unique_id(), 0)
    before, memory, id = forks.holds(), host_c.empty(4096, np.uint8), host_c.unique_id()
    host_c.group_start()
    made, slot = Comm(1, id, 0), ctypes.c_void_p(77)
    child = comm.split(0)
    host_c.check(library().ncclCommWindowRegister(comm.handle, memory.ctypes.data, 64, byref(slot), 0))
    assert simulate(SimInfo.new()) == SUCCESS
    assert made.handle is None and child.handle is None and slot.value is None
    comm.barrier()
    Comm(1, id, 0).destroy()
    del memory
    assert forks.holds(before) == before


@forks.nursery()
def test_encryption() -> None:
    """A key of 32 bytes or more is taken, and makes the inits of this process fail as ncclInvalidUsage, since there is no TLS;
    communicators that exist go on; without encryption inits work again. A shorter key, another mode, another magic number and NULL are
    refused."""
    comm = Comm(1, host_c.unique_id(), 0)
    encrypt, key = library().ncclSetEncryption, b"k" * 32
    wrong = ({"mode": 1, "psk": key[1:]}, {"mode": 1}, {"mode": 2, "psk": key}, {"mode": -1}, {"magic": 0}, {"size": 8})
    for fields in wrong:
        assert encrypt(byref(EncryptionConfig.new(**fields))) == INVALID_ARGUMENT, fields
    assert encrypt(None) == INVALID_ARGUMENT
    for _ in range(2):
        assert encrypt(byref(EncryptionConfig.new(mode=1, psk=key))) == SUCCESS
        for call in (lambda: Comm(1, host_c.unique_id(), 0), lambda: host_c.init_all(1)):
            error = raised(call)
            assert error.code == INVALID_USAGE and "ncclSetEncryption" in error.text, error
        comm.barrier()
        assert encrypt(byref(EncryptionConfig.new())) == SUCCESS
        alone(None)
    child = os.fork()
    if child == 0:
        os._exit(encrypt(byref(EncryptionConfig.new(mode=1, psk=key))))
    assert os.waitpid(child, 0)[1] == 0
    alone(None)
