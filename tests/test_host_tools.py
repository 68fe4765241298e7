"""Faults on order in the CPU library, and NCCL's log."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import signal
import socket
import time
from ctypes import byref, c_int
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, REMOTE_ERROR, SUCCESS, raised
from helpers.host_more import IN_PROGRESS, Comm, group_end
from helpers.host_structs import SimInfo, library
from helpers.order import SOON

LINE = re.compile(r"([\w.-]+):(\d+):(\d+) \[(\d+)\] NCCL (WARN|INFO) (.+)")


def loop(rank: int, nranks: int, ids: list[bytes], grouped: bool) -> list[Any]:
    """Ten all-reduces of growing count, at most; what came of each, and from when to when it lasted."""
    host_c.set_timeout(8)
    comm, buffer, came = Comm(nranks, ids[0], rank), np.ones(10, np.float32), []
    for n in range(1, 11):
        begun = time.monotonic()
        try:
            if grouped:
                with host_c.group():
                    comm.all_reduce(buffer, buffer, "max", n)
            else:
                comm.all_reduce(buffer, buffer, "max", n)
            came.append((SUCCESS, (begun, time.monotonic())))
        except host_c.HostError as error:
            came.append((error.code, error.text))
            break
    return came


def with_fault(order: str, nranks: int = 3, grouped: bool = False) -> list[forks.End]:
    """How the ranks of that loop end."""
    os.environ["NICKEL_FAULT"] = order
    return forks.fork(nranks, loop, grouped)


@pytest.mark.parametrize("grouped", [False, True])
@forks.nursery()
def test_kill(grouped: bool) -> None:
    """kill ends the process of that rank in that call, by SIGKILL; the others have done exactly the calls before it, and name the rank."""
    ends = with_fault("kill:rank=2,call=7", grouped=grouped)
    assert ends[2].signal == 9
    for end in ends[:2]:
        came = end.returned()
        assert [code for code, _ in came] == [SUCCESS] * 6 + [REMOTE_ERROR] and "rank 2" in came[-1][1], came


@forks.nursery()
def test_delay() -> None:
    """delay makes that call of that rank start so much later, and no other one."""
    times = [[time for _, time in end.returned()] for end in with_fault("delay:rank=1,call=3,ms=1000")]
    started = times[1][2][0] + 0.98  # of the third call, in the other ranks' eyes
    for calls in times:
        assert len(calls) == 10 and calls[2][1] >= started, times
        assert sum(after - before for before, after in calls) - (calls[2][1] - calls[2][0]) < 0.9, times


@forks.nursery()
def test_delay_with_signals() -> None:
    """Signals that a program handles meanwhile do not cut a delay short."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> tuple[float, int]:
        handled: list[int] = []
        signal.signal(signal.SIGALRM, lambda number, _: handled.append(number))
        comm = Comm(nranks, ids[0], rank)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        begun = time.monotonic()
        comm.barrier()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return time.monotonic() - begun, len(handled)

    os.environ["NICKEL_FAULT"] = "delay:rank=0,call=1,ms=300"
    ((seconds, handled),) = forks.values(forks.fork(1, rank_main))
    assert 0.29 < seconds < 0.3 + SOON and handled, (seconds, handled)


@pytest.mark.parametrize("grouped", [False, True])
@forks.nursery()
def test_refuse(grouped: bool) -> None:
    """refuse makes that call of that rank return that result, with a text that says so; it has not been made, so the others wait for it."""
    for result in (1, 3, 5):
        ends = with_fault(f"refuse:rank=0,call=5,result={result}", grouped=grouped)
        came = ends[0].returned()
        assert [code for code, _ in came] == [SUCCESS] * 4 + [result] and "NICKEL_FAULT" in came[-1][1], came
        for end in ends[1:]:
            assert [code for code, _ in end.returned()] == [SUCCESS] * 4 + [REMOTE_ERROR]


