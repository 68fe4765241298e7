"""The pytest side of pynickel.testing: the marker nickel_ranks, its fixtures, their errors; other tests notice nothing of them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

USERS = '''
import numpy as np
import pytest
from somebody import SCALE

@pytest.fixture
def scaled(tmp_path):
    return SCALE, tmp_path

@pytest.mark.nickel_ranks(1, 3)
def test_body_on_every_rank(nickel_comm, scaled):
    scale, folder = scaled
    data = np.full(2, scale)
    nickel_comm.all_reduce(data)
    assert data.tolist() == [scale * nickel_comm.nranks] * 2
    (folder / str(nickel_comm.rank)).touch()

@pytest.mark.nickel_ranks(2, ranks="threads", timeout=20)
class TestMethods:
    @pytest.mark.parametrize("root", [0, 1])
    def test_in_a_class(self, root, nickel_comm, nickel_nranks):
        assert nickel_comm.bcast(np.array([nickel_comm.rank + 5]), self.wanted(root))[0] == root + 5
        assert nickel_nranks == 2

    def wanted(self, root):
        return root

def test_fixture(nickel_run):
    assert nickel_run(2, lambda comm, k: comm.rank + k, 7) == [7, 8]

@pytest.mark.nickel_ranks(2)
def test_skips(nickel_comm):
    if nickel_comm.rank == 1:
        pytest.skip("not on this machine")
    nickel_comm.barrier()

def test_skips_too(nickel_run):
    nickel_run(1, lambda comm: pytest.skip("nor this"))

@pytest.mark.nickel_ranks(1)
def test_expected(nickel_comm):
    pytest.xfail("known")

@pytest.mark.nickel_ranks(2)
def test_wrong_sum(nickel_comm):
    print("words of", nickel_comm.rank)
    assert nickel_comm.all_reduce(np.ones(1))[0] == 3

def test_unmarked(nickel_comm):
    pass

@pytest.mark.nickel_ranks("2")
def test_wrong_marker(nickel_comm):
    pass

@pytest.mark.nickel_ranks(2)
def test_unsent(nickel_comm, capsys):
    pass
'''


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest as a user calls it, in a folder of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYNICKEL", "NICKEL"))}
    return subprocess.run(
        [sys.executable, *options, "-p", "no:cacheprovider", "--strict-markers"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=50,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["importlib", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("prepend", "importlib -n 2"))])
def test_marker_and_fixtures(mode: str, tmp_path: Path) -> None:
    """A marked test's body runs on every rank, in any import mode, under xdist; skip, xfail and failures are told as the test's."""
    (tmp_path / "somebody.py").write_text("SCALE = 4\n")
    (tmp_path / "conftest.py").write_text("from pynickel.testing import ranks\nranks.GRACE = 20  # for each rank's own story\n")
    (tmp_path / "test_users.py").write_text(USERS)
    env = ["-m", "pytest", "-rsxf", "-o", "pythonpath=.", "--import-mode", *mode.split()]
    shown = run_pytest(tmp_path, *env).stdout
    assert "2 failed, 5 passed, 2 skipped, 1 xfailed, 2 errors" in shown
    for part in (
        "not on this machine", "nor this", "known",
        "2 of 2 ranks failed", "assert nickel_comm.all_reduce(np.ones(1))[0] == 3", "output of rank 1:", "words of 1",
        "nickel_comm is for tests that run on ranks; mark the test with @pytest.mark.nickel_ranks(n)",
        "@pytest.mark.nickel_ranks('2'): expected nickel_ranks(n, *more, ranks='processes'",
        "fixture 'capsys' gives a CaptureFixture, which cannot be sent to the ranks",
    ):  # fmt: skip
        assert part in shown, (part, shown)


PLAIN = """
import sys

def test_nothing():
    loaded = {"pynickel._nccl", "numpy", "cloudpickle", "psutil", "click", "cffi"} & set(sys.modules)
    assert not loaded, loaded
    assert "pynickel.testing.plugin" in sys.modules
"""


IMPORT = """
import time
import pytest
before = time.process_time()
import pynickel.testing.plugin
print(time.process_time() - before)
"""


def test_other_tests_notice_nothing(tmp_path: Path) -> None:
    """Where pynickel is installed, a run of other tests loads neither its extension nor NumPy, and the marker explains itself."""
    (tmp_path / "test_plain.py").write_text(PLAIN)
    done = run_pytest(tmp_path, "-m", "pytest", "-q")
    assert done.returncode == 0, done.stdout
    loading = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=50, check=True)
    assert float(loading.stdout) < 0.05  # seconds of CPU time, about 0.01, since a busy machine keeps a program waiting in between
    assert "@pytest.mark.nickel_ranks(n, *more" in run_pytest(tmp_path, "-m", "pytest", "--markers").stdout
