"""Every public name has a docstring of its own that begins with what it does, and methods name the function of NCCL behind them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from test_c_to_python import ROWS

import pynickel
from pynickel import batch, errors, facts, library, memory, parameters, redop, registration
from pynickel.enums import DataType, RedOp

pytestmark = pytest.mark.torch

RETURNED = [
    batch.Group, facts.CommProperties, facts.MemoryStats, library.Function, memory.Memory, parameters.Parameters, redop.PreMulSum,
    registration.Registration, registration.Window,
]  # fmt: skip
MODULES = [import_module(f"pynickel.{name}") for name in pynickel.MODULES]


def public(module: Any, name: str) -> Any:
    """The object of that name; None for one that needs torch, where torch is not."""
    try:
        return getattr(module, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None


def documented() -> Iterator[tuple[str, Any]]:
    """Every public function, class and member, by its full name."""
    names = {name: getattr(pynickel, name) for name in pynickel.__all__} | {found.__name__: found for found in RETURNED}
    for module in MODULES:
        names |= {f"{module.__name__}.{name}": found for name in module.__all__ if (found := public(module, name)) is not None}
    for name, found in names.items():
        if isinstance(found, type) or callable(found):
            yield name, found
        if isinstance(found, type):
            for base in (base for base in found.__mro__ if base.__module__.startswith("pynickel")):
                for member, value in vars(base).items():
                    value = getattr(value, "__func__", value)
                    if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                        yield f"{name}.{member}", value


NAMES = dict(documented())


@pytest.mark.parametrize("group", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_first_line(group: str) -> None:
    """There is a docstring, which begins with a sentence: a capital letter, a name or a number, up to a full stop."""
    wrong = []
    for name, found in NAMES.items():
        text = (inspect.getdoc(found) or "") if name.rpartition(".")[0] == group else "Fine."
        first = text.split("\n\n")[0]
        if not re.match(r"[A-Z0-9`\"(]", first.lstrip()) or not re.search(r"[.;:)]$", first):
            wrong.append((name, first))
    assert wrong == []


def test_source() -> None:
    """The docstring of a method that calls a function of NCCL names it, as the table from C to Python does."""
    missing = []
    for c_name, _, python in (row for row in ROWS if row[0].startswith("nccl")):
        for method in re.findall(r"`Communicator\.(\w+)", python):
            text = inspect.getdoc(NAMES[f"Communicator.{method}"]) or ""
            config = c_name.endswith("Config") or c_name in ("ncclSend", "ncclRecv")
            if c_name not in text and not config and method not in ("last_error", "poll", "wait"):
                missing.append((method, c_name))
    assert missing == []


def test_reference() -> None:
    """The page on the API has every public name."""
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    automatic = {*vars(errors), *DataType.__members__, *RedOp.__members__}
    automatic |= set(re.findall(r"auto(?:class|function):: (\w+)(?:\(\))?$", page, re.M))
    assert "automodule:: pynickel.errors" in page and "<!-- public modules -->" in page
    left = {name for name in pynickel.__all__ if name not in automatic and f"`{name}`" not in page}
    assert left == {*pynickel.MODULES, "__version__"}
