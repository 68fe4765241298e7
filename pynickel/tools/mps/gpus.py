"""GPUs and their compute modes: from the management library where it can be had, else from nvidia-smi."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from .places import MpsError

DEADLINE = 20.0  # seconds for nvidia-smi
MODES = {"Default": 0, "Exclusive_Thread": 1, "Prohibited": 2, "Exclusive_Process": 3}
EXCLUSIVE = MODES["Exclusive_Process"]
NAMES = {number: name for name, number in MODES.items()}


@dataclass(frozen=True)
class Gpu:
    """`mode`: the compute mode's number, 0 for shared, 3 for one process at a time."""

    index: int
    uuid: str
    name: str
    mode: int


def listed() -> list[Gpu]:
    """All GPUs of the machine."""
    library = nvml()
    if library is None:
        return [parsed(line) for line in smi("--query-gpu=index,uuid,name,compute_mode", "--format=csv,noheader").splitlines() if line]
    try:
        found = []
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid, name = library.nvmlDeviceGetUUID(handle), library.nvmlDeviceGetName(handle)
            found.append(Gpu(index, uuid, name, library.nvmlDeviceGetComputeMode(handle)))
        return found
    finally:
        library.nvmlShutdown()


def parsed(line: str) -> Gpu:
    """A line of nvidia-smi's table."""
    try:
        index, uuid, name, mode = (word.strip() for word in line.split(","))
        return Gpu(int(index), uuid, name, MODES[mode])
    except (ValueError, KeyError):
        raise MpsError(f"nvidia-smi answered {line!r}, which is not a number, a UUID, a name and a compute mode") from None


def chosen(wanted: tuple[str, ...]) -> list[Gpu]:
    """The GPUs of these numbers or UUIDs; all without any."""
    found = listed()
    if not found:
        raise MpsError("this machine has no NVIDIA GPU that its driver shows")
    if not wanted:
        return found
    return list(dict.fromkeys(one(word, found) for word in wanted))


def one(word: str, found: list[Gpu]) -> Gpu:
    """The GPU of that number, or of a UUID that begins so; CUDA takes the beginning of a UUID, too."""
    meant = [gpu for gpu in found if word == str(gpu.index) or (not word.isdigit() and gpu.uuid.startswith(word))]
    if not meant:
        raise MpsError(f"there is no GPU {word}; there are {', '.join(f'{gpu.index} ({gpu.uuid})' for gpu in found)}")
    if len(meant) > 1:
        raise MpsError(f"{word} is the beginning of several UUIDs: {', '.join(gpu.uuid for gpu in meant)}; give more of it")
    return meant[0]


def set_mode(gpu: Gpu, mode: int) -> None:
    """Change a GPU's compute mode; needs root."""
    library = nvml()
    if library is None:
        smi("-i", gpu.uuid, "-c", str(mode))
        return
    try:
        library.nvmlDeviceSetComputeMode(library.nvmlDeviceGetHandleByUUID(gpu.uuid), mode)
    except library.NVMLError as error:
        raise MpsError(f"the compute mode of GPU {gpu.index} cannot be set to {NAMES[mode]}: {error}; that needs root") from None
    finally:
        library.nvmlShutdown()


def nvml() -> Any:
    """NVIDIA's management library, started; None where it is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def smi(*words: str) -> str:
    """What nvidia-smi prints."""
    found = shutil.which("nvidia-smi")
    if found is None:
        raise MpsError("nvidia-smi is not on the path and nvidia-ml-py finds no driver; install NVIDIA's driver")
    try:
        ended = subprocess.run([found, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise MpsError(f"nvidia-smi {' '.join(words)} did not end within {DEADLINE:g} s; is a GPU or its driver stuck?") from None
    if ended.returncode:
        text = (ended.stdout + ended.stderr).strip()
        raise MpsError(f"nvidia-smi {' '.join(words)} ended with exit status {ended.returncode}: {text or 'no output'}")
    return ended.stdout
