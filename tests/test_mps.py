"""Scenario 78: `pynickel mps`: daemons start and stop once, put back what they changed, and no command outlasts its deadline."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from helpers.mps import StandIns, stand_ins

from pynickel.tools.cli import main
from pynickel.tools.mps import control, daemon, gpus, places, use
from pynickel.tools.mps.status import meaning


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A machine with stand-ins and default directories of its own."""
    monkeypatch.setattr(places, "PIPE_DEFAULT", str(tmp_path / "pipes"))
    monkeypatch.setattr(places, "LOG_DEFAULT", str(tmp_path / "logs"))
    monkeypatch.setattr(places, "LONGEST", 4000)
    monkeypatch.setattr(places, "default_logs", lambda: str(tmp_path / "logs"))
    monkeypatch.setattr(control, "DEADLINE", 1.5)
    monkeypatch.setattr(daemon, "READY", 1.5)
    monkeypatch.setattr(gpus, "nvml", lambda: None)
    with stand_ins(tmp_path, monkeypatch) as found:
        yield found


def mps(*words: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["mps", *words])


def fine(*words: str) -> str:
    """What the command prints, which must have succeeded."""
    ended = mps(*words)
    assert ended.exit_code == 0, ended.output
    return ended.output


def refused(*words: str) -> str:
    """What the command complains about."""
    ended = mps(*words)
    assert ended.exit_code == 1, ended.output
    assert "Traceback" not in ended.output
    return ended.output


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


def test_a_hanging_daemon(machine: StandIns) -> None:
    """Scenario 78: every control command has a deadline; stop says so, and with --force ends the daemon and restores the modes."""
    fine("start")
    machine.how("hangs")
    begin = time.monotonic()
    assert "did not answer within 1.5 s" in refused("status")
    assert "--force" in refused("stop")
    assert time.monotonic() - begin < 20
    assert machine.serving() and machine.modes[0] == "Exclusive_Process"
    fine("stop", "--force")
    assert machine.serving() == [] and machine.modes == ["Default", "Exclusive_Process", "Default"]


@pytest.mark.parametrize(("how", "complaint"), [("fails", "cannot do that"), ("silent", "no daemon runs in")])
def test_a_start_that_fails(machine: StandIns, tmp_path: Path, how: str, complaint: str) -> None:
    """Scenario 78: when the daemon does not start, modes and directories are as before."""
    machine.how(how)
    assert complaint in refused("start")
    assert machine.modes == ["Default", "Exclusive_Process", "Default"]
    assert not (tmp_path / "pipes").exists() and not (tmp_path / "logs").exists()


def test_missing_programs(machine: StandIns) -> None:
    """Scenario 78: without the control program or nvidia-smi, or with an unknown GPU, the error says what to do."""
    assert "there is no GPU 7; there are 0 (GPU-00aa)" in refused("start", "--gpus", "7")
    assert "is no GPU; give numbers or UUIDs" in refused("start", "--gpus", "first")
    assert "names a GPU twice" in refused("start", "--gpus", "1,1")
    (machine.bin / "nvidia-smi").unlink()
    assert "install NVIDIA's driver" in refused("start")
    (machine.bin / "nvidia-cuda-mps-control").unlink()
    assert "it comes with NVIDIA's driver" in refused("start")


def test_a_mode_that_cannot_be_set(machine: StandIns) -> None:
    """A failing nvidia-smi is an error, not ignored; --no-exclusive does without."""
    machine.smi("fails")
    assert "Insufficient Permissions" in refused("start")
    assert machine.serving() == []
    fine("start", "--no-exclusive")
    assert machine.modes == ["Default", "Exclusive_Process", "Default"]
    fine("stop")


def test_stale_and_foreign_directories(machine: StandIns, tmp_path: Path) -> None:
    """Scenario 78: a dead daemon's directory is taken over, what others put there stays, and somebody else's directory is refused."""
    pipes = tmp_path / "pipes with a space"
    pipes.mkdir()
    (pipes / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")  # a pid that is somebody else by now
    (pipes / "notes").write_text("mine")
    where = ("--pipes", str(pipes), "--logs", str(tmp_path / "other logs"))
    fine("start", *where)
    assert f"export CUDA_MPS_PIPE_DIRECTORY='{pipes}'" in fine("env", *where)
    fine("stop", *where)
    assert [file.name for file in pipes.iterdir()] == ["notes"]
    if os.geteuid() == 0:
        os.chown(pipes, 12345, 12345)
        assert "belongs to user 12345" in refused("start", *where)
        assert "belongs to user 12345" in refused("stop", *where)
    assert "does not exist" in refused("start", "--pipes", str(tmp_path / "none" / "x"), "--logs", str(tmp_path / "l"))


def test_a_path_that_is_too_long(machine: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon fails without a word on long paths, so they are refused."""
    monkeypatch.setattr(places, "LONGEST", 87)
    assert "takes at most 87" in refused("start", "--pipes", "/tmp/" + "x" * 90)


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


def test_the_old_scripts(machine: StandIns, tmp_path: Path) -> None:
    """The seven scripts under their old names do what they did: start, environment for shells, stop; two daemons are ambiguous."""
    folder = Path(__file__).resolve().parents[1] / "examples" / "mps"
    wrapper = machine.bin / "pynickel"  # the command with this test's directories
    places_text = f"PIPE_DEFAULT={str(tmp_path / 'pipes')!r}; places.LOG_DEFAULT={str(tmp_path / 'logs')!r}"
    code = (
        f"from pynickel.tools.mps import gpus, places; places.{places_text}; places.LONGEST=4000; gpus.nvml=lambda: None; "
        f"places.default_logs=lambda: places.LOG_DEFAULT; from pynickel.tools.cli import main; main(prog_name='pynickel')"
    )
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    wrapper.chmod(0o755)

    def shell(text: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-c", text]
        return subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)

    assert shell("./init_mps_for_gpus 0,2").returncode == 0 and machine.modes[0] == "Exclusive_Process"
    ended = shell('. ./set_mps_env; echo "$CUDA_MPS_PIPE_DIRECTORY"')
    assert ended.stdout == f"{tmp_path}/pipes_0_2\n", ended.stderr
    ended = shell('set -- 0,2; . ./set_mps_env_for_gpus; echo "$CUDA_VISIBLE_DEVICES"')
    assert ended.stdout == "GPU-00aa,GPU-22aa\n", ended.stderr
    assert shell("./init_mps_for_all_gpus").returncode == 0
    assert "2 daemons run" in shell(". ./set_mps_env").stderr
    assert "/tmp/nvidia-mps" in shell('. ./set_mps_env_for_all_gpus; echo "$CUDA_MPS_PIPE_DIRECTORY"').stdout
    assert shell("./stop_mps_for_all_gpus && ./stop_mps_for_gpus 0,2").returncode == 0
    assert machine.serving() == [] and machine.modes == ["Default", "Exclusive_Process", "Default"]
