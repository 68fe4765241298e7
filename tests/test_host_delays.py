"""The CPU library with random delays between its ranks' steps: its tests pass wherever a rank is late."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.c import ROOT, host_library

DELAYS = ROOT / "tests" / "driver" / "delays.h"
# The parts in which ranks fail, end, are aborted or killed while others are anywhere.
PARTS = "come failures family group_ends grow interrupt late life memory mismatch p2p reasons shrink threads".split()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_late_anywhere(tmp_path: Path) -> None:
    """Tests of these parts pass with a library in which ranks now and then sleep beside a word that they share."""
    library = host_library(tmp_path, CFLAGS=f"-D_GNU_SOURCE -include {DELAYS}")
    assert b"nanosleep" in (tmp_path / "sync.o").read_bytes()
    tests = [str(ROOT / "tests" / f"test_host_{part}.py") for part in PARTS]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "4", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "NICKEL_TEST_LIBRARY": str(library)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0 and "passed" in ended.stdout, ended.stdout[-8000:]
