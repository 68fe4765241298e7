"""The arithmetic of the CPU library: every type and every operation, bit by bit."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from helpers import arithmetic, host_c
from helpers.arithmetic import bits
from helpers.reductions import OPS, all_reduce, assert_folded, elements

# One element, less than a vector, exact vectors, several blocks, and blocks with a rest.
COUNTS = (1, 7, 64, 1000, 5003)
SHORTEST = ("float8e4m3", "float8e5m2")


@pytest.fixture(scope="module")
def pair() -> Iterator[list[host_c.Comm]]:
    """Two ranks in this thread."""
    comms = host_c.init_all(2)
    yield comms
    for comm in comms:
        comm.abort()


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 5])
def test_every_type_and_operation(nranks: int) -> None:
    """All 12 types with all 6 operations give the left fold in rank order, rounded after each step, in and out of place, at any length."""
    random = np.random.default_rng(nranks)
    comms = host_c.init_all(nranks)
    for name, op, count in itertools.product(arithmetic.TYPES, OPS, COUNTS):
        inputs = [arithmetic.sample(name, count, random) for _ in comms]
        scalars = arithmetic.sample(name, nranks, random) if op == "premulsum" else None
        for in_place in (False, True):
            assert_folded(name, op, inputs, all_reduce(comms, name, op, inputs, scalars, in_place), scalars)
    for comm in comms:
        comm.abort()


@pytest.mark.parametrize("name", arithmetic.FLOATS)
def test_special_values(name: str) -> None:
    """NaN, infinity, zeros of both signs, the smallest, largest and subnormal numbers: all triples of them, by every operation."""
    dtype = arithmetic.TYPES[name]
    top, fraction = 1 << (8 * dtype.itemsize - 1), ml_dtypes.finfo(dtype).nmant
    normal, infinity, one = 1 << fraction, top - (1 << fraction), int(bits(np.array([1], dtype))[0])
    magnitudes = {0, 1, normal - 1, normal, one, one + 1, infinity - 1, infinity, infinity + 1, top - 2, top - 1}
    values = elements(name, *sorted(m | sign for m in magnitudes for sign in (0, top)))
    inputs = [np.ascontiguousarray(part.ravel()) for part in np.meshgrid(values, values, values)]
    comms = host_c.init_all(3)
    for op in host_c.OPS:
        assert_folded(name, op, inputs, all_reduce(comms, name, op, inputs))
    for scalars in itertools.product(values[::4], values[1::4], values[2::8]):
        assert_folded(name, "premulsum", inputs, all_reduce(comms, name, "premulsum", inputs, scalars), scalars)
    for comm in comms:
        comm.abort()


@pytest.mark.parametrize("name", SHORTEST)
@pytest.mark.parametrize("op", host_c.OPS)
def test_every_pair_of_small_floats(pair: list[host_c.Comm], name: str, op: str) -> None:
    """All 65,536 pairs of 8-bit floats: computed in half, and what is too large becomes the largest number."""
    every = elements(name, *range(256))
    inputs = [np.repeat(every, 256), np.tile(every, 256)]
    assert_folded(name, op, inputs, all_reduce(pair, name, op, inputs))


@pytest.mark.parametrize("name", SHORTEST)
def test_every_scaled_small_float(pair: list[host_c.Comm], name: str) -> None:
    """Every 8-bit float times every scalar is rounded before the sum."""
    every = elements(name, *range(256))
    inputs = [every, every[::-1].copy()]
    for scalars in zip(*inputs, strict=True):
        assert_folded(name, "premulsum", inputs, all_reduce(pair, name, "premulsum", inputs, scalars), scalars)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half(pair: list[host_c.Comm], name: str) -> None:
    """All 65,536 floats of 16 bits are read exactly, and sums and products with them are rounded to nearest even."""
    every = elements(name, *range(65536))
    partners = np.array([0, 1, -1, 3, 0.1, 2.0**-11, 1.0009765625, 2.0**-14, 60000, -(2.0**-24)], "float32").astype(arithmetic.TYPES[name])
    for op, partner in itertools.product(OPS, partners):
        inputs = [every, np.full_like(every, partner)]
        scalars = [partner, partners[3]] if op == "premulsum" else None
        assert_folded(name, op, inputs, all_reduce(pair, name, op, inputs, scalars), scalars)


def test_integers_wrap(pair: list[host_c.Comm]) -> None:
    """Sums and products of integers wrap in the width of the element, without an error."""
    for name, op, a, b, expected in [
        ("int8", "sum", 120, 100, -36),
        ("uint8", "sum", 200, 100, 44),
        ("int64", "sum", 2**63 - 1, 1, -(2**63)),
        ("int8", "prod", 100, 3, 44),
        ("uint32", "prod", 2**31, 2, 0),
        ("int64", "prod", 2**62, 2, -(2**63)),
    ]:
        inputs = [np.array([a], name), np.array([b], name)]
        assert [result[0] for result in all_reduce(pair, name, op, inputs)] == [expected, expected]


def test_average_of_integers_truncates_toward_zero(pair: list[host_c.Comm]) -> None:
    """The average of integers is the wrapped sum, divided and cut off toward zero, whichever element it is."""
    for name, a, b, expected in [
        ("int32", 1, 2, 1), ("int32", -1, -2, -1), ("int32", 7, 7, 7), ("int8", 127, 127, -1), ("uint8", 255, 1, 0),
    ]:  # fmt: skip
        inputs = [np.full(77, value, name) for value in (a, b)]
        for result in all_reduce(pair, name, "avg", inputs):
            assert (result == expected).all()
    three = host_c.init_all(3)
    assert [result[4] for result in all_reduce(three, "int64", "avg", [np.full(5, value) for value in (1, 1, 2)])] == [1, 1, 1]
    for comm in three:
        comm.abort()


def test_average_with_more_ranks_than_the_type_counts() -> None:
    """300 ranks average 8-bit integers: the number of ranks does not wrap, only the sum does."""
    comms = host_c.init_all(300)
    for name, expected in [("int8", (300 * 77 + 128) % 256 - 128), ("uint8", 300 * 77 % 256)]:
        results = all_reduce(comms, name, "avg", [np.full(9, 77, name)] * 300)
        assert {int(value) for result in results for value in result} == {int(expected / 300)}
    for comm in comms:
        comm.abort()


def test_sums_of_short_floats_round_to_even(pair: list[host_c.Comm]) -> None:
    """2048 + 1 in half and 256 + 1 in bfloat16 are ties and stay; half overflows to infinity, 8 bits stop at their largest number."""
    for name, a, b, expected in [
        ("float16", 2048, 1, 2048), ("bfloat16", 256, 1, 256), ("float16", 65504, 65504, np.inf),
        ("float8e4m3", 448, 448, 448), ("float8e5m2", 57344, -np.inf, -57344), ("float8e5m2", 57344, 57344, 57344),
    ]:  # fmt: skip
        dtype = arithmetic.TYPES[name]
        inputs = [np.array([value], "float32").astype(dtype) for value in (a, b)]
        for result in all_reduce(pair, name, "sum", inputs):
            assert float(result[0]) == expected


@pytest.mark.parametrize("name", arithmetic.FLOATS)
def test_rules_for_nan_and_zero(pair: list[host_c.Comm], name: str) -> None:
    """A NaN loses against a number in max and min and wins in sums, where it has all bits but the sign; +0 is above -0."""
    nan, minus = (1 << (8 * arithmetic.TYPES[name].itemsize - 1)) - 1, 1 << (8 * arithmetic.TYPES[name].itemsize - 1)
    one = int(bits(np.array([1], arithmetic.TYPES[name]))[0])
    for op, a, b, expected in [
        ("sum", nan, one, nan), ("sum", one, nan | minus, nan), ("prod", nan | minus, one, nan),
        ("max", nan, one, one), ("min", one, nan, one),
        ("max", nan | minus, nan, nan), ("min", nan, nan | minus, nan), ("sum", minus, 0, 0), ("sum", minus, minus, minus),
        ("max", 0, minus, 0), ("max", minus, 0, 0), ("min", 0, minus, minus), ("min", minus, 0, minus), ("avg", nan, one, nan),
    ]:  # fmt: skip
        for result in all_reduce(pair, name, op, [elements(name, a), elements(name, b)]):
            assert int(bits(result)[0]) == expected, (op, hex(a), hex(b))
