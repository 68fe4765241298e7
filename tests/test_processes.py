"""`pynickel ps` and `pynickel kill` against jobs that hang on purpose."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.mps import fine, stand_ins

import pynickel
from pynickel.tools.cli import main
from pynickel.tools.processes import held, kill, ps

JOB = """
import signal, sys, time
import numpy as np
from pynickel import rendezvous
comm = rendezvous.init(timeout=30)
if comm.rank == 1 and sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
data = np.ones(4, np.float32)
comm.all_reduce(data)
print("ready", flush=True)
if comm.rank == 1:
    time.sleep(60)
comm.all_reduce(data)
"""


@contextmanager
def hanging(tmp_path: Path, how: str = "polite") -> Iterator[list[held.Held]]:
    """Three ranks, of which rank 1 never comes to the second all-reduce."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "pynickel", "run", "-n", "3", "--", sys.executable, str(script), how]
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield wait_for(lambda: mine(script), lambda found: sum(waits_in_second(rank) for one in found for _, rank in one.ranks()) == 2)
    finally:
        for pid in [one.pid for one in mine(script)]:
            with suppress(ProcessLookupError):  # the launcher ends them, too
                os.kill(pid, signal.SIGKILL)
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def waits_in_second(rank: dict[str, Any]) -> bool:
    """Whether the rank is in the second all-reduce, for which another one is missing."""
    return "waits" in rank and rank["rounds"] == 2


def mine(script: Path) -> list[held.Held]:
    """The processes of that script that hold something."""
    return [one for one in held.find() if str(script) in one.command and "run" not in one.command]


