"""The examples in examples/parallel print what their first lines say; what differs from run to run is left out of the comparison."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
from helpers.processes import run

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "parallel"
MEASURED = r"[\d.]+(?= (?:ms|s|MB/s)\b)|(?<=speed )[\d.]+|(?<=process )\d+"  # times, rates, speeds, process numbers


def without_measures(text: str) -> list[str]:
    """The lines, with a mark for each number that is measured."""
    return [re.sub(MEASURED, "#", line) for line in text.splitlines()]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=[pytest.mark.slow] if path.stem in ("calibrate", "fork_and_sync") else [])
        for path in sorted(FOLDER.glob("*.py"))
    ],
)
def test_what_an_example_prints(name: str) -> None:
    """An example prints what it says that it prints, nothing else, and leaves no process."""
    documented = ast.get_docstring(ast.parse((FOLDER / name).read_text())) or ""
    blocks = re.findall(r"prints:\n\n((?:    .*\n)+)", documented + "\n")
    assert len(blocks) == 1 and f"`python examples/parallel/{name}`" in documented
    result = run(FOLDER / name, deadline=50)
    assert without_measures(result.stdout) == without_measures(textwrap.dedent(blocks[0]))
    assert (result.returncode, result.left) == (0, [])
    warned = name == "remote.py"
    assert ("RuntimeWarning: 3 processes for 2 free cores" in result.stderr) if warned else result.stderr == ""


def test_all_six_are_there() -> None:
    """Each example of the original has its counterpart."""
    names = {"local.py", "fork_and_sync.py", "big_transfer.py", "process_queue.py", "calibrate.py", "remote.py"}
    assert {path.name for path in FOLDER.glob("*.py")} == names
