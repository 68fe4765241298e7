"""The README says what is so: its program prints what it shows, and its commands are one line each."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The README's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def test_program_prints_what_is_shown(tmp_path: Path) -> None:
    """The program, pasted into a file and run outside the checkout, has at most twelve lines and prints the README's output."""
    (program,) = blocks("python")
    (output,) = blocks("text")
    assert len(program.splitlines()) <= 12
    file = tmp_path / "program.py"
    file.write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYNICKEL_", "NICKEL_"))}
    env["PYTHONPATH"] = str(ROOT)  # this checkout's package, even where it is not installed
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", output)


def test_commands_are_two_and_one_line_each() -> None:
    """There are two shell commands, one line to paste each: the demo, then the tests, each with its own set-up."""
    demo, tests = blocks("sh")
    for command in (demo, tests):
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv ")
        done = subprocess.run(["bash", "-n", "-c", command], timeout=10)
        assert done.returncode == 0
    assert demo.rstrip().endswith("python examples/parallel_nccl.py | sort")
    assert tests.rstrip().endswith("python -m pytest -q -n 3")


def test_links_lead_somewhere() -> None:
    """Every link into the project names a file or folder that exists."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert len(links) >= 4
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("package", ["python3-dev", "python3-venv", "gcc"])
def test_packages_are_named(package: str) -> None:
    """What a fresh Debian or Ubuntu needs is named."""
    assert re.search(rf"apt install .*\b{package}\b", README)
