"""The matrix on this machine's GPU, as a test for `python -m pytest -m gpu`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NO_GPU = 77


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_matrix() -> None:
    """Every check passes on NVIDIA's NCCL, on one rank and on two."""
    done = subprocess.run(["bash", str(Path(__file__).with_name("run.sh"))], capture_output=True, text=True, timeout=595, check=False,
                          env={**os.environ, "PYTHON": sys.executable})  # fmt: skip
    if done.returncode == NO_GPU:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
