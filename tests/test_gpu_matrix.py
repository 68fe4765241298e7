"""The matrix of tests/gpu on the CPU library, and what its script says where there is no GPU and where a check fails."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gpu import check, matrix
from helpers import processes

from pynickel import search

GPU = Path(__file__).resolve().parent / "gpu"


def test_matrix_on_the_cpu_library() -> None:
    """Every check that a GPU is to pass passes on the CPU library, on one rank and on two."""
    done = processes.run(GPU / "check.py", "--library", "host", deadline=50)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    for n in "12":
        assert [line[1] for line in lines if line[:1] == [n] and line[2:3] == ["passed"]] == [f.__name__ for f in matrix.CHECKS]
    assert lines[-1][:2] == ["18", "checks:"] and done.left == []


@pytest.mark.skipif(search.visible_gpu()[0] != "", reason="there is a GPU here")
def test_no_gpu() -> None:
    """Without a GPU the script says so in one line and ends with status 77."""
    done = subprocess.run(["bash", str(GPU / "run.sh")], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout == "no GPU is visible; nothing was checked\n"


def test_a_failed_check(capsys: pytest.CaptureFixture[str]) -> None:
    """A check that fails on one rank, and ranks that end, make the whole run fail and are shown; so does nothing at all."""
    good, partly = check.Row(2, "rooted", "passed", 0.1, ""), check.Row(2, "all_reduce", "partly", 0.1, "refused by NCCL")
    assert check.report([good, partly]) == 0 and "2 checks: 1 passed, 1 partly" in capsys.readouterr().out
    assert check.report([good, check.Row(2, "plan", "failed", 0.1, "AssertionError: element 7")]) == 1
    assert "plan on 2 rank(s), failed:\nAssertionError: element 7" in capsys.readouterr().out
    assert check.report([]) == 1


def test_a_wrong_result(monkeypatch: pytest.MonkeyPatch, comm: object) -> None:
    """The checks see a single wrong element and name it."""
    me = matrix.Rank(comm, matrix.open_device("host"))  # type: ignore[arg-type]
    buffer = me.mine()
    buffer[7] += 1
    with pytest.raises(AssertionError, match=r"sum: 1 of 1031 wrong, element 7 is \[3\.\], not \[2\.\]"):
        me.same(buffer, me.values(0), "sum")
