"""DataType, RedOp and Result: their values, and what else may stand for them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pynickel
from pynickel import DataType, RedOp
from pynickel.enums import as_dtype, as_op


def test_values_are_those_of_nccl() -> None:
    """Members equal the C constants, so they can be used where those can."""
    lib = pynickel.lib
    assert (DataType.int8, DataType.float32, DataType.float8e5m2) == (lib.ncclInt8, lib.ncclFloat32, lib.ncclFloat8e5m2)
    assert (RedOp.SUM, RedOp.AVG) == (lib.ncclSum, lib.ncclAvg)
    assert len(DataType) == lib.ncclNumTypes and len(RedOp) == lib.ncclNumOps
    assert pynickel.Result.IN_PROGRESS == lib.ncclInProgress


def test_plain_names() -> None:
    """The plain names are the members."""
    assert pynickel.float32 is DataType.float32 and pynickel.SUM is RedOp.SUM


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("float32", "float32"), ("double", "float64"), ("half", "float16"), ("bfloat16", "bfloat16"), (np.float32, "float32"),
        (np.dtype("i8"), "int64"), (np.dtype("=u4"), "uint32"), (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "float8e4m3"), (ml_dtypes.float8_e5m2, "float8e5m2"), (7, "float32"),
        (DataType.uint8, "uint8"),
    ],
)  # fmt: skip
def test_dtype(given: Any, meant: str) -> None:
    """Names, NCCL's numbers, and dtypes of NumPy and ml_dtypes are understood."""
    assert as_dtype(given) is DataType[meant]


def test_torch_dtype() -> None:
    """A torch dtype is known by its text, without importing torch."""

    class TorchType:
        def __repr__(self) -> str:
            return "torch.bfloat16"

    assert as_dtype(TorchType()) is DataType.bfloat16


@pytest.mark.parametrize(
    "given",
    [True, 1.0, 12, -1, "int16", "", None, bool, int, float, np.int16, np.dtype(">f4"), np.dtype("c8"), np.dtype("O"), object(),
     np.dtype([("a", "f4")]), b"float32", np.dtype("M8[s]")],
)  # fmt: skip
def test_unsupported_dtype(given: Any) -> None:
    """Scenario 19: what NCCL has no type for is refused with the list of those it has."""
    with pytest.raises((TypeError, ValueError), match=r"int8, uint8, int32, .*float8e5m2"):
        as_dtype(given)


def test_bool_and_complex_get_advice() -> None:
    """The refusal of bool and complex says how to view the data."""
    with pytest.raises(TypeError, match="view it as uint8"):
        as_dtype(np.dtype(bool))
    with pytest.raises(TypeError, match="take float32, two elements for each number"):
        as_dtype(np.dtype("c8"))


def test_itemsize() -> None:
    """Every type knows the bytes of an element."""
    assert [t.itemsize for t in DataType] == [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]


@pytest.mark.parametrize(("given", "meant"), [("sum", 0), ("MAX", 2), (RedOp.AVG, 4), (1, 1)])
def test_op(given: Any, meant: int) -> None:
    """Names in either case and NCCL's numbers are understood."""
    assert as_op(given) == meant


@pytest.mark.parametrize("given", ["add", 9, -1, True, 1.0, None, sum])
def test_unknown_op(given: Any) -> None:
    """Anything else is refused with the list of reductions."""
    with pytest.raises((TypeError, ValueError), match="SUM, PROD, MAX, MIN, AVG"):
        as_op(given)
