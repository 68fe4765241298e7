"""Stand-ins for NVIDIA's MPS control program and nvidia-smi, which keep what they are told in files."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from pynickel.tools.cli import main
from pynickel.tools.mps import control, daemon, gpus, places

# $STATE holds: how (see `how` below), servers, clients.PID, told (all commands), and gpu.N with "index, uuid, name, mode".
CONTROL = """#!/bin/sh
how=$(cat "$STATE/how")
if [ "$how" = fails ]; then echo "cannot do that"; exit 1; fi
if [ "$1" = -d ]; then
  echo "devices $CUDA_VISIBLE_DEVICES files $(ulimit -n)" >> "$STATE/told"
  [ "$how" = silent ] && exit 0
  if [ "$how" = holds ]; then setsid "$0" --serve </dev/null &   # keeps our output open
  else setsid "$0" --serve </dev/null >/dev/null 2>&1 & fi
  echo $! > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
  echo "[2026-01-01 00:00:00.000 Control 1] Accepting connection..." > "$CUDA_MPS_LOG_DIRECTORY/control.log"
  exit 0
fi
if [ "$1" = --serve ]; then trap 'exit 0' TERM; while :; do sleep 0.05; done; fi
if [ "$how" = hangs ]; then sleep 60; fi
read -r line
echo "$line" >> "$STATE/told"
set -- $line
case "$1" in
  get_server_list) cat "$STATE/servers" 2>/dev/null ;;
  get_server_status) echo ACTIVE ;;
  get_client_list) cat "$STATE/clients.$2" 2>/dev/null ;;
  terminate_client) echo 0 ;;
  quit) kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid")" ;;
  *) echo "answer to $line" ;;
esac
exit 0
"""
SMI = """#!/bin/sh
if [ "$(cat "$STATE/smi" 2>/dev/null)" = hangs ]; then sleep 60; fi
if [ "$1" = -i ]; then
  if [ "$(cat "$STATE/smi" 2>/dev/null)" = fails ]; then echo "Insufficient Permissions"; exit 4; fi
  case "$4" in 0) mode=Default ;; 3) mode=Exclusive_Process ;; 2) mode=Prohibited ;; *) mode=Exclusive_Thread ;; esac
  for file in "$STATE"/gpu.*; do
    if grep -q "$2" "$file"; then sed -i "s/[A-Za-z_]*\\$/$mode/" "$file"; fi
  done
  exit 0
fi
cat "$STATE"/gpu.*
"""


class StandIns:
    """A machine with GPUs 0, 1 and 2, whose programs do what `how` says."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.bin = folder / "bin"
        for directory in (self.state, self.bin):
            directory.mkdir()
        for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", SMI)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.how("works")
        for index, mode in enumerate(("Default", "Exclusive_Process", "Default")):
            (self.state / f"gpu.{index}").write_text(f"{index}, GPU-{index}{index}aa, Some GPU, {mode}\n")

    def how(self, word: str) -> None:
        """works, hangs, fails, silent: says that it started, but no daemon runs; or holds: the daemon keeps the output open."""
        (self.state / "how").write_text(word)

    def smi(self, word: str) -> None:
        """works, fails (to change modes) or hangs."""
        (self.state / "smi").write_text(word)

    @contextmanager
    def server(self, pipes: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A server that its daemon has left behind."""
        program = self.bin / "nvidia-cuda-mps-server"
        program.write_text("#!/bin/sh\nwhile :; do sleep 0.05; done\n")
        program.chmod(0o755)
        process = subprocess.Popen([program], env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)})
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def servers(self, **clients: list[int]) -> None:
        """The servers that the daemon tells of, as `s77=[client, ...]`."""
        (self.state / "servers").write_text("".join(f"{name[1:]}\n" for name in clients))
        for name, pids in clients.items():
            (self.state / f"clients.{name[1:]}").write_text("".join(f"{pid}\n" for pid in pids))

    @property
    def modes(self) -> list[str]:
        """The compute modes of the GPUs."""
        return [file.read_text().split(",")[3].strip() for file in sorted(self.state.glob("gpu.*"))]

    @property
    def told(self) -> list[str]:
        """All that the control program was told."""
        file = self.state / "told"
        return file.read_text().splitlines() if file.exists() else []

    def serving(self) -> list[int]:
        """The pids of daemons that run."""
        found = {}
        for process in psutil.process_iter(["cmdline", "ppid"]):
            words = process.info["cmdline"] or []
            if str(self.bin / "nvidia-cuda-mps-control") in words and "--serve" in words:
                found[process.pid] = process.info["ppid"]
        return [pid for pid, parent in found.items() if parent not in found]  # a shell's child looks like it until it execs


@contextmanager
def stand_ins(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """The stand-ins first on the path, default directories and patience of their own; whatever still runs at the end is killed."""
    found = StandIns(folder)
    patch.setattr(places, "PIPE_DEFAULT", str(folder / "pipes"))
    patch.setattr(places, "LOG_DEFAULT", str(folder / "logs"))
    patch.setattr(places, "LONGEST", 4000)
    patch.setattr(places, "default_logs", lambda user=None: str(folder / "logs"))
    patch.setattr(control, "DEADLINE", 20.0)
    patch.setattr(daemon, "READY", 20.0)
    patch.setattr(gpus, "nvml", lambda: None)
    patch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("STATE", str(found.state))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        patch.delenv(name, raising=False)
    try:
        yield found
    finally:
        for pid in found.serving():
            os.kill(pid, signal.SIGKILL)


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


def wrapper_of(machine: StandIns, tmp_path: Path) -> Path:
    """The command `pynickel` with this test's directories, as a program."""
    wrapper = machine.bin / "pynickel"
    places_text = f"PIPE_DEFAULT={str(tmp_path / 'pipes')!r}; places.LOG_DEFAULT={str(tmp_path / 'logs')!r}"
    code = (
        f"from pynickel.tools.mps import gpus, places; places.{places_text}; places.LONGEST=4000; gpus.nvml=lambda: None; "
        f"places.default_logs=lambda user=None: places.LOG_DEFAULT; from pynickel.tools.cli import main; main(prog_name='pynickel')"
    )
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper
