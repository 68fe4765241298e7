"""The CPU library for C programs that run as an ordinary user, or as two."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import host_c
from helpers.c import ROOT, compile_c

NOBODY = 65534

# Two ranks, each an own program: rank 0 makes the id and starts rank 1 with it, as the user that it is told. They reduce from ncclMemAlloc
# memory and from plain memory, then rank 1 ends without a word, and rank 0 must learn that.
PROGRAM = r"""
#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "all.h"
#include "nickel.h"
enum { COUNT = 50000 };
static ncclComm_t comm;
static void check(int line, ncclResult_t result)
{
  if (result == ncclSuccess) return;
  printf("line %d: %d %s\n", line, result, ncclGetLastError(comm));
  exit(1);
}
#define CHECK(call) check(__LINE__, call)
static void start_other(char **argv, const ncclUniqueId *id)
{
  char text[2 * sizeof *id + 1];
  for (size_t i = 0; i < sizeof *id; i++) sprintf(text + 2 * i, "%02x", (unsigned char)id->internal[i]);
  if (fork()) return;
  unsigned user = (unsigned)atoi(argv[1]);
  if (user && (setgroups(0, NULL) || setgid(user) || setuid(user))) exit(2);
  execl(argv[0], argv[0], argv[1], text, (char *)NULL);
  exit(3);
}
static void reduce(float *buffer, int rank)
{
  for (int i = 0; i < COUNT; i++) buffer[i] = (float)(rank + i);
  CHECK(ncclAllReduce(buffer, buffer, COUNT, ncclFloat32, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++)
    if (buffer[i] != (float)(2 * i + 1)) exit(4);
}
int main(int argc, char **argv)
{
  static float plain[COUNT];
  void *memory;
  ncclUniqueId id;
  int rank = argc > 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (rank == 0) {
    CHECK(ncclGetUniqueId(&id));
    start_other(argv, &id);
  }
  for (size_t i = 0; rank && i < sizeof id; i++) sscanf(argv[2] + 2 * i, "%2hhx", (unsigned char *)&id.internal[i]);
  CHECK(nickelCommSetTimeout(NULL, 2));
  CHECK(ncclCommInitRank(&comm, 2, id, rank));
  CHECK(ncclMemAlloc(&memory, COUNT * sizeof(float)));
  reduce(plain, rank);
  reduce(memory, rank);
  if (rank) _exit(0);
  ncclResult_t result = ncclAllReduce(plain, plain, COUNT, ncclFloat32, ncclSum, comm, NULL);
  printf("as %u: right, then %d %s\n", (unsigned)getuid(), result, ncclGetLastError(comm));
  CHECK(ncclCommAbort(comm));
  wait(NULL);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """The program and the library, where every user can read them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        shutil.copy(host_c.path(), folder / "libnickel_host.so")
        flags = ["-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'cdef'}", f"-L{folder}", "-Wl,-rpath,$ORIGIN", "-o", str(folder / "program")]
        (folder / "program.c").write_text(PROGRAM)
        compile_c(folder / "program.c", *flags, "-Wl,--no-as-needed", "-lnickel_host")
        yield folder / "program"
    finally:
        shutil.rmtree(folder)


def run_as(user: int, program: Path, other: int = 0) -> str:
    """The program's output, with rank 0 as this user and rank 1 as the same or another one."""
    change: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    done = subprocess.run([str(program), str(other)], capture_output=True, text=True, timeout=20, **change)
    return done.stdout + done.stderr


def test_this_user(program: Path) -> None:
    """A C program that is linked with the library reduces between two processes and learns that its peer has ended."""
    output = run_as(0, program)
    assert "right, then 6 ncclAllReduce on rank 0 of 2: rank 1 (pid " in output and "has ended" in output, output


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root; what it shows then holds for this user")


@needs_root
def test_ordinary_user(program: Path) -> None:
    """The same works for a user without any privilege."""
    output = run_as(NOBODY, program)
    assert f"as {NOBODY}: right, then 6 ncclAllReduce on rank 0 of 2: rank 1 (pid " in output and "has ended" in output, output


@needs_root
def test_two_users(program: Path) -> None:
    """A rank of another user cannot reach the id's maker and says so; rank 0 hears at its deadline that rank 1 has not come."""
    output = run_as(0, program, other=NOBODY)
    assert "run all ranks as one user" in output and "rank 1" in output and "8 ncclCommInitRank" in output, output
