"""Each example, run as a user runs it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # this checkout's package, even where it is not installed


def run(name: str, folder: Path) -> str:
    """What an example prints; it must end well, quietly and in time, whatever folder it is started in."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_raw_api(tmp_path: Path) -> None:
    """The C functions alone give both ranks the sums."""
    sums = "[11.0, 22.0, 33.0, 44.0, 55.0]"
    assert run("raw_api.py", tmp_path) == f"rank 0 of 2: {sums}\nrank 1 of 2: {sums}\n"


def test_raw_api_needs_nothing_else_of_the_package(tmp_path: Path) -> None:
    """The example's only names from the package are ffi and lib, and it imports neither NumPy nor the object layer."""
    code = f"""
import runpy, sys
runpy.run_path({str(EXAMPLES / "raw_api.py")!r}, run_name="__main__")
print(sorted(m for m in ("numpy", "cloudpickle", "click", "pynickel.communicator", "pynickel.parallel") if m in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=tmp_path, env=ENVIRONMENT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_demo_runs_from_anywhere(tmp_path: Path) -> None:
    """The demo finds its own helper module in whatever folder it is started."""
    assert "end: every value is as expected" in run("parallel_nccl.py", tmp_path)
