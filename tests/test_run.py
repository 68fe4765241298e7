"""`pynickel run`: ranks of one machine, whose output is whose, and one end for all of them, however it comes."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from helpers.processes import Result, Script

from pynickel.tools import run as module
from pynickel.tools.cli import main
from pynickel.tools.lines import Lines

MAIN = "from pynickel.tools.cli import main\nmain(prog_name='pynickel')\n"
PATIENT = "from pynickel.tools import keep, lines\nkeep._OWN_STORY = lines._HOLD = 20.0  # seconds\n"


def start(*arguments: str, before: str = "", **env: str) -> Script:
    """`pynickel run` with these arguments, after some Python of the test's own."""
    return Script(before + MAIN, "run", *arguments, env=env)


def run(*arguments: str, before: str = "", **env: str) -> Result:
    """The same, to its end; no process may be left."""
    with start(*arguments, before=before, **env) as script:
        result = script.finish(30)
    assert result.left == []
    return result


def test_what_each_rank_is_told() -> None:
    """Each rank has its rank and size, global and local, one free port and one secret key for all, and nothing of an outer launcher's."""
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT PYNICKEL_KEY TORCHELASTIC_RUN_ID PYNICKEL_LAUNCHER "
        "OMPI_COMM_WORLD_RANK SLURM_PROCID"
    )
    command = "echo " + " ".join(f"${{{name}-none}}" for name in names.split())
    outer = {"TORCHELASTIC_RUN_ID": "x", "PYNICKEL_LAUNCHER": "single", "RANK": "7", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "2"}
    result = run("-n", "3", "--", "sh", "-c", command, **outer)
    assert (result.returncode, result.stderr) == (0, "")
    lines = sorted(line.split() for line in result.stdout.splitlines())
    assert [line[:6] for line in lines] == [[f"[{rank}]", str(rank), str(rank), "3", "3", "127.0.0.1"] for rank in range(3)]
    assert len({tuple(line[6:8]) for line in lines}) == 1 and [line[8:] for line in lines] == [["none"] * 4] * 3
    port, key = lines[0][6:8]
    assert len(key) == 64 and 15000 <= int(port) < 65536
    assert len({module.free_port() for _ in range(20)}) > 10
    with socket.create_server(("127.0.0.1", int(port))):
        pass  # it is free


def test_one_session() -> None:
    """Ranks have process groups of their own in one session, since Linux hands a core over to the next rank within a session only."""
    told = "import os; print(os.getpgrp() == os.getpid(), os.getsid(0))"
    lines = run("-n", "3", "--no-prefix", sys.executable, "-c", told).stdout.splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1 and lines[0].startswith("True ")


def test_output() -> None:
    """Lines of both outputs go to the same outputs with the rank before them, without a prefix on wish; nothing is cut off or mixed."""
    command = "echo out$RANK; echo err$RANK >&2; printf part$RANK; head -c 300000 /dev/zero | tr '\\0' x; echo; printf end"
    for option, prefix in (("--prefix", "[{}] "), ("--no-prefix", "")):
        result = run("-n", "2", option, "sh", "-c", command)
        wanted = [f"{prefix.format(r)}{line}" for r in range(2) for line in (f"out{r}", f"part{r}" + "x" * 300_000, "end")]
        assert result.returncode == 0 and sorted(result.stderr.splitlines()) == [f"{prefix.format(r)}err{r}" for r in range(2)]
        assert sorted(result.stdout.splitlines()) == sorted(wanted)


def test_exception_in_one_rank() -> None:
    """Scenario 47: rank 1 of 3 raises between two all-reduces: its traceback shows once, as the cause, though others may end first."""
    program = """
import sys
from pynickel import rendezvous, uint8
with rendezvous.init(timeout=20) as comm:
    comm.all_reduce(bytearray(1), dtype=uint8)
    if comm.rank == 1:
        raise ValueError("number one")
    comm.all_reduce(bytearray(1), dtype=uint8)
"""
    result = run("-n", "3", sys.executable, "-c", program, before=PATIENT)
    assert result.returncode == 1 and result.seconds < 15
    assert result.stderr.count("ValueError: number one") == 1
    report = result.stderr[result.stderr.index("pynickel run: ") :]
    assert report.startswith("pynickel run: rank 1 of 3 (pid ") and "failed with exit status 1; its last lines:" in report
    assert "ValueError: number one" in report
    assert result.stderr.count("RemoteError:") == 2 and "rank 1 (pid" in result.stderr


def test_first_failure_ends_all() -> None:
    """The first failure's rank, exit status and last lines are reported; ranks and children of theirs that ignore SIGTERM are killed."""
    result = run("-n", "3", "--grace", "0.2", "sh", "-c", "trap '' TERM; [ $RANK = 2 ] && { echo why >&2; exit 3; }; sleep 60 & sleep 60")
    assert result.returncode == 3 and result.seconds < 15
    assert "pynickel run: rank 2 of 3 (pid " in result.stderr
    assert result.stderr.endswith("failed with exit status 3; its last lines:\n  why\n")


