"""Scenario 78: `pynickel mps`: daemons start and stop once, put back what they changed, and no command outlasts its deadline."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.mps import StandIns, fine, mps, refused, stand_ins, wrapper_of

from pynickel.tools.mps import use
from pynickel.tools.mps.status import meaning


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A machine with stand-ins and default directories of its own."""
    with stand_ins(tmp_path, monkeypatch) as found:
        yield found


def test_start_and_stop(machine: StandIns, tmp_path: Path) -> None:
    """Scenario 78: start sets exclusive mode and runs one daemon, stop restores the modes and leaves nothing; twice is harmless."""
    out = fine("start")
    assert "GPU 0: compute mode Default -> Exclusive_Process" in out
    assert machine.modes == ["Exclusive_Process"] * 3
    (pid,) = machine.serving()
    assert (tmp_path / "pipes").stat().st_mode & 0o777 == 0o700
    assert f"runs already: pid {pid}" in fine("start")
    assert machine.serving() == [pid]
    out = fine("stop")
    assert "GPU 2: compute mode Exclusive_Process -> Default" in out
    assert machine.modes == ["Default", "Exclusive_Process", "Default"]
    assert machine.serving() == []
    assert not (tmp_path / "pipes").exists() and not (tmp_path / "logs").exists()
    assert "no daemon of all GPUs runs" in fine("stop")


def test_devices_are_told_by_uuid(machine: StandIns, tmp_path: Path) -> None:
    """A group gets directories of its own and its devices by UUID, other GPUs stay as they are, and clients get the same UUIDs."""
    fine("start", "--gpus", "0,2")
    assert machine.modes == ["Exclusive_Process", "Exclusive_Process", "Exclusive_Process"]
    assert machine.told[0].startswith("devices GPU-00aa,GPU-22aa files ")
    assert (tmp_path / "pipes_0_2").is_dir()
    out = fine("env", "--gpus", "0,2")
    assert f"export CUDA_MPS_PIPE_DIRECTORY={tmp_path}/pipes_0_2" in out
    assert "export CUDA_VISIBLE_DEVICES=GPU-00aa,GPU-22aa" in out
    fine("start", "--gpus", "1")
    assert len(machine.serving()) == 2
    assert "2 daemons run" in refused("env")
    fine("stop", "--gpus", "1")
    assert "pipes_0_2" in fine("env")
    fine("stop", "--gpus", "GPU-00aa,2", "--pipes", str(tmp_path / "pipes_0_2"), "--logs", str(tmp_path / "logs_0_2"))
    assert machine.modes == ["Default", "Exclusive_Process", "Default"]


def test_status(machine: StandIns) -> None:
    """Status shows servers, clients with user and command, state, and both logs in plain words; it ends with 1 when nothing runs."""
    assert mps("status").exit_code == 1
    fine("start")
    machine.servers(s77=[os.getpid()], s78=[])
    out = fine("status")
    assert f"client {os.getpid()} of user" in out and "server 77" in out and "ACTIVE" in out
    assert "no clients; if it still holds memory" in out
    assert "= the daemon accepts programs" in out
    (found,) = json.loads(fine("status", "--json"))
    assert found["daemon"] == machine.serving()[0] and found["servers"][0]["clients"][0]["pid"] == os.getpid()
    fine("stop")


def test_meanings_of_log_lines() -> None:
    """Well-known lines of the logs are told in plain words; unknown ones are left alone."""
    assert "ulimit" in meaning("Failed to create shared memory segment")
    assert "too few open files" in meaning("Too many open files")
    assert "new ones wait" in meaning("Server encountered a fatal exception")
    assert "error" in meaning("Server 77 exited with status 1")
    assert "last client" in meaning("Server 77 exited with status 0")
    assert meaning("something else") == ""


def test_control(machine: StandIns) -> None:
    """A control command is passed on as it is, and needs a daemon."""
    assert "pynickel mps start" in refused("control", "--", "lspart")
    fine("start")
    assert fine("control", "--", "device_query", "--csv") == "answer to device_query --csv\n"
    fine("stop")


def test_run(machine: StandIns, tmp_path: Path) -> None:
    """Run starts, gives the command its environment, returns its exit status, and stops also when it fails; a daemon of before stays."""
    script = "import os, sys; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'], flush=True); sys.exit(3)"
    ended = mps("run", "--", sys.executable, "-c", script)
    assert ended.exit_code == 3 and machine.serving() == []
    assert machine.modes == ["Default", "Exclusive_Process", "Default"]
    assert "cannot be started" in refused("run", "--", str(tmp_path / "nothing"))
    assert machine.serving() == []
    fine("start")
    fine("run", "--", "true")
    assert len(machine.serving()) == 1
    fine("stop")


