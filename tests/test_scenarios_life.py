"""Small cases of ends, losses and crossings, each under its number: who is told what, and what is left."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, UniqueId, environment
from pynickel.testing import outcomes, run


def finalizes_alone(comm: Any, folder: str) -> tuple[Any, ...]:
    done = Path(folder, "done")
    if comm.rank == 1:
        while not done.exists():
            time.sleep(0.01)
        return comm.state, True
    os.environ["NICKEL_TIMEOUT"] = "1"  # read by each wait
    begun = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError) as caught:
        comm.finalize()
    done.touch()
    comm.close()
    comm.close()
    return caught.value.missing, 0.9 < time.monotonic() - begun < 5


def test_finalize_on_one_rank(tmp_path: Path) -> None:
    """Scenario 39: finalize() on one rank alone ends at the deadline and names the other; closing after it, twice, is harmless."""
    assert run(2, finalizes_alone, str(tmp_path)) == [((1,), True), ("ready", True)]


def dropped(rank: int, n: int, unique_id: Any, folder: str) -> tuple[Any, ...]:
    comm: Any = Communicator(n, unique_id, rank)
    other = Communicator(n, UniqueId(shared_id(folder, rank)), rank, timeout=20)
    comm.barrier()
    os.environ["NICKEL_TIMEOUT"] = "1"
    seen = []
    if rank == 1:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del comm
            gc.collect()
        seen = [str(warning.category.__name__) for warning in caught]
    for _ in range(20):
        assert other.all_reduce(np.ones(2))[0] == n
    error = None
    if rank == 0:
        assert comm.state == "ready"
        with pytest.raises(pynickel.NCCLError) as raised:
            comm.all_reduce(np.ones(2))
        error = type(raised.value).__name__
        comm.abort()
    other.barrier()
    other.close()
    return seen, error


def shared_id(folder: str, rank: int, name: str = "id", maker: int = 0) -> bytes:
    """One more id, by a file."""
    path = Path(folder, name)
    if rank == maker:
        path.with_suffix(".new").write_bytes(bytes(UniqueId.create()))
        path.with_suffix(".new").rename(path)
    until = time.monotonic() + 10
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.005)
    return path.read_bytes()


def test_dropped_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Scenario 42f: a communicator that the collector takes on one rank gives one ResourceWarning; the others notice when they use it."""
    assert run(2, dropped, str(tmp_path), communicator=False) == [([], "WaitTimeoutError"), (["ResourceWarning"], None)]


def loses_a_rank(rank: int, n: int, unique_id: Any, folder: str, where: str) -> tuple[Any, ...]:
    comm, one = Communicator(n, unique_id, rank, timeout=8), np.ones(1000)
    comm.all_reduce(one)
    comm.all_reduce(one)
    if rank == 2 and where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(pynickel.RemoteError) as caught:
        if where == "before":
            comm.all_reduce(one)
        with pynickel.group():
            comm.send(one, (rank + 1) % n)
            comm.recv(np.empty(1000), (rank - 1) % n)
            comm.all_reduce(one)
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
    quick = time.monotonic() - begun < 4
    with pytest.raises(pynickel.CommunicatorClosedError, match="failed"):
        comm.all_reduce(one)
    state = comm.state
    comm.abort()
    with Communicator(2, UniqueId(shared_id(folder, rank)), rank, timeout=8) as new:
        assert new.all_reduce(np.ones(1))[0] == 2
    return caught.value.rank, quick, state, comm.state


@pytest.mark.parametrize("where", ["before", "queued"])
def test_peer_is_killed(where: str, tmp_path: Path) -> None:
    """Scenario 46: a rank killed before a call or with calls queued is named to the others in time, who abort and go on with a new id."""
    ends = outcomes(3, loses_a_rank, str(tmp_path), where, communicator=False)
    assert [end.value for end in ends[:2]] == [(2, True, "failed", "aborted")] * 2, ends[0].traceback + ends[1].traceback
    assert ends[2].returncode == -signal.SIGKILL


def crosses(comm: Any) -> str:
    other = comm.duplicate()
    first, second = (comm, other) if comm.rank == 0 else (other, comm)
    with pynickel.group():
        first.all_reduce(a := np.ones(2))
        second.all_reduce(b := np.ones(2))
    assert a[0] == b[0] == 2
    os.environ["NICKEL_TIMEOUT"] = "1"
    with pytest.raises((pynickel.WaitTimeoutError, pynickel.RemoteError)) as caught:
        first.all_reduce(a)
        second.all_reduce(b)
    for used in (comm, other):
        used.abort()
    return str(caught.value)


def test_crossing_order() -> None:
    """Scenario 62: two communicators used in opposite order wait until the deadline, whose text shows both waits; a group of both works."""
    texts = run(2, crosses)
    assert any("blocked in ncclAllReduce of another communicator" in text for text in texts), texts


def test_variables_that_come_too_late(recording: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 74: a variable set after the first communicator is warned of once, and a misspelt one, with what was meant."""
    monkeypatch.setattr(environment, "read", {})

    def said() -> list[str]:
        caplog.clear()
        Communicator(4, bytes(range(128)), 1, library=recording.path).abort()
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    monkeypatch.setenv("NCCL_DEBGU", "INFO")
    monkeypatch.setenv("NCCL_SOMETHING_OF_A_PLUGIN", "1")
    assert said() == ["the environment has NCCL_DEBGU, which NCCL does not know; was NCCL_DEBUG meant?"]
    assert said() == []
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NICKEL_TIMEOUT", "3")  # which is read whenever it is needed
    monkeypatch.setenv("HOME", "/tmp")
    (text,) = said()
    assert text.startswith("NCCL_DEBUG was set to 'INFO' after nvidia library") and "no effect in this process" in text
    assert said() == []
    monkeypatch.delenv("NCCL_DEBUG")
    assert ["NCCL_DEBUG was removed" in text for text in said()] == [True]


def differs(comm: Any) -> dict[str, str]:
    os.environ["NCCL_DEBUG"] = f"RANK{comm.rank}"
    return environment.settings()


def test_settings_by_rank() -> None:
    """Scenario 74: each rank can tell its own variables, so that differences between ranks can be seen."""
    found = run(2, differs, env={"NCCL_ALGO": "Ring"})
    assert [values["NCCL_DEBUG"] for values in found] == ["RANK0", "RANK1"] and all(values["NCCL_ALGO"] == "Ring" for values in found)


IMPORTS = """
import importlib, pkgutil, pynickel
for module in pkgutil.walk_packages(pynickel.__path__, "pynickel."):
    if module.name.split(".")[1] in ("__main__", "libnickel_host"):  # runs; is no module
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # what is for torch alone needs it
        if error.name != "torch" or not module.name.startswith(("pynickel.torch", "pynickel.training.")):
            raise
try:
    pynickel.load("nvidia")
except pynickel.LibraryNotFoundError as error:
    print("why not:", error)
with pynickel.Communicator(1, pynickel.UniqueId.create(), 0) as comm:
    print(comm.library.kind, comm.all_reduce(bytearray(b"\\x05"))[0])
"""


@pytest.mark.torch
def test_import_without_anything(tmp_path: Path) -> None:
    """Scenario 75: in an empty environment every module can be imported, NVIDIA's library is absent with reasons, the CPU library works."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {"PATH": "/usr/bin", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    wheel = any(found.name.startswith("nvidia-nccl") for found in distributions())  # builds of torch for GPUs bring it
    assert "host 5" in done.stdout and ("why not: no usable NCCL library for 'nvidia'" in done.stdout) == (not wheel)
