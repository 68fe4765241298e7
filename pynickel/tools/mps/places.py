"""A group of GPUs, and the directories in which its MPS daemon keeps pipes and logs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PIPE_DEFAULT, LOG_DEFAULT = "/tmp/nvidia-mps", "/var/log/nvidia-mps"
LONGEST = 87  # bytes of a directory's path; with more the daemon fails without a word
STATE = "pynickel-mps.json"  # in the log directory: what to put back when the daemon is stopped


class MpsError(Exception):
    """MPS cannot do what was asked; the text says what to do."""


@dataclass(frozen=True)
class Group:
    """`gpus`: numbers or UUIDs as given, empty for all GPUs."""

    gpus: tuple[str, ...]
    pipes: Path
    logs: Path

    @property
    def title(self) -> str:
        """The group in words."""
        return f"GPUs {', '.join(self.gpus)}" if self.gpus else "all GPUs"

    def environment(self) -> dict[str, str]:
        """What clients, the control program and the daemon need to find each other."""
        return {PIPE_VARIABLE: str(self.pipes), LOG_VARIABLE: str(self.logs)}


def group(gpus: str | None, pipes: str | None, logs: str | None, environ: Mapping[str, str] = os.environ) -> Group:
    """The group that the options mean: with neither, all GPUs in the directories of the environment, or CUDA's default ones."""
    wanted = tuple(word.strip() for word in (gpus or "").split(",") if word.strip())
    for word in wanted:
        if not (word.isdigit() or (word.startswith(("GPU-", "MIG-")) and "/" not in word)):
            raise MpsError(f"--gpus {word!r} is no GPU; give numbers or UUIDs (GPU-...), as nvidia-smi -L lists them")
    if len(set(wanted)) != len(wanted):
        raise MpsError(f"--gpus {gpus} names a GPU twice")
    suffix = "_" + "_".join(word[:12] for word in wanted) if wanted else ""
    inherited = {} if wanted else environ
    return Group(
        wanted,
        checked(Path(pipes or inherited.get(PIPE_VARIABLE) or PIPE_DEFAULT + suffix)),
        checked(Path(logs or inherited.get(LOG_VARIABLE) or default_logs() + suffix)),
    )


def default_logs(user: int | None = None) -> str:
    """CUDA's default for root; other users cannot write there. `user`: who starts the daemon, by default this one."""
    user = os.geteuid() if user is None else user
    return LOG_DEFAULT if user == 0 else f"/tmp/nvidia-log_{user}"


def checked(path: Path) -> Path:
    """A directory that the daemon can use."""
    path = path.absolute()
    if len(os.fsencode(path)) > LONGEST:
        raise MpsError(f"{path} has {len(os.fsencode(path))} bytes; the daemon takes at most {LONGEST}, so choose a shorter directory")
    return path


def known_groups() -> Iterator[Group]:
    """Every pipe directory under CUDA's default name, with its logs."""
    base = Path(PIPE_DEFAULT)
    for pipes in sorted(base.parent.glob(base.name + "*")):
        suffix = pipes.name.removeprefix(base.name)
        if pipes.is_dir() and (not suffix or suffix.startswith("_")):
            gpus = tuple(suffix.removeprefix("_").split("_")) if suffix else ()
            yield Group(gpus, pipes, Path(default_logs(pipes.lstat().st_uid) + suffix))


def running() -> list[Group]:
    """Every group whose daemon is found to run: in the directories of this environment, and under the default names."""
    found = {one.pipes: one for one in (*known_groups(), group(None, None, None))}
    return [one for one in found.values() if daemon(one.pipes) is not None]


def pipe_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where clients of this environment look for their daemon."""
    return Path(environ.get(PIPE_VARIABLE) or PIPE_DEFAULT)


def daemon(pipes: Path) -> int | None:
    """The pid of the control daemon that lives in that directory; None if none does (a left-over pid file is no daemon)."""
    import psutil

    try:
        pid = int((pipes / f"{PROGRAM}.pid").read_text().strip())
        process = psutil.Process(pid)
        words = [process.name(), *process.cmdline()]
    except (OSError, ValueError, psutil.Error):
        return None
    # The kernel cuts names to 15 characters.
    return pid if any(PROGRAM[:15] in os.path.basename(word) for word in words) else None
