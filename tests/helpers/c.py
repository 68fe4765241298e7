"""Compile small C programs in tests; a failure shows the compiler's own words."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CDEF = ROOT / "cdef"
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]


def compiler() -> list[str]:
    """What setup.py builds with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def compile_c(source: Path | str, *flags: str, folder: Path | None = None, suffix: str = ".c", command: list[str] | None = None) -> None:
    """Run the compiler over a file, or over a text that is written to folder first."""
    if not isinstance(source, Path):
        assert folder is not None
        path = folder / f"source{suffix}"
        path.write_text(source)
        source = path
    done = subprocess.run([*(command or compiler()), *flags, str(source)], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, f"{shlex.join(map(str, done.args))}\n{done.stderr}"


def shared_library(path: Path, source: str, *flags: str) -> Path:
    """A shared library at path, made from C text."""
    compile_c(source, "-shared", "-fPIC", "-o", str(path), *flags, folder=path.parent, suffix=f".{path.name}.c")
    return path
