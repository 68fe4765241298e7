"""Build a libnccl that passes every call on to the CPU library, except for what a test's C code changes."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A jump leaves the arguments of the call where they are, so one forwarder serves every function, whatever it takes.
PRELUDE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "all.h"
#if defined __x86_64__
#define JUMP(name) "jmp *real_" name "(%rip)\n"
#elif defined __aarch64__
#define JUMP(name) "adrp x16, real_" name "\nldr x16, [x16, :lo12:real_" name "]\nbr x16\n"
#endif
#define FORWARD(name) __asm__(".text\n.globl " #name "\n.type " #name ",%function\n" #name ":\n" JUMP(#name));
#define REAL(name) __attribute__((visibility("hidden"))) void *real_##name;
#define FIND(name) if (!(real_##name = dlsym(library, #name))) { fprintf(stderr, "no %s\n", #name); abort(); }
"""


def build(real: Path, folder: Path, changed: tuple[str, ...] = (), code: str = "") -> Path:
    """A shared library in `folder`: functions named in `changed` come from `code`, where real_NAME is the real one's address."""
    names = exports(real)
    source = [
        PRELUDE,
        *(f"REAL({name})" for name in names),
        f'__attribute__((constructor)) static void find(void) {{ void *library = dlopen("{real}", RTLD_NOW | RTLD_LOCAL);',
        *(f"FIND({name})" for name in names),
        "}",
        *(f"FORWARD({name})" for name in names if name not in changed),
        code,
    ]
    (folder / "faulty.c").write_text("\n".join(source))
    path = folder / "libfaulty.so"
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", f"-I{ROOT / 'cdef'}", "-o", str(path), str(folder / "faulty.c"), "-ldl"],
        check=True,
        timeout=60,
    )
    return path


def exports(library: Path) -> list[str]:
    """The functions that a shared library exports."""
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, timeout=60, capture_output=True, text=True)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return sorted({row[-1].split("@")[0] for row in rows if row[-2] in "TW"} - {"_init", "_fini"})
