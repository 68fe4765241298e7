"""Where an MPS daemon keeps its pipes and logs, and whether one runs there."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PIPE_DEFAULT, LOG_DEFAULT = "/tmp/nvidia-mps", "/var/log/nvidia-mps"


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