@pytest.mark.parametrize("name", ["KILL", "SEGV"])
def test_rank_that_is_killed(name: str) -> None:
    """A rank that a signal ends is reported with the signal's name, and the exit status is that of a shell."""
    result = run("-n", "2", "sh", "-c", f"[ $RANK = 1 ] && kill -{name} $$; exit 0")
    assert result.returncode == 128 + signal.Signals[f"SIG{name}"] and result.stderr.endswith(f"was ended by SIG{name}\n")


def test_ranks_end_softly(tmp_path: Path) -> None:
    """After a failure the others get SIGTERM, and what they say then is shown."""
    zero = "until [ -e $READY ]; do sleep 0.05; done; exit 5"
    one = "trap 'echo goodbye; exit 0' TERM; touch $READY; while :; do sleep 0.05; done"
    result = run("-n", "2", "sh", "-c", f"if [ $RANK = 0 ]; then {zero}; fi; {one}", READY=str(tmp_path / "ready"))
    assert result.returncode == 5 and "[1] goodbye" in result.stdout


def test_command_that_cannot_start(tmp_path: Path) -> None:
    """Scenario 49: a wrong interpreter, a file that is no program, or a syntax error ends the run at once with the reason."""
    result = run("-n", "2", "/nowhere/python")
    assert result.returncode == 127 and "'/nowhere/python' cannot be started: No such file or directory" in result.stderr
    script = tmp_path / "train.py"
    script.write_text("syntax error\n")
    result = run("-n", "2", str(script))
    assert result.returncode == 126 and f"a Python program is started by: python {script}" in result.stderr
    result = run("-n", "2", sys.executable, str(script))
    assert result.returncode == 1 and "SyntaxError" in result.stderr[result.stderr.index("pynickel run: rank ") :]


@pytest.mark.parametrize("limit", [30, 31])
def test_too_many_ranks_for_the_descriptors(limit: int) -> None:
    """When descriptors run out, at whichever call, the run ends with the reason and how many it needs, and the ranks that were there."""
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n{MAIN}"
    with Script(limited, "run", "-n", "40", "sleep", "60") as script:
        result = script.finish(30)
    assert result.left == [] and result.returncode == 126 and result.stdout == ""
    assert result.stderr == "pynickel run: 'sleep' cannot be started: Too many open files; 40 ranks need 80 and a few more: ulimit -n\n"


def test_rank_that_ends_before_it_has_come() -> None:
    """Scenario 49: a rank that ends with status 0 before it has joined is missing at the deadline of the others, and named."""
    program = "import os, sys\nif os.environ['RANK'] == '1': sys.exit()\nfrom pynickel import rendezvous\nrendezvous.init(timeout=1)"
    result = run("-n", "2", sys.executable, "-c", program)
    assert result.returncode == 1 and "WaitTimeoutError" in result.stderr and "missing: rank 1" in result.stderr


def test_signals_are_passed_on_once() -> None:
    """Scenario 52: a signal reaches each rank once, from a terminal too; a program that answers SIGINT well ends the run with status 0."""
    command = "trap 'echo usr1' USR1; trap 'echo int; exit 0' INT; echo up; while :; do sleep 0.05; done"
    with start("-n", "2", "sh", "-c", command) as script:
        script.wait_for("[0] up")
        script.wait_for("[1] up")
        script.signal(signal.SIGUSR1)
        script.wait_for("[0] usr1")
        script.wait_for("[1] usr1")
        script.signal(signal.SIGINT, group=True)
        result = script.finish()
    assert result.returncode == 0 and result.left == []
    assert sorted(result.stdout.split("\n")) == sorted(["", *[f"[{rank}] {word}" for rank in range(2) for word in ("up", "usr1", "int")]])


def test_interrupt() -> None:
    """Ctrl-C ends Python ranks with their KeyboardInterrupt and the run with status 130; stubborn ranks are killed by a second one."""
    with start("-n", "2", sys.executable, "-c", "import time; print('up'); time.sleep(60)") as script:
        script.wait_for("[0] up")
        script.wait_for("[1] up")
        script.signal(signal.SIGINT, group=True)
        result = script.finish()
    assert result.returncode == 130 and result.left == [] and result.stderr.count("KeyboardInterrupt\n") == 2
    stubborn = "trap '' INT; trap 'echo no' TERM; echo up; while :; do sleep 0.05; done"
    with start("-n", "1", "--grace", "60", "sh", "-c", stubborn) as script:
        script.wait_for("[0] up")
        script.signal(signal.SIGTERM)
        script.wait_for("[0] no")  # two that come at once are one
        script.signal(signal.SIGTERM)
        result = script.finish()
    assert result.returncode == 137 and result.left == []


