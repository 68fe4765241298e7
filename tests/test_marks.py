"""The marks by which .ci/run chooses tests leave none out."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.c import ROOT

TESTS = sorted((ROOT / "tests").glob("test_*.py"))
ASKS_FOR_TORCH = r'(find_spec|importorskip)\("torch"|^import torch$'


@pytest.mark.parametrize("file", [path for path in TESTS if re.search(ASKS_FOR_TORCH, path.read_text(), re.M)], ids=lambda path: path.stem)
def test_what_needs_torch_is_marked(file: Path) -> None:
    """A file with tests that are left out for want of torch is marked: README's test command has none, and the gate runs those again."""
    assert re.search(r"pytest\.mark\.(slow|torch)\b", file.read_text())


def test_gate_runs_every_mark() -> None:
    """Each mark that chooses tests, but `gpu`, is chosen by one of the gate's commands, and no test is `alone` without being `slow`."""
    marks = set(re.findall(r'^  "(\w+): ', (ROOT / "pyproject.toml").read_text(), re.M))
    chosen = re.findall(r'-m "([^"]+)"', (ROOT / ".ci" / "run").read_text())
    assert marks == {"slow", "alone", "torch", "gpu"} and chosen == ["(slow or torch) and not alone", "slow and alone"]
    for path in TESTS:
        assert path.read_text().count("@pytest.mark.alone\n") == path.read_text().count("@pytest.mark.alone\n@pytest.mark.slow\n"), path
