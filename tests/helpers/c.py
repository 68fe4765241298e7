"""Compile small C programs in tests; a failure shows the compiler's own words."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CDEF = ROOT / "cdef"
BUILD_HOST = "import pathlib, runpy, sys; runpy.run_path('setup.py')['build_host_library'](pathlib.Path(sys.argv[1]))"
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


def host_library(folder: Path, **env: str) -> Path:
    """The CPU library, built as setup.py does it but for what `env` says."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD_HOST, str(folder)], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "libnickel_host.so"
