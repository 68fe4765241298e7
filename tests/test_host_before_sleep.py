"""What comes for a rank of the CPU library after its last step and before it sleeps: its next part, or call, has not waited yet."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.c import shared_library
from helpers.host_more import Comm
from helpers.order import Flag, waits

# The main thread's clock, which the library reads between a step and its sleep: the at-th look after steps[0] is set stops until
# steps[2] is.
CLOCK = """
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
volatile char *steps;
volatile int at;
int clock_gettime(clockid_t which, struct timespec *now)
{
  if (steps && steps[0] && at > 0 && syscall(SYS_gettid) == getpid() && --at == 0) {
    struct timespec moment = {.tv_nsec = 1000000};
    steps[1] = 1;
    for (int turn = 0; turn < 5000 && !steps[2]; turn++) nanosleep(&moment, NULL);
  }
  return (int)syscall(SYS_clock_gettime, which, now);
}
"""


def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, at: int, steps: Flag) -> None:
    """Rank 0 waits, and is held at a look at its clock while rank 1 comes to the same call; rank 2 has no part in a shrink. Each pause is
    long enough for a rank to come to its wait; on a machine where it is not, less is seen here."""
    host_c.set_timeout(10)
    comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.int64)
    comm.barrier()
    if how == "split":
        comm.revoke()  # so that it is done in a meeting, as a shrink is

    def later(seconds: float, step: int) -> None:
        threading.Thread(target=lambda: (time.sleep(seconds), steps.set(step)), daemon=True).start()

    if rank == 0:
        ctypes.c_int.in_dll(ctypes.CDLL(None), "at").value = at
        ctypes.c_void_p.in_dll(ctypes.CDLL(None), "steps").value = steps.address()
        later(0.2, 0)
    else:
        steps.wait(2 if rank == 1 else 3)
    if rank == 1:
        later(0.2, 2)
    if rank < 2:
        child = comm.split(0, rank) if how == "split" else comm.shrink([2])
        child.learn().all_reduce(one, one)
        assert one[0] == 2
    comm.abort()


def later_call(rank: int, nranks: int, ids: list[bytes], at: int, steps: Flag) -> None:
    """In a group rank 0 waits as long as its deadline allows, then the first call's peer comes; the second's comes in its time."""
    host_c.set_timeout(10)
    comm, one, two = Comm(nranks, ids[0], rank), np.ones(1, np.int64), np.ones(1, np.int64)
    comm.barrier()

    def later(seconds: float, step: int) -> None:
        threading.Thread(target=lambda: (time.sleep(seconds), steps.set(step)), daemon=True).start()

    if rank == 0:
        comm.set_timeout(2)
        ctypes.c_int.in_dll(ctypes.CDLL(None), "at").value = at
        ctypes.c_void_p.in_dll(ctypes.CDLL(None), "steps").value = steps.address()
        later(0.2, 0)
        with host_c.group():
            comm.all_reduce(one, one)
            comm.all_reduce(two, two)
        assert one[0] == two[0] == 2
    else:
        steps.wait(2)
        later(2.2, 2)
        comm.all_reduce(one, one)
        steps.wait(3)
        waits(0)  # a tenth of a second, at whose end a wait that has begun too early is over
        comm.all_reduce(two, two)
    comm.abort()


def held_at(how: str, at: int) -> None:
    """One such call."""
    if how == "group":
        forks.values(forks.fork(2, later_call, at, Flag()))
    else:
        forks.values(forks.fork(2 if how == "split" else 3, rank_main, how, at, Flag()))


@pytest.mark.parametrize("how", ["split", "shrink", "group"])
def test_moved_before_it_sleeps(how: str, tmp_path: Path) -> None:
    """A rank whose peer comes just then goes on to the next part of its split or shrink, which has no communicator to look at yet, or one
    that was revoked; or to the next call of its group, whose wait begins only now. Among four looks at the clock, one after the other, is
    the last before the sleep."""
    clock = shared_library(tmp_path / "clock.so", CLOCK)
    before = [path] if (path := os.environ.get("LD_PRELOAD")) else []
    env = {**os.environ, "LD_PRELOAD": ":".join([*before, str(clock)]), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = f"import test_host_before_sleep as t\nfor at in range(1, 5): t.held_at({how!r}, at)"
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stderr
