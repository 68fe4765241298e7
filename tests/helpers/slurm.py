"""A Slurm cluster of two nodes on this one machine, from Debian's packages, in a folder of its own; it ends with the test."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from pynickel.tools.run import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
NODES = ("127.0.0.1", "127.0.0.2")  # names that every machine can resolve
WHERE = ("/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin")
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
GresTypes=gpu
NodeName={first} NodeHostname={host} Port={ports[1]} CPUs={cpus} Gres=gpu:2 State=UNKNOWN
NodeName={second} NodeHostname={host} Port={ports[2]} CPUs={cpus} Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Unavailable(Exception):
    """Slurm cannot run here; the text says why."""


class Slurm:
    """The running cluster; leaving the `with` block ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = {name: find(name) for name in PROGRAMS}
        missing = [name for name, path in self.programs.items() if path is None]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)} (apt-get install slurmctld slurmd munge slurm-client)")
        if os.geteuid() != 0:
            raise Unavailable("slurmd needs root")
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={self.folder}/munge.key",
                        f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed",
                        f"--log-file={self.folder}/munge.log", "--num-threads=1")  # fmt: skip
            self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", "-D")
            for node in NODES:
                self._start("slurmd", "-D", "-N", node)
            self._wait(lambda: self.run("sinfo", "-h", "-o", "%T", timeout=10).stdout.strip() == "idle", "the nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        self._end_steps()

    def run(
        self, program: str, *arguments: str, timeout: float = 60, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program of Slurm's; it may not take longer."""
        command = [str(self.programs[program]), *arguments]
        return subprocess.run(
            command, env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )

    def batch(self, script: Path, env: Mapping[str, str], timeout: float = 40) -> str:
        """What a job script prints; it must end well."""
        output = self.folder / f"{script.stem}.out"
        done = self.run("sbatch", "--parsable", "--overcommit", f"--output={output}", str(script), env=env)
        if done.returncode != 0:
            raise RuntimeError(f"sbatch: {done.stderr}")
        job, end = done.stdout.strip(), time.monotonic() + timeout
        while "JobState=COMPLETED" not in (state := self.run("scontrol", "show", "job", job).stdout):
            if time.monotonic() > end or any(f"JobState={word}" in state for word in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")):
                raise RuntimeError(f"{script.name} did not end well:\n{state}\n{output.read_text() if output.exists() else '(no output)'}")
            time.sleep(0.1)
        return output.read_text()

    def _configure(self) -> None:
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for index in range(2):
            (self.folder / f"gpu{index}").touch()  # files that stand for GPUs
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        host, cpus = socket.gethostname().partition(".")[0], os.cpu_count()
        text = CONF.format(host=host, folder=self.folder, ports=free_ports(3), cpus=cpus, first=NODES[0], second=NODES[1])
        (self.folder / "slurm.conf").write_text(text)

    def _start(self, program: str, *arguments: str) -> None:
        with open(self.folder / f"{program}.output", "ab") as out:
            command = [str(self.programs[program]), *arguments]
            self.started.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))

    def _wait(self, ready: object, what: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not ready():  # type: ignore[operator]
            if time.monotonic() > end or any(process.poll() is not None for process in self.started):
                texts = [f"{path.name}: {path.read_text(errors='replace')[-600:]}" for path in sorted(self.folder.glob("*.output"))]
                raise Unavailable(f"{what} did not come up in {seconds:g} s\n" + "\n".join(texts))
            time.sleep(0.1)

    def _end_steps(self) -> None:
        """Kill what is left with our configuration: the keepers of steps outlive slurmd on purpose. Nothing may withstand that."""
        end = time.monotonic() + 5
        while left := self._left():
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm has left processes: {left}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _left(self) -> list[int]:
        """Processes that have our configuration in their environment, as the kernel shows it: these rewrite their titles over it."""
        ours = f"SLURM_CONF={self.folder}/".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in "ZX" and ours in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found


def find(name: str) -> str | None:
    """A program, also where an ordinary user's path does not lead."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(WHERE))


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on, nor is given for an outgoing connection until they are bound."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
