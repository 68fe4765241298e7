"""A reduction of the CPU library gives the same bits on every path, with every instruction set, whatever the thread's rounding is."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import itertools
import platform
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import arithmetic, host_c
from helpers.arithmetic import Array, bits
from helpers.c import shared_library
from helpers.ranks import run
from helpers.reductions import OPS, all_reduce, assert_folded, forget, reduction

CASES = [(name, op) for name in host_c.TYPES for op in OPS]
PATHS = {"inline": (300, False), "staged": (40_003, False), "direct": (40_003, True)}


def inputs_of(case: int, nranks: int, count: int) -> tuple[list[Array], list[Any] | None]:
    """The inputs of all ranks and their scalars, the same in every process."""
    name, op = CASES[case]
    random = np.random.default_rng(1000 * case + count)
    inputs = [arithmetic.sample(name, count, random) for _ in range(nranks)]
    return inputs, list(arithmetic.sample(name, nranks, random)) if op == "premulsum" else None


def place(arena: bool, nbytes: int, offset: int) -> Array:
    """Bytes that start at an odd address."""
    block: Array = host_c.empty(nbytes + 64, np.uint8) if arena else np.empty(nbytes + 64, np.uint8)
    return block[offset : offset + nbytes]


def reduced_on(rank: int, nranks: int, unique_id: Any) -> dict[tuple[int, str], list[int]]:
    """On one rank of several: checksums of what it received, by case and path, from all-reduce, reduce and reduce-scatter."""
    host_c.set_timeout(20)
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    found = {}
    for (case, (name, op)), (path, (count, arena)) in itertools.product(enumerate(CASES), PATHS.items()):
        count -= count % nranks
        inputs, scalars = inputs_of(case, nranks, count)
        size, part = inputs[0].itemsize, count // nranks
        send, recv = place(arena, count * size, 1 + rank), place(arena, count * size, 5)
        send[:] = inputs[rank].view(np.uint8)
        number = reduction(comm, name, op, scalars[rank] if scalars else None)
        comm.all_reduce(send, recv, number, count=count, type=name)
        sums = [zlib.crc32(recv)]
        comm.reduce_scatter(send, recv, number, count=part, type=name)
        sums.append(zlib.crc32(recv[: part * size]))
        comm.reduce(send, send, number, root=case % nranks, count=count, type=name)
        sums.append(zlib.crc32(send) if rank == case % nranks else 0)
        forget(comm, number)
        found[case, path] = sums
    comm.destroy()
    return found


def instruction_sets() -> list[str]:
    """What NICKEL_KERNELS can choose on this machine."""
    if platform.machine() != "x86_64":
        return ["plain"]
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    avx2, avx512 = {"avx2", "f16c"}, {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    return ["plain"] + ["avx2"] * (avx2 <= flags) + ["avx512"] * (avx2 | avx512 <= flags)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, str, int], list[int]]:
    """The checksums that each of 3 ranks must find."""
    sums = {}
    for (case, (name, op)), (path, (count, _)) in itertools.product(enumerate(CASES), PATHS.items()):
        count -= count % 3
        inputs, scalars = inputs_of(case, 3, count)
        result, part = bits(arithmetic.fold(name, op, inputs, scalars)), count // 3
        for rank in range(3):
            own = result[rank * part : (rank + 1) * part]
            sums[case, path, rank] = [zlib.crc32(result), zlib.crc32(own), zlib.crc32(result) if rank == case % 3 else 0]
    return sums


@pytest.mark.parametrize("kernels", instruction_sets())
@pytest.mark.parametrize("kind", ["processes", "mixed"])
def test_same_bits_on_every_path(kind: str, kernels: str, expected: dict[tuple[int, str, int], list[int]], tmp_path: Path) -> None:
    """3 ranks get the bits of the reference inline, in pieces and directly, at odd addresses, from each set of loops by its name."""
    log = tmp_path / "log"
    env = {"NICKEL_KERNELS": kernels, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}
    for rank, found in enumerate(run(3, reduced_on, make_comm=False, kind=kind, env=env, deadline=25)):
        wrong = [(*CASES[case], path, sums) for (case, path), sums in found.items() if sums != expected[case, path, rank]]
        assert not wrong, (rank, wrong)
    chosen = set(re.findall(r"reductions use the (\w+) loops", log.read_text()))
    assert chosen == {kernels}


MODE = """
#if defined __x86_64__
#include <xmmintrin.h>
unsigned long get(void) { return _mm_getcsr() & ~0x3fu; }
void set(unsigned long mode) { _mm_setcsr((unsigned)mode); }
unsigned long odd(void) { return 0x1f80 | 0x8040 | 0x4000; } /* subnormal numbers are zero, rounding goes up */
#else
unsigned long get(void) { unsigned long mode; __asm__ volatile("mrs %0, fpcr" : "=r"(mode)); return mode; }
void set(unsigned long mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
unsigned long odd(void) { return 1ul << 24 | 1ul << 22; }
#endif
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the control word of this processor is unknown")
def test_rounding_of_the_thread_does_not_matter(tmp_path: Path) -> None:
    """A thread that rounds upward and flushes subnormal numbers to zero gets the same bits, and keeps its setting."""
    mode = ctypes.CDLL(str(shared_library(tmp_path / "mode.so", MODE)))
    mode.get.restype = mode.odd.restype = ctypes.c_ulong
    mode.set.argtypes = [ctypes.c_ulong]
    random, pair = np.random.default_rng(3), host_c.init_all(2)
    before, odd = mode.get(), mode.odd()
    for name, op in itertools.product(arithmetic.FLOATS, OPS):
        inputs = [arithmetic.sample(name, 500, random) for _ in pair]
        scalars = arithmetic.sample(name, 2, random) if op == "premulsum" else None
        mode.set(odd)
        try:
            results = all_reduce(pair, name, op, inputs, scalars)
            after = mode.get()
        finally:
            mode.set(before)
        assert after == odd
        assert_folded(name, op, inputs, results, scalars)
    for comm in pair:
        comm.abort()
