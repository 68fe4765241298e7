"""What the CPU library exports, and that no other libnccl in the process takes its calls."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

from helpers import host_c
from helpers.c import shared_library

TESTS = Path(__file__).resolve().parent


def exports() -> dict[str, str]:
    """Name to nm's letter, of everything that the library lets others see."""
    command = ["nm", "-D", "--defined-only", str(host_c.path())]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return {fields[-1].split("@")[0]: fields[-2] for fields in map(str.split, listing.splitlines())}


def test_only_the_api_is_exported() -> None:
    """Exported are functions whose names begin with nccl, pnccl or nickel, and nothing else."""
    assert [name for name in exports() if not re.match(r"p?nccl[A-Z]|nickel[A-Z]", name)] == []


def test_every_function_has_its_twin() -> None:
    """Each ncclX is a weak symbol, as in NVIDIA's library, and has a strong pncclX at the same address."""
    found = exports()
    names = [name for name in found if name.startswith("nccl")]
    assert len(names) >= 30
    library = host_c.library()
    for name in names:
        if name == "ncclResetDebugInitInternal":  # NVIDIA's has no twin either
            continue
        assert (found[name], found.get(f"p{name}")) == ("W", "T"), name
        assert address(library, name) == address(library, f"p{name}")
    assert all(f"nccl{name[5:]}" in found for name in found if name.startswith("pnccl"))


def address(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def test_needs_libc_only() -> None:
    """The library names itself libnickel_host.so and depends on nothing but libc."""
    dynamic = subprocess.run(["readelf", "-dW", str(host_c.path())], capture_output=True, text=True, check=True, timeout=30).stdout
    assert re.findall(r"SONAME.*\[(.*)\]", dynamic) == ["libnickel_host.so"]
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert [name for name in needed if not re.match(r"libc\.so|libpthread\.so|libm\.so|ld-linux|lib[a-z]*san\.so", name)] == []


def test_other_libnccl_does_not_capture_calls(tmp_path: Path) -> None:
    """With another libnccl loaded first and for all (RTLD_GLOBAL), whose functions all abort, the CPU library calls its own."""
    names = [name for name in exports() if "nccl" in name]
    source = "#include <stdlib.h>\n" + "\n".join(f"void {name}(void) {{ abort(); }}" for name in names)
    trap = shared_library(tmp_path / "libnccl.so.2", source, "-Wl,-soname,libnccl.so.2")
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(TESTS / "helpers" / "beside.py"), str(trap)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stdout) == (0, "the trap works\nright beside it\n"), done.stderr
