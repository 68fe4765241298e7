"""Our distribution of tests over processes: a test that ends its process is named, and all others run."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CONFTEST = """
def pytest_xdist_make_scheduler(config, log):
    from helpers.sharing import Sharing

    return Sharing(config, log)
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("i", range(12))
def test_one(i):
    if i in (0, 5, 10, 11):
        os._exit(3)
"""


@pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_crashes(tmp_path: Path) -> None:
    """The first test, two in the middle, of which one is in a shared file, and the last ones end their processes: no other test is lost."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    from helpers.sharing import SHARING

    shared = next(iter(SHARING))
    for name in ("test_apart.py", shared):
        (tmp_path / name).write_text(TESTS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONFAULTHANDLER": ""}
    for name in [name for name in env if name.startswith("PYTEST_")]:
        del env[name]  # this test is in such a process itself
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=40, check=False)
    assert "8 failed, 16 passed" in ended.stdout, ended.stdout
    crashed = sorted(re.findall(r"^FAILED (\S+)::test_one\[(\d+)\]", ended.stdout, re.MULTILINE))
    assert crashed == sorted((name, number) for name in ("test_apart.py", shared) for number in ("0", "5", "10", "11"))