def wait_for(look: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    """What `look` gives as soon as it is good, within 20 s."""
    until = time.monotonic() + 20
    while not good(found := look()):
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


def test_ps_shows_who_waits_for_whom(tmp_path: Path) -> None:
    """Each rank of a hung job is listed with its program and user, and those that wait with the call, the missing rank and how long."""
    with hanging(tmp_path) as found:
        assert len(found) == 3
        by_rank = {rank["rank"]: (one, rank) for one in found for _, rank in one.ranks()}
        assert sorted(by_rank) == [0, 1, 2]
        for number in (0, 2):
            one, rank = by_rank[number]
            assert rank["waits"]["operation"] == "ncclAllReduce" and rank["waits"]["peer"] == 1 and rank["rounds"] == 2
            assert one.shared_bytes > 0 and one.started > time.time() - 100
        assert "waits" not in by_rank[1][1] and by_rank[1][1]["rounds"] == 1
        listed = CliRunner().invoke(main, ["ps"]).output
        for words in (f"{by_rank[0][0].pid} ", "ncclAllReduce for rank 1", "job.py"):
            assert words in listed, listed
        as_json = {one["pid"]: one for one in json.loads(CliRunner().invoke(main, ["ps", "--json"]).output)}
        assert as_json[by_rank[1][0].pid]["communicators"][0]["nranks"] == 3


def test_program_without_its_folder() -> None:
    """A long folder of the interpreter leaves room for what it runs; a program without arguments, or without a command, has its name."""
    one = held.Held(1, "me", 0.0, "python", [f"/{'deep/' * 40}python", "job.py"], [], 4096, False, None)
    assert ps.rows_of(one)[0][-1] == "python job.py"
    assert ps.rows_of(one._replace(command=["/usr/bin/job"]))[0][-1] == "job" and ps.rows_of(one._replace(command=[]))[0][-1] == "python"


def test_kill_asks_and_then_ends(tmp_path: Path) -> None:
    """Without --yes it asks, and no is no; with it the ranks end at SIGTERM, a stopped one too, and nothing holds a communicator then."""
    with hanging(tmp_path) as found:
        os.kill(found[0].pid, signal.SIGSTOP)
        pids = [str(one.pid) for one in found]
        ended = CliRunner().invoke(main, ["kill", *pids], input="n\n")
        assert ended.exit_code == 1 and len(mine(tmp_path / "job.py")) == 3
        ended = CliRunner().invoke(main, ["kill", "--yes", *pids])
        assert ended.exit_code == 0, ended.output
        # The launcher ends the others as soon as one has ended, maybe before their signal.
        assert sum(line.endswith(("ended when asked", "had ended already")) for line in ended.output.splitlines()) == 3
        assert "ended when asked" in ended.output
        assert mine(tmp_path / "job.py") == []


@pytest.mark.slow
def test_kill_does_not_stop_at_deaf_ones(tmp_path: Path) -> None:
    """A rank that takes no notice of SIGTERM is killed after the grace."""
    with hanging(tmp_path, "deaf") as found:
        (deaf,) = [one.pid for one in found for _, rank in one.ranks() if rank["rank"] == 1]
        ended = CliRunner().invoke(main, ["kill", "--yes", "--grace", "0.2", str(deaf)])
        assert ended.exit_code == 0 and f"{deaf} was killed" in ended.output


def test_words_of_others_are_harmless() -> None:
    """A command line stays one line of the table, and cannot tell the terminal what to do."""
    row = ps.rows_of(held.Held(1, "u", 0.0, "/x", ["x", "a\n b\x1b[2Jc\t\x9b"], [], 5, False, None))[0]
    assert row[-1] == "x 'a b?[2Jc ?'"


def test_kill_touches_nobody_else() -> None:
    """A process without a communicator is refused by its number."""
    other = subprocess.Popen(["sleep", "30"])
    try:
        ended = CliRunner().invoke(main, ["kill", "--yes", str(other.pid)])
        assert ended.exit_code == 1 and f"{other.pid}: no process of this user that holds a communicator" in ended.output
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_left_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory that NVIDIA's library left is deleted if this user owns it and nobody maps it."""
    unused, used = tmp_path / "nccl-unused", tmp_path / "nccl-used"
    for file in (unused, used):
        file.write_text("x")
    monkeypatch.setattr(kill, "FRESH", 0.0)
    monkeypatch.setattr(kill, "LEFT", str(tmp_path / "nccl-*"))
    monkeypatch.setattr(kill, "mapped_names", lambda: {str(used)})
    assert kill.clean() == [f"{unused} was left over, and is deleted"]
    assert used.exists() and not unused.exists()


def test_inspect_refuses_what_is_no_segment() -> None:
    """nickelInspect of a descriptor that is no segment, or of a process that is not there, is an error and not a crash."""
    library = pynickel.load("host")
    text, length = library.ffi.new("char[]", 100), library.ffi.new("size_t *")
    reader, writer = os.pipe()
    for pid, fd in ((os.getpid(), reader), (os.getpid(), 987), (1 << 22, 3)):
        code = library.lib.nickelInspect(pid, fd, text, 100, length)
        with pytest.raises(pynickel.NCCLError, match="segment"):
            library.check(code, "nickelInspect")
    os.close(reader)
    os.close(writer)
    assert library.lib.nickelInspect(os.getpid(), 0, library.ffi.NULL, 0, length) == pynickel.Result.INVALID_ARGUMENT


def test_inspect_survives_any_file(comm: pynickel.Communicator, tmp_path: Path) -> None:
    """nickelInspect of a file that looks like a segment but is cut short, sparse, or holds random bytes, of a device, a folder or a named
    pipe without a writer, is an error or a description: the process that looks is never stopped and never killed."""
    library = pynickel.load("host")
    found = {fd: held.inspect(library, os.getpid(), fd) for fd in held.open_files(os.getpid())[0]}
    segment = next(fd for fd, one in found.items() if one and one["nranks"] == 1)
    whole = bytearray(os.pread(segment, 1 << 20, 0))
    text, length = library.ffi.new("char[]", 1 << 16), library.ffi.new("size_t *")
    fifo, choose = tmp_path / "fifo", random.Random(1)
    os.mkfifo(fifo)

    def look(fd: int) -> int:
        return int(library.lib.nickelInspect(os.getpid(), fd, text, 1 << 16, length))

    for path in (fifo, tmp_path, "/dev/zero", "/dev/ptmx"):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        assert look(fd) == pynickel.Result.INVALID_ARGUMENT
        os.close(fd)
    fd = os.memfd_create("nickel")
    for size in (0, 100, 4096, 5000, 8191):
        os.ftruncate(fd, 0)
        os.pwrite(fd, whole[:size], 0)
        assert look(fd) == pynickel.Result.INVALID_ARGUMENT
    for _ in range(300):
        damaged = whole[:]
        for _ in range(choose.choice((1, 30, 3000))):
            damaged[choose.randrange(12, 8192)] = choose.randrange(256)
        os.pwrite(fd, damaged, 0)
        if look(fd) == pynickel.Result.SUCCESS:
            json.loads(library.ffi.string(text))
    os.close(fd)


def test_inspect_of_a_file_that_shrinks(comm: pynickel.Communicator) -> None:
    """A file that is cut and grows again while it is looked at does not kill who looks."""
    library = pynickel.load("host")
    found = {fd: held.inspect(library, os.getpid(), fd) for fd in held.open_files(os.getpid())[0]}
    segment = next(fd for fd, one in found.items() if one and one["nranks"] == 1)
    whole, fd = os.pread(segment, 1 << 14, 0), os.memfd_create("nickel")
    text, length = library.ffi.new("char[]", 1 << 12), library.ffi.new("size_t *")
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        while True:
            os.ftruncate(fd, 0)
            os.pwrite(fd, whole, 0)
    seen = [int(library.lib.nickelInspect(os.getpid(), fd, text, 1 << 12, length)) for _ in range(3000)]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    assert set(seen) <= {pynickel.Result.SUCCESS, pynickel.Result.INVALID_ARGUMENT}


def test_a_description_is_cut_to_its_room(comm: pynickel.Communicator) -> None:
    """A text that is longer than the room is cut, and its whole length is told."""
    library = pynickel.load("host")
    found = {fd: held.inspect(library, os.getpid(), fd) for fd in held.open_files(os.getpid())[0]}
    segment = next(fd for fd, one in found.items() if one and one["nranks"] == 1)
    text, length = library.ffi.new("char[]", 40), library.ffi.new("size_t *")
    library.check(library.lib.nickelInspect(os.getpid(), segment, text, 40, length), "nickelInspect")
    assert len(library.ffi.string(text)) == 39 and length[0] > 100


@pytest.mark.parametrize("how", ["works", pytest.param("hangs", marks=pytest.mark.slow)])
def test_clients_of_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A client of an MPS daemon is listed with its server, and kill has the daemon take it off the GPU before the signal; a daemon that
    hangs hinders neither for long."""
    for tool in (held, kill):
        monkeypatch.setattr(tool, "MPS_DEADLINE", 20.0)
    client = subprocess.Popen(["sleep", "60"])
    try:
        with stand_ins(tmp_path, monkeypatch) as machine:
            fine("start")
            machine.servers(s77=[client.pid])
            (found,) = held.find(pids=[client.pid])
            assert found.mps_server == 77 and found.communicators == []
            row = next(line for line in CliRunner().invoke(main, ["ps"]).output.splitlines() if line.startswith(f"{client.pid} "))
            assert "MPS client" in row and " 77 " in row and row.endswith("sleep 60")
            machine.how(how)
            if how == "hangs":
                for tool in (held, kill):
                    monkeypatch.setattr(tool, "MPS_DEADLINE", 0.2)
                assert kill.end([found], 3.0) == []
                assert client.wait(10) == -signal.SIGTERM
                machine.how("works")
            else:
                ended = CliRunner().invoke(main, ["kill", "--yes", str(client.pid)])
                assert ended.exit_code == 0 and f"{client.pid}: terminate_client of all GPUs: 0" in ended.output
                assert client.wait(10) == -signal.SIGTERM and f"terminate_client 77 {client.pid}" in machine.told
            fine("stop")
    finally:
        client.kill()
        client.wait()


def test_a_segment_that_is_not_what_it_seems(comm: pynickel.Communicator) -> None:
    """What another process owns may be anything: a file of a segment's name with a segment's first page, cut off behind it, with any
    number of ranks, or with words that mean nothing, is told of or refused, and ends nobody."""
    library = pynickel.load("host")
    fds = held.open_files(os.getpid())[0]
    fd = next(fd for fd in fds if (found := held.inspect(library, os.getpid(), fd)) and found["ranks"])
    whole = os.pread(fd, 1 << 20, 0)
    fake = os.memfd_create("nickel-fake")
    noise = os.urandom(1 << 16)
    for text in (whole, whole[:4096], whole[:100], bytes(8192), whole[:16] + noise, whole[:4096] + noise, whole[:64] + noise):
        os.ftruncate(fake, 0)
        os.pwrite(fake, text, 0)
        for place in range(0, 256, 4):  # somewhere there is the number of ranks
            os.pwrite(fake, (3).to_bytes(4, "little"), place)
            held.inspect(library, os.getpid(), fake)
            os.pwrite(fake, (0xFFFFFFF0).to_bytes(4, "little"), place)
            held.inspect(library, os.getpid(), fake)
            os.pwrite(fake, text[place : place + 4], place)
    os.close(fake)
