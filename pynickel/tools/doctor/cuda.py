"""NVIDIA's driver, CUDA's version, the GPUs with their compute modes, and MPS."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

from ... import driver, search
from ..mps import places
from .finding import NOTE, OK, PROBLEM, Finding

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
INIT_REMEDY = "see whether nvidia-smi works; in a container, start it with --gpus all; after a driver update, reboot"


def check() -> Iterator[Finding]:
    """The GPU side of this machine."""
    kind, seen = search.visible_gpu()
    found = driver.driver()
    if found is None:
        level = PROBLEM if kind == "nvidia" else OK
        remedy = "install NVIDIA's driver" if level == PROBLEM else ""
        yield Finding(level, "driver", f"no NVIDIA driver (libcuda.so.1) can be loaded; {seen}", remedy)
    else:
        yield version(found, kind == "nvidia")
    yield from gpus()
    yield mps()


def version(found: Any, needed: bool) -> Finding:
    """The CUDA that the driver serves, after starting it."""
    number = ctypes.c_int(0)
    code = found.cuInit(0)
    if code:
        return Finding(PROBLEM if needed else NOTE, "driver", f"libcuda is there, but cuInit failed with CUresult {code}", INIT_REMEDY)
    found.cuDriverGetVersion(ctypes.byref(number))
    return Finding(OK, "driver", f"serves CUDA {number.value // 1000}.{number.value % 1000 // 10}")


def gpus() -> Iterator[Finding]:
    """Name, address and compute mode of every GPU, from the driver's management library."""
    try:
        import pynvml
    except ImportError:
        if search.visible_gpu()[0] == "nvidia":
            yield Finding(NOTE, "GPUs", "not listed, because nvidia-ml-py is not installed", "pip install nvidia-ml-py")
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if search.visible_gpu()[0] == "nvidia":
            yield Finding(PROBLEM, "GPUs", f"NVML does not start: {error}", INIT_REMEDY)
        return
    try:
        yield Finding(OK, "driver", f"version {pynvml.nvmlSystemGetDriverVersion()}")
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            mode = pynvml.nvmlDeviceGetComputeMode(handle)
            text = f"{pynvml.nvmlDeviceGetName(handle)}, {pynvml.nvmlDeviceGetUUID(handle)}, compute mode {COMPUTE_MODES.get(mode, mode)}"
            if mode == 2:
                yield Finding(PROBLEM, f"GPU {index}", text, f"nvidia-smi -i {index} -c DEFAULT (as root) lets programs use it")
            elif mode in (1, 3) and places.daemon(places.pipe_directory()) is None:
                yield Finding(NOTE, f"GPU {index}", f"{text}: one process at a time, and no MPS daemon runs here",
                              "start MPS for several ranks on it (pynickel mps start), or nvidia-smi -c DEFAULT")  # fmt: skip
            else:
                yield Finding(OK, f"GPU {index}", text)
    finally:
        pynvml.nvmlShutdown()


def mps() -> Finding:
    """Whether a client of this environment would find an MPS daemon."""
    pipes = places.pipe_directory()
    pid = places.daemon(pipes)
    if pid is not None:
        return Finding(OK, "MPS", f"daemon {pid} serves {pipes}; pynickel mps status tells more")
    if os.environ.get(places.PIPE_VARIABLE):
        return Finding(
            PROBLEM, "MPS", f"{places.PIPE_VARIABLE}={pipes}, where no daemon runs: CUDA programs fail or use the GPU without MPS",
            "pynickel mps start, or unset the variable",
        )  # fmt: skip
    return Finding(OK, "MPS", "no daemon runs")