@forks.nursery()
def test_corrupt() -> None:
    """corrupt turns over one bit of what that call of that rank received, of collectives and messages; other calls and ranks are right, and
    where a rank receives nothing nothing is written, whatever address it gave."""
    os.environ["NICKEL_FAULT"] = ";".join(f"corrupt:rank=1,call={call}" for call in (2, 3, 4, 5))

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> list[list[int]]:
        comm, seen = Comm(nranks, ids[0], rank), []
        for call in range(1, 6):
            x, y = np.full(2, 4, np.int32), np.full(2, 6, np.int32)
            if call < 3:
                comm.all_reduce(x, y)
            elif call == 3:
                comm.reduce(x, y, root=0)
            elif call == 4:
                comm.send(x, 0) if rank else comm.recv(y, 1)
            else:
                comm.recv(y, 0) if rank else comm.send(x, 1)
            seen.append([*x.tolist(), *y.tolist()])
        return seen

    zero, one = forks.values(forks.fork(2, rank_main))
    assert zero == [[4, 4, 8, 8], [4, 4, 8, 8], [4, 4, 8, 8], [4, 4, 4, 4], [4, 4, 6, 6]]
    assert one == [[4, 4, 8, 8], [4, 4, 9, 8], [4, 4, 6, 6], [4, 4, 6, 6], [4, 4, 5, 4]]


@forks.nursery()
def test_several_faults() -> None:
    """Several orders stand beside each other; one for a rank or a call that there is not has no effect."""
    delays = "delay:rank=0,call=2,ms=800;delay:rank=1,call=4,ms=800"
    ends = with_fault(f"{delays}; refuse:rank=2,call=6,result=2;kill:rank=9,call=1;kill:rank=0,call=99")
    assert [code for code, _ in ends[2].returned()] == [SUCCESS] * 5 + [2]
    zero, one = ([times for _, times in end.returned()[:5]] for end in ends[:2])
    assert zero[1][1] - zero[1][0] > 0.78 and zero[3][1] - one[3][0] > 0.78, (zero, one)
    assert all(after - before < 0.7 for before, after in (zero[0], zero[2], zero[4])), zero


@forks.nursery()
def test_faults_are_counted_per_communicator() -> None:
    """Calls are counted on each communicator, whatever kind they are: collectives, messages, puts and waits, also of count 0."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> int:
        first, second = (Comm(1, host_c.unique_id(), 0) for _ in range(2))
        one, done = np.ones(1, np.float32), 0
        first.all_reduce(one, one)
        second.all_reduce(one, one)
        first.bcast(one, count=0)
        first.signal(0)
        first.wait_signal((1, 0))
        assert raised(first.bcast, one, 5).code == INVALID_ARGUMENT  # not a call
        error = raised(first.all_reduce, one, one)
        assert error.code == 3 and "call 5" in error.text, error
        first.all_reduce(one, one)
        for _ in range(3):
            second.all_reduce(one, one)
            done += 1
        assert raised(second.all_reduce, one, one).code == 3
        return done

    os.environ["NICKEL_FAULT"] = "refuse:rank=0,call=5,result=3"
    assert forks.values(forks.fork(1, rank_main)) == [3]


@forks.nursery()
def test_order_that_is_not_understood() -> None:
    """An order that is not understood is warned of with the forms that there are, and has no effect; the others count."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> str:
        log = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
        os.dup2(log, 2)
        comm, one = Comm(1, host_c.unique_id(), 0), np.ones(1, np.float32)
        comm.all_reduce(one, one)
        assert raised(comm.all_reduce, one, one).code == 3
        return os.pread(log, 4096, 0).decode()

    wrong = ("kill:rank=0", "kill:rank=0,call=1,ms=3", "explode:rank=0,call=1", "delay:rank=0,call=1", "kill: rank=0,call=1", "x")
    for order in wrong:
        os.environ["NICKEL_FAULT"] = f"{order};refuse:rank=0,call=2,result=3"
        (text,) = forks.values(forks.fork(1, rank_main))
        assert "NICKEL_FAULT" in text and "kill:rank=R,call=K" in text and order.split(" ")[0] in text, text


