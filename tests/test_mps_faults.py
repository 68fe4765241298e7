"""`pynickel mps` when something is wrong: what hangs, fails, dies, is missing or is somebody else's, and signals (scenario 78)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.mps import StandIns, fine, refused, stand_ins, wrapper_of

from pynickel.tools.mps import control, daemon, places


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A machine with stand-ins and default directories of its own."""
    with stand_ins(tmp_path, monkeypatch) as found:
        yield found


def test_a_hanging_daemon(machine: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 78: every control command has a deadline; status shows what can be seen without the daemon's answer, stop says that it
    hangs, and with --force ends it and restores the modes."""
    fine("start")
    machine.how("hangs")
    monkeypatch.setattr(control, "DEADLINE", 0.3)
    begin = time.monotonic()
    out = refused("status")
    assert f"daemon {machine.serving()[0]}" in out and "did not answer within 0.3 s" in out and "Accepting connection" in out
    (found,) = json.loads(refused("status", "--json"))
    assert "the daemon hangs" in found["problem"]
    assert "--force" in refused("stop")
    assert time.monotonic() - begin < 20
    assert machine.serving() and machine.modes[0] == "Exclusive_Process"
    fine("stop", "--force")
    assert machine.serving() == [] and machine.modes == ["Default", "Exclusive_Process", "Default"]


@pytest.mark.parametrize(("how", "complaint"), [("fails", "cannot do that"), ("silent", "no daemon runs in")])
def test_a_start_that_fails(machine: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, complaint: str) -> None:
    """Scenario 78: when the daemon does not start, modes and directories are as before."""
    machine.how(how)
    launch = daemon.launch

    def launched(*args: Any) -> None:
        launch(*args)
        monkeypatch.setattr(daemon, "READY", 0.3)  # nothing comes any more

    monkeypatch.setattr(daemon, "launch", launched)
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


@pytest.mark.slow
def test_a_daemon_that_dies(machine: StandIns, tmp_path: Path) -> None:
    """After a daemon was killed, stop restores the modes and tells of a server that stays; with --force it ends that; start works."""
    fine("start")
    with machine.server(tmp_path / "pipes") as server:
        os.kill(machine.serving()[0], signal.SIGKILL)
        while machine.serving():
            time.sleep(0.02)
        out = fine("stop")
        assert "no daemon of all GPUs runs" in out and f"note: server {server.pid} still runs" in out
        assert machine.modes == ["Default", "Exclusive_Process", "Default"] and server.poll() is None
        assert f"server {server.pid} was ended" in fine("stop", "--force")
        assert server.wait(10) == -signal.SIGTERM
    fine("start")
    fine("stop")


def test_a_daemon_that_holds_the_output(machine: StandIns) -> None:
    """A daemon that keeps the control program's output open keeps nobody waiting."""
    machine.how("holds")
    fine("start")
    fine("stop")


def test_a_foreign_daemon_is_not_ours(machine: StandIns, tmp_path: Path) -> None:
    """Scenario 78: a directory of another user is refused also while a daemon runs in it; one that is no directory, too."""
    fine("start")
    if os.geteuid() == 0:
        os.chown(tmp_path / "pipes", 12345, 12345)
        assert "belongs to user 12345" in refused("start")
        os.chown(tmp_path / "pipes", 0, 0)
    fine("stop")
    (tmp_path / "pipes").symlink_to(tmp_path)
    assert "is no directory" in refused("start")


def test_a_link_instead_of_the_note(machine: StandIns, tmp_path: Path) -> None:
    """What somebody laid into a shared log directory under the note's name is neither followed nor believed."""
    (tmp_path / "logs").mkdir()
    victim = tmp_path / "victim"
    victim.write_text(json.dumps({"compute_modes": {"GPU-00aa": 2}, "devices": []}))
    for name in ("pynickel-mps.json", "pynickel-mps.json.new"):
        (tmp_path / "logs" / name).symlink_to(victim)
    fine("start", "--shared")
    assert "GPU-00aa" in victim.read_text() and machine.modes[0] == "Exclusive_Process"
    fine("stop")
    assert machine.modes[0] == "Default" and victim.exists()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow), pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_signals_during_run(machine: StandIns, tmp_path: Path, number: signal.Signals) -> None:
    """Scenario 78: a signal to `mps run` goes to the command, and the daemon is stopped and the modes are restored all the same."""
    command = ["run", "--", sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
    ended = subprocess.Popen([wrapper_of(machine, tmp_path), "mps", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert ended.stdout is not None and ended.stdout.readline() == "ready\n"
    assert machine.serving()
    ended.send_signal(number)
    ended.communicate(timeout=30)
    assert ended.returncode in (128 + number, 1)  # Python makes 1 of KeyboardInterrupt in a command of -c, later versions 130
    assert machine.serving() == [] and machine.modes == ["Default", "Exclusive_Process", "Default"]
    assert not (tmp_path / "pipes").exists()


@pytest.mark.slow
def test_a_signal_during_start(machine: StandIns, tmp_path: Path) -> None:
    """A start that is ended by SIGTERM while it waits puts everything back."""
    machine.how("silent")
    command = [str(wrapper_of(machine, tmp_path)), "mps", "start"]
    starting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 20
    while not machine.told and time.monotonic() < until:
        time.sleep(0.02)
    starting.terminate()
    said = starting.communicate(timeout=30)[1]
    assert starting.returncode == 128 + signal.SIGTERM and "ended by SIGTERM; all is as before" in said
    assert machine.modes == ["Default", "Exclusive_Process", "Default"] and not (tmp_path / "pipes").exists()