def test_nothing_is_left_when_it_is_killed() -> None:
    """When the command, or the process that keeps the ranks for it, is killed by signal 9, all ranks and what they started are gone."""
    orphan = "(setsid sleep 60 &) ; sleep 60 & echo up; wait"
    for victim in ("command", "keeper"):
        with start("-n", "2", "sh", "-c", orphan) as script:
            script.wait_for("[0] up")
            script.wait_for("[1] up")
            (keeper,) = psutil.Process(script.process.pid).children()
            os.kill(script.process.pid if victim == "command" else keeper.pid, signal.SIGKILL)
            result = script.finish()
        assert result.left == [] and result.returncode == {"command": -9, "keeper": 137}[victim]


def test_nothing_is_left_behind_by_ranks() -> None:
    """What a rank has started in the background ends with the run, even if it holds the output open or has left its session."""
    result = run("-n", "2", "sh", "-c", "(setsid sleep 60 &); sleep 60 & echo done")
    assert result.returncode == 0 and sorted(result.stdout.split("\n")) == ["", "[0] done", "[1] done"] and result.seconds < 15


def test_reader_that_goes_away(tmp_path: Path) -> None:
    """When nobody reads the output any more, the ranks still come to their end."""
    read, write = os.pipe()
    mark = tmp_path / "done"
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", MAIN, "run", "-n", "1", "sh", "-c", f"sleep 0.3; seq 20000; touch {mark}"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_CLOSE, read)],
    )
    os.close(write)
    os.close(read)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and mark.exists()


def test_reader_that_does_not_read() -> None:
    """When our output is full and nobody reads it, signals still end the run."""
    read, write = os.pipe()
    command = [sys.executable, "-c", MAIN, "run", "-n", "2", "--grace", "0.5", "yes"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write, stderr=write)
    try:
        poll = select.poll()
        poll.register(read, select.POLLIN)
        assert poll.poll(20_000)
        time.sleep(0.3)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        os.close(write)
        os.close(read)


def test_nothing_is_left_when_it_is_killed_and_nobody_reads() -> None:
    """When the command is killed by signal 9 while its output is full and nobody reads it, its ranks are gone all the same."""
    read, write = os.pipe()
    with Script(f"import os\nos.dup2({write}, 1)\n{MAIN}", "run", "-n", "2", "yes", pass_fds=(write,)) as script:
        os.close(write)
        poll = select.poll()
        poll.register(read, select.POLLIN)
        assert poll.poll(20_000)
        time.sleep(0.3)
        script.process.kill()
        result = script.finish()
    os.close(read)
    assert result.left == []


def test_terminal_that_stops_background_output() -> None:
    """Under `stty tostop` the output still comes, though what writes it is no foreground process."""
    program = f"""
        import os, pty, sys, termios
        pid, terminal = pty.fork()
        if pid == 0:
            modes = termios.tcgetattr(1)
            modes[3] |= termios.TOSTOP
            termios.tcsetattr(1, termios.TCSANOW, modes)
            os.execv(sys.executable, [sys.executable, "-c", {MAIN!r}, "run", "-n", "1", "echo", "hello"])
        print(os.read(terminal, 1000).decode().strip())
    """
    with Script(program) as script:
        script.wait_for("[0] hello")


def test_ignored_signals(tmp_path: Path) -> None:
    """A signal that is ignored from the start, as under nohup, stays so, here and in the ranks."""
    ignoring = f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{MAIN}"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = f"echo up; read word < {fifo}; echo end"
    with open(fifo, "r+b", buffering=0) as pipe, Script(ignoring, "run", "-n", "1", "sh", "-c", command) as script:
        script.wait_for("up")
        for process in [script.process, *psutil.Process(script.process.pid).children(recursive=True)]:
            process.send_signal(signal.SIGHUP)
        pipe.write(b"go on\n")
        result = script.finish()
    assert (result.returncode, result.left) == (0, []) and "end" in result.stdout


def test_usage() -> None:
    """Help says what runs on several machines; a missing or impossible number of ranks, or no command, is a usage error."""
    shown = CliRunner().invoke(main, ["run", "--help"])
    assert shown.exit_code == 0 and all(word in shown.output for word in ("torchrun", "mpirun", "srun"))
    for arguments in (["run", "true"], ["run", "-n", "0", "true"], ["run", "-n", "two", "true"], ["run", "-n", "2"]):
        assert CliRunner().invoke(main, arguments).exit_code == 2


def test_traceback_that_is_not_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback is held until the rank ends or goes on for a second; it is the rank's last lines, or is shown late."""
    lines = Lines("[3] ", 1)
    now = time.monotonic()
    lines.take(b"before\nTraceback (most recent call last):\n  some line\nError: x\npart")
    assert capfd.readouterr().out == "[3] before\n"
    assert lines.last() == ["Traceback (most recent call last):", "  some line", "Error: x", "part"]
    lines.release(now)
    assert capfd.readouterr().out == ""
    lines.release(now + 60)
    assert capfd.readouterr().out == "[3] Traceback (most recent call last):\n[3]   some line\n[3] Error: x\n"
    lines.take(b"ial\n")
    lines.end()
    assert capfd.readouterr().out == "[3] partial\n" and lines.last()[-1] == "partial"
