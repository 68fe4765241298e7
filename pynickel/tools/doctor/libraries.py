"""NCCL libraries and CUDA's: which would be loaded and why, which are mapped, which can be found."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from ... import search
from ...errors import LibraryNotFoundError
from ...library import Library, load
from .finding import NOTE, OK, PROBLEM, Finding

CUDA_FILES = {"libcuda": "libcuda.so.1", "libcudart": "libcudart.so"}


def chosen() -> tuple[Library | None, Finding]:
    """The library that a program would get, or why it would get none."""
    try:
        library = load()
    except LibraryNotFoundError as error:
        remedy = "unset PYNICKEL_LIBRARY, or set it to host, nvidia, rccl or the path of a libnccl.so"
        return None, Finding(PROBLEM, "library", str(error), remedy if "PYNICKEL_LIBRARY" in os.environ else "see the candidates above")
    present = sum(function.present for function in library.functions)
    text = f"{library.label}; {library.reason}; {present} of {len(library.functions)} functions"
    return library, Finding(OK, "library", text)


def check(library: Library | None) -> Iterator[Finding]:
    """Every libnccl, libcuda and libcudart."""
    yield from nccls(library)
    for name, file_name in CUDA_FILES.items():
        yield cuda(name, file_name)


def nccls(library: Library | None) -> Iterator[Finding]:
    """Copies of NCCL in the process and in the places that are searched."""
    mapped = {os.path.realpath(path): path for vendor in search.VENDORS.values() for path in search.mapped(vendor.mapped)}
    if len(mapped) > 1:
        yield Finding(
            PROBLEM, "two NCCLs", f"{len(mapped)} copies of NCCL are mapped in this process: {', '.join(mapped.values())}",
            "let all packages use one: uninstall one of the nvidia-nccl wheels, or take the other off LD_LIBRARY_PATH and LD_PRELOAD",
        )  # fmt: skip
    for kind, vendor in search.VENDORS.items():
        found = [candidate for candidate in search.candidates(kind) if os.path.isabs(candidate.path)]
        if loader := on_loader_path(vendor.file_name):
            found.append(search.Candidate(loader, "from the loader path"))
        distinct = {os.path.realpath(candidate.path): candidate for candidate in reversed(found)}
        if not found:
            yield Finding(NOTE if kind == "nvidia" and search.visible_gpu()[0] == kind else OK, vendor.file_name, "none found",
                          "pip install nvidia-nccl-cu12 or nvidia-nccl-cu13" if kind == "nvidia" else "install ROCm")  # fmt: skip
            continue
        listed = "; ".join(f"{candidate.path} ({candidate.why})" for candidate in found)
        level = NOTE if len(distinct) > 1 else OK
        wins = f", the first would win for library={kind!r}" if len(distinct) > 1 else ""
        yield Finding(level, vendor.file_name, f"{listed}{wins}")


def cuda(name: str, file_name: str) -> Finding:
    """Where a library of CUDA's is, if it is anywhere."""
    pattern = name + r"\.so(\.[\d.]+)?"
    mapped = search.mapped(pattern)
    if mapped:
        return Finding(OK, name, f"mapped: {', '.join(mapped)}")
    place = on_loader_path(file_name)
    if place:
        return Finding(OK, name, f"found: {place}")
    if search.visible_gpu()[0] != "nvidia":
        return Finding(OK, name, "not there, and no NVIDIA GPU is visible that would need it")
    remedy = "install NVIDIA's driver" if name == "libcuda" else "pip install cuda-core[cu13] brings it"
    return Finding(NOTE, name, "not on the loader path", remedy)


LOOK = """
import ctypes, sys
try:
    ctypes.CDLL(sys.argv[1])
except OSError:
    sys.exit(1)
stem = sys.argv[1].split(".so")[0]
for line in open("/proc/self/maps"):
    path = line.rstrip("\\n").split(maxsplit=5)[5:]
    if path and path[0].rpartition("/")[2].startswith(stem + ".so"):
        print(path[0])
        break
"""


def on_loader_path(file_name: str) -> str | None:
    """The file that the dynamic loader would take for that name; looked up in a child, so that nothing stays loaded here."""
    try:
        found = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LOOK, file_name], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return os.fsdecode(found.stdout).strip() or None
