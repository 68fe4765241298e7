"""Where NCCL libraries may lie, and whether a GPU is visible; looks at files only and loads nothing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
HOST_LIBRARY = os.path.join(HERE, "libnickel_host.so")


class Vendor(NamedTuple):
    """What one maker's library is called and how its GPUs show. Wheels: paths below the folders of sys.path."""

    file_name: str
    mapped: str
    wheels: tuple[str, ...]
    folders: tuple[str, ...]
    device_files: tuple[str, ...]
    visible_devices: tuple[str, ...]


VENDORS = {
    "nvidia": Vendor(
        file_name="libnccl.so.2",
        mapped=r"libnccl\.so(\.[\d.]+)?",
        wheels=("nvidia/nccl/lib/libnccl.so.2",),
        folders=(),
        device_files=("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg"),
        visible_devices=("CUDA_VISIBLE_DEVICES",),
    ),
    "rccl": Vendor(
        file_name="librccl.so.1",
        mapped=r"librccl\.so(\.[\d.]+)?",
        wheels=("torch/lib/librccl.so", "_rocm_sdk_libraries*/lib/librccl.so.1"),
        folders=("/opt/rocm/lib/librccl.so.1",),
        device_files=("/dev/kfd",),
        visible_devices=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    ),
}


class Candidate(NamedTuple):
    """One place to try: a path, or a bare file name for the dynamic loader's own search."""

    path: str
    why: str


def candidates(kind: str) -> Iterator[Candidate]:
    """The places of a vendor's library, most trusted first: a second copy beside a mapped one would share nothing with it."""
    vendor = VENDORS[kind]
    for path in mapped(vendor.mapped):
        yield Candidate(path, "already mapped in this process")
    for pattern in vendor.wheels:
        for folder in dict.fromkeys(sys.path):
            for path in sorted(glob.glob(os.path.join(glob.escape(folder or "."), pattern))):
                yield Candidate(os.path.abspath(path), "from an installed wheel")
    for path in vendor.folders:
        if os.path.exists(path):
            yield Candidate(path, "from the vendor's folder")
    yield Candidate(vendor.file_name, "from the loader path (LD_LIBRARY_PATH, ldconfig)")


def mapped(pattern: str) -> list[str]:
    """Files of that name in this process's memory map."""
    found: dict[str, None] = {}
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[5:]
            if path and path[0].startswith("/") and re.fullmatch(pattern, os.path.basename(path[0])):
                found[path[0]] = None
    return list(found)


def visible_gpu() -> tuple[str, str]:
    """The kind of library that the visible GPUs need ("" when there is none), and in words how that was seen."""
    hidden = []
    for kind, vendor in VENDORS.items():
        files = [path for pattern in vendor.device_files for path in glob.glob(pattern)]
        if not files:
            continue
        off = next((name for name in vendor.visible_devices if os.environ.get(name, "0").strip() in ("", "-1")), None)
        if off is None:
            return kind, f"a GPU is visible ({files[0]})"
        hidden.append(f"{off}={os.environ[off]!r} hides the GPUs")
    return "", ", ".join(hidden) or "no GPU is visible"
