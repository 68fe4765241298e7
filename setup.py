"""Builds the extension pynickel._nccl and the CPU library, beside the sources too, after a look at what building needs."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "pynickel"


def compiler() -> list[str]:
    """The C compiler's command: CC where it is set, else the one that Python was built with, else a usual one."""
    named = os.environ.get("CC")
    for command in [named] if named else [sysconfig.get_config_var("CC") or "cc", "cc", "gcc", "clang"]:
        try:
            words = shlex.split(command)
        except ValueError:
            continue  # quotes that do not close name no compiler
        if words and shutil.which(words[0]):
            return words
    sys.exit(f"pynickel needs a C compiler to build{f' and CC={named} is not found' if named else ''}: "
             "install gcc (Debian, Ubuntu, Fedora and others: the package gcc).")


def check() -> None:
    """Stops with one sentence that says what to install."""
    if not sys.platform.startswith("linux"):
        sys.exit(f"pynickel is for Linux, WSL2 on Windows included, and this is {sys.platform}.")
    command = compiler()
    if command != shlex.split(sysconfig.get_config_var("CC") or ""):
        os.environ["CC"] = shlex.join(command)
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        sys.exit(f"pynickel needs Python's C headers to build and {header} is missing: "
                 "install python3-dev (Debian, Ubuntu) or python3-devel (Fedora, openSUSE).")
    if words := complaint(command):
        sys.exit(f"pynickel needs a C compiler that works, and {shlex.join(command)} cannot build a small C11 library ({words}): "
                 "install gcc and the C library's headers (Debian, Ubuntu: build-essential; Fedora: gcc and glibc-devel).")


def complaint(command: list[str]) -> str:
    """Why the compiler cannot do what it will be asked for: its own first error in one line, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "small.c")
        source.write_text("#include <pthread.h>\n#include <stdatomic.h>\n#include <stdio.h>\natomic_int pn_small;\n")
        try:
            flags = ["-std=gnu11", "-fPIC", "-pthread", "-shared", "-o", str(source.with_suffix(".so"))]
            done = subprocess.run([*command, *flags, str(source)],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if done.returncode == 0:
        return ""
    lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
    return next((line for line in lines if "error" in line), lines[0]).strip()


check()

from setuptools import setup  # noqa: E402  (after the check, whose sentence must be all that a failure says)
from setuptools.command.build_ext import build_ext  # noqa: E402


def run(command: list[str]) -> None:
    print(shlex.join(command), flush=True)
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        sys.exit(f"pynickel's CPU library could not be built: {shlex.join(command)} failed, see the lines above.")


def is_older(target: Path, sources: list[Path]) -> bool:
    return not target.exists() or target.stat().st_mtime < max(s.stat().st_mtime for s in sources)


def replace(target: Path, content: bytes) -> None:
    """A new file under the old name: a process that has the old one mapped keeps it whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(target)


def forget_other_build(folder: Path, how: str) -> None:
    """Empties folder when what it holds was made from other files or with other flags."""
    note = folder / "how.txt"
    if note.exists() and note.read_text() == how:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    note.write_text(how)


def build_host_library(folder: Path) -> Path:
    """host/*.c as one shared library in folder; objects that are newer than their sources are kept."""
    sanitize = os.environ.get("PYNICKEL_SANITIZE", "")
    extra = shlex.split(os.environ.get("CFLAGS", "")) + ([f"-fsanitize={sanitize}", "-g"] if sanitize else [])
    compile_flags = ["-std=gnu11", "-O2", *extra, "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-pthread"]
    link_flags = ["-shared", "-Wl,-soname,libnickel_host.so", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-pthread"]
    # Under a sanitizer the library leans on the one that is loaded with the program: -z defs would refuse that.
    if sanitize:
        link_flags = [f"-fsanitize={sanitize}", *(f for f in link_flags if f != "-Wl,-z,defs")]
    command = [*compiler(), *compile_flags]
    headers = [*ROOT.glob("host/*.h"), *ROOT.glob("cdef/*.h"), ROOT / "setup.py"]
    objects = {folder / f"{source.stem}.o": source for source in sorted(ROOT.glob("host/*.c"))}
    forget_other_build(folder, shlex.join([*command, *link_flags, *map(str, objects)]))
    stale = [o for o, source in objects.items() if is_older(o, [source, *headers])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda o: run([*command, "-c", str(objects[o].relative_to(ROOT)), "-o", str(o)]), stale))
    library = folder / "libnickel_host.so"
    if is_older(library, list(objects)):
        run([*compiler(), *link_flags, "-o", str(library), *map(str, objects), *shlex.split(os.environ.get("LDFLAGS", ""))])
    return library


class BuildExtension(build_ext):
    """Also makes the CPU library and nccl.h, and leaves everything beside the sources, where a checkout finds it."""

    def run(self) -> None:
        super().run()
        self.copy_extensions_to_source()
        self.install("include/nccl.h", runpy.run_path(str(ROOT / "cdef" / "build.py"))["nccl_header"]().encode())
        self.install("libnickel_host.so", build_host_library(Path(self.build_temp).resolve() / "host").read_bytes())

    def install(self, name: str, content: bytes) -> None:
        for folder in [PACKAGE] if self.inplace else [PACKAGE, Path(self.build_lib) / "pynickel"]:
            if not (folder / name).exists() or (folder / name).read_bytes() != content:
                replace(folder / name, content)


if __name__ == "__main__":  # tests build the CPU library alone
    setup(
        cffi_modules=["cdef/build.py:ffibuilder"],
        cmdclass={"build_ext": BuildExtension},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