def test_check(machine: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check runs a client of its own: without a driver it says so; one that never gets its device is told of at the deadline."""
    assert "pynickel mps start" in refused("check")
    fine("start")
    assert "libcuda.so.1 cannot be loaded" in refused("check")
    monkeypatch.setattr(use, "CHECK_LIMIT", 0.01)
    assert "did not get its device" in refused("check")
    fine("stop")


def test_groups_share_no_gpu(machine: StandIns, tmp_path: Path) -> None:
    """A GPU that has a daemon gets no second one, whatever its group is called; the modes stay those of the first."""
    fine("start", "--gpus", "0,2")
    assert "GPU 2 (GPU-22aa) has a daemon already, of GPUs 0, 2" in refused("start", "--gpus", "1,2")
    assert "stop it, or take other GPUs" in refused("start", "--gpus", "2,0")
    assert len(machine.serving()) == 1 and not (tmp_path / "pipes_1_2").exists()
    fine("stop", "--gpus", "0,2")


@pytest.mark.slow
def test_real_uuids(machine: StandIns) -> None:
    """A group of whole UUIDs, whose directories have only their beginnings, is found again; a beginning that fits two is refused."""
    for index in (0, 1):
        (machine.state / f"gpu.{index}").write_text(f"{index}, GPU-1234567{index}-aaaa-bbbb-cccc-0123456789ab, Some GPU, Default\n")
    fine("start", "--gpus", "GPU-12345670-aaaa-bbbb-cccc-0123456789ab")
    assert "export CUDA_VISIBLE_DEVICES=GPU-12345670-aaaa-bbbb-cccc-0123456789ab" in fine("env")
    assert "beginning of several" in refused("start", "--gpus", "GPU-1234567")
    fine("stop", "--gpus", "GPU-12345670-aaaa-bbbb-cccc-0123456789ab")
    assert machine.modes == ["Default"] * 3


def test_the_environment_names_the_group(machine: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA's variables set, commands mean the daemon that they name, though others run."""
    fine("start", "--gpus", "0")
    fine("start", "--gpus", "1")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes_1"))
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(tmp_path / "logs_1"))
    assert f"CUDA_MPS_PIPE_DIRECTORY={tmp_path}/pipes_1" in fine("env")
    assert "pipes_0" not in fine("status")
    fine("stop")
    assert len(machine.serving()) == 1
    fine("stop", "--gpus", "0")


CUDA = """
#include <stdlib.h>
static int env(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int cuInit(unsigned flags) { return env("FAKE_INIT"); }
int cuDeviceGetCount(int *count) { *count = env("FAKE_COUNT"); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = 0; return device == 1 ? env("FAKE_SECOND") : 0; }
int cuCtxSetCurrent(void *context) { return 0; }
"""


@pytest.mark.slow
def test_check_as_a_client(machine: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check selects every device of the group with a driver's library, and says what a failure means."""
    source = tmp_path / "cuda.c"
    source.write_text(CUDA)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    fine("start", "--gpus", "0,2")
    for set_up, said in (
        ({"FAKE_COUNT": "2"}, "device 1: opened and selected"),
        ({"FAKE_COUNT": "1"}, "1 devices are visible, the group has 2"),
        ({"FAKE_COUNT": "2", "FAKE_INIT": "805"}, "the connection to the MPS daemon failed"),
        ({"FAKE_COUNT": "2", "FAKE_SECOND": "46"}, "selecting device 1 failed with CUresult 46: the device is busy"),
    ):
        with monkeypatch.context() as patch:
            for name, value in set_up.items():
                patch.setenv(name, value)
            ended = mps("check", "--gpus", "0,2")
        assert said in ended.output and ended.exit_code == (0 if len(set_up) == 1 and set_up["FAKE_COUNT"] == "2" else 1)
    fine("stop", "--gpus", "0,2")


@pytest.mark.slow
def test_the_old_scripts(machine: StandIns, tmp_path: Path) -> None:
    """The seven scripts under their old names do what they did: start, environment for shells, stop; two daemons are ambiguous."""
    folder = Path(__file__).resolve().parents[1] / "examples" / "mps"
    wrapper_of(machine, tmp_path)

    def shell(text: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-c", text]
        return subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)

    assert shell("./init_mps_for_gpus 0,2").returncode == 0 and machine.modes[0] == "Exclusive_Process"
    ended = shell('. ./set_mps_env; echo "$CUDA_MPS_PIPE_DIRECTORY"')
    assert ended.stdout == f"{tmp_path}/pipes_0_2\n", ended.stderr
    ended = shell('set -- 0,2; . ./set_mps_env_for_gpus; echo "$CUDA_VISIBLE_DEVICES"')
    assert ended.stdout == "GPU-00aa,GPU-22aa\n", ended.stderr
    assert shell("./init_mps_for_gpus 1").returncode == 0
    assert "2 daemons run" in shell(". ./set_mps_env").stderr
    assert shell("./stop_mps_for_gpus 1 && ./stop_mps_for_gpus 0,2 && ./init_mps_for_all_gpus").returncode == 0
    assert "/tmp/nvidia-mps" in shell('. ./set_mps_env_for_all_gpus; echo "$CUDA_MPS_PIPE_DIRECTORY"').stdout
    assert shell("./stop_mps_for_all_gpus").returncode == 0
    assert machine.serving() == [] and machine.modes == ["Default", "Exclusive_Process", "Default"]