def logged(level: str | None, file: str | None = None) -> tuple[str, int]:
    """What an init, a refused call, a mismatch and a close write to standard error at this level, and the pid."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> tuple[str, int]:
        log = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
        os.dup2(log, 2)
        comm, one = Comm(nranks, ids[0], rank), np.ones(3, np.float32)
        raised(comm.bcast, one, 77)
        raised(comm.all_reduce, one, one, "sum", 1 + rank)
        comm.barrier()
        comm.destroy()
        return os.pread(log, 1 << 20, 0).decode(), os.getpid()

    for name, value in (("NCCL_DEBUG", level), ("NCCL_DEBUG_FILE", file)):
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    return forks.values(forks.fork(2, rank_main))[0]


@forks.nursery()
def test_log() -> None:
    """NCCL_DEBUG=WARN writes one line for each error, INFO also what happens, in NCCL's form: host, pid, thread, device, level; without
    it nothing is written, with another word nothing but the words that there are. Small letters do."""
    for level in (None, "", "NONE"):
        assert logged(level)[0] == "", level
    (said,) = logged("nonsense")[0].splitlines()
    assert said.endswith("NCCL_DEBUG is 'nonsense', but must be VERSION, WARN, INFO, TRACE or ABORT; nothing is logged")
    for level in ("WARN", "warn", "INFO", "info"):
        text, pid = logged(level)
        found = [match.groups() for match in map(LINE.fullmatch, text.splitlines()) if match]
        assert {(host, int(process), int(thread)) for host, process, thread, *_ in found} == {(socket.gethostname(), pid, pid)}
        warned = [message for *_, kind, message in found if kind == "WARN"]
        assert len(warned) == 2 and "77" in warned[0] and "do not fit" in warned[1], text
        informed = [message for *_, kind, message in found if kind == "INFO"]
        assert bool(informed) == (level.upper() == "INFO"), text
        assert not informed or any("rank 0" in message and "2" in message for message in informed)


@forks.nursery()
def test_log_file(tmp_path: Path) -> None:
    """NCCL_DEBUG_FILE takes the lines, with the host's name for %h and the pid for %p; without a level it is not made; one that cannot be
    opened leaves them on standard error."""
    text, pid = logged("WARN", f"{tmp_path}/log.%h.%p.txt")
    written = tmp_path / f"log.{socket.gethostname()}.{pid}.txt"
    assert text == "" and LINE.match(written.read_text()) and len(list(tmp_path.iterdir())) == 2
    assert logged(None, f"{tmp_path}/other.%p")[0] == "" and len(list(tmp_path.iterdir())) == 2
    assert "do not fit" in logged("WARN", f"{tmp_path}/no/such/folder")[0]
    text, pid = logged("INFO", f"{tmp_path}/100%")
    assert text == "" and (tmp_path / "100%").exists()


@forks.nursery()
def test_reset_of_the_log() -> None:
    """ncclResetDebugInit, and its twin without a p, read the variables again."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> list[bool]:
        log, seen = os.open("/tmp", os.O_TMPFILE | os.O_RDWR), []
        os.dup2(log, 2)
        for level, reset in (("", None), ("WARN", "ncclResetDebugInit"), ("", "ncclResetDebugInitInternal")):
            os.environ["NCCL_DEBUG"] = level
            if reset:
                getattr(library(), reset)()
            os.ftruncate(log, 0)
            library().ncclCommCount(None, byref(c_int()))
            seen.append(b"NCCL WARN" in os.pread(log, 4096, 0))
        return seen

    os.environ.pop("NCCL_DEBUG", None)
    assert forks.values(forks.fork(1, rank_main)) == [[False, True, False]]


@forks.nursery()
def test_faults_and_the_other_forms() -> None:
    """Faults strike calls of non-blocking communicators and in simulated groups when they are made, too."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = Comm.ready(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.all_reduce(one, one)
        assert comm.code == IN_PROGRESS
        comm.wait()
        assert raised(comm.all_reduce, one, one).code == 2
        host_c.group_start()
        comm.all_reduce(one, one)
        assert library().ncclGroupSimulateEnd(byref(SimInfo.new())) == SUCCESS
        host_c.group_start()
        assert raised(comm.all_reduce, one, one).code == 1
        assert raised(group_end).code == 1

    os.environ["NICKEL_FAULT"] = "refuse:rank=0,call=2,result=2;refuse:rank=0,call=4,result=1"
    forks.values(forks.fork(1, rank_main))
