"""Children on other machines: what they are told and tell, and how they end; a command prefix stands for the way there."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from helpers import as_ssh
from helpers.processes import Script, no_child_left, run
from helpers.work import echo, sleep

from pynickel import parallel
from pynickel.parallel import ChildError, keeper_away

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield
        parallel.reset()


def test_children_through_a_command() -> None:
    """A remote child takes arguments of any kind, functions, messages and meetings as one on this machine does, knows its parent's
    machine, and names its own; once it is there nothing listens; when it is gone its core is free again."""
    parallel.add_remote("localhost", cores=2, command=["env"])
    children = parallel.sfork(2, {"any": "kind"})
    pids = [process.pid for process in psutil.Process().children(recursive=True)]
    for pid in [os.getpid(), *pids]:
        sockets = psutil.Process(pid).net_connections("inet")
        assert not [connection for connection in sockets if connection.status == psutil.CONN_LISTEN]
        assert {connection.laddr.ip for connection in sockets} <= {"127.0.0.1"}

    def tell() -> None:
        echo()
        parallel.send((parallel.args, parallel.parent.host, parallel.parent.pid, os.getpid()))  # type: ignore[union-attr]

    children.exec(tell)
    for number in range(20):
        children.join("go")
        children.send(np.full(1000, number))
        assert {id: (got[0], got[1], got[2][-1]) for id, got in children.receive().items()} == {
            child.id: (child.id, "go", number) for child in children
        }
    children.join("break")
    for child, told in zip(children, children.receive().values(), strict=True):
        assert told == (({"any": "kind"},), socket.gethostname(), os.getpid(), child.pid)
        assert child.name == f"child {child.id} (pid {child.pid} on localhost)"
    children.sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel.sfork(2)


def test_failures_and_ends_are_told() -> None:
    """What a remote child raises, how it exits or is killed, and what it prints on stderr, the parent is told as of any child."""

    def fail() -> None:
        raise LookupError("over there")

    cases: dict[str, Any] = {
        "on localhost\\) failed: LookupError: over there\nits traceback:": fail,
        "on localhost\\) exited with code 137 \\(ended by SIGKILL\\)": "import os; os.kill(os.getpid(), 9)",
        "exited with code 3\nits last lines on stderr:\n    first\n    last": "import os; os.write(2, b'first\\nlast\\n'); os._exit(3)",
    }
    for match, work in cases.items():
        child = parallel.fork(command="env")
        child.exec(work)
        with pytest.raises(ChildError, match=match):
            child.receive()
        child.sync()


def test_a_megabyte_on_stderr_of_a_remote_child(capfd: pytest.CaptureFixture[str]) -> None:
    """It comes out on ours and does not hold the child up."""
    child = parallel.fork(host="localhost", command="env")
    child.exec("import sys\nsys.stderr.write(('x' * 99 + '\\n') * 10486)")
    child.sync()
    assert capfd.readouterr().err == ("x" * 99 + "\n") * 10486


@pytest.mark.parametrize(
    ("command", "python", "error", "match"),
    [
        ("/nowhere/command", None, ChildError, r"child \d+ on localhost could not be started: .*No such file.*/nowhere/command"),
        ("env", "/nowhere/python", ChildError, r"exited with code 127 before it had started\nits last lines on stderr:\n.*/nowhere/python"),
        ("sh -c 'echo no way >&2; exit 255'", None, ChildError, r"exited with code 255 before it had started\n.*:\n    no way"),
        ("sh -c 'exec sleep 60'", None, TimeoutError, r"did not connect to 127.0.0.1:\d+ within 0.5 s: can localhost reach"),
    ],
)
def test_a_remote_child_that_cannot_start(command: str, python: str | None, error: type[Exception], match: str) -> None:
    """A wrong command or interpreter is an error of fork, soon, with what it wrote; one that never connects, at the deadline."""
    begun = time.monotonic()
    with pytest.raises(error, match=f"(?s){match}"):
        parallel.fork(host="localhost", command=command, python=python, timeout=0.5 if error is TimeoutError else 10)
    assert time.monotonic() - begun < 5
    assert parallel.nchildren == 0


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions travel as bytecode, so an interpreter of another version, or another pynickel, is refused with both versions."""
    monkeypatch.setattr(keeper_away, "greeting", lambda: {"Python": "2.7", "pynickel": "0"})
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(ChildError, match=rf"localhost has Python {here}, pynickel .*, and we have Python 2.7, pynickel 0; choose another"):
        parallel.fork(command="env")


def test_ssh_is_the_way_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a command ssh is called, without a password prompt; an interpreter whose path has blanks is no problem, and the key
    is in no command line."""
    log = as_ssh.install(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = tmp_path / "with blanks; and 'more'"
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    child = parallel.fork("args", host="user@localhost", python=str(python))
    child.exec(echo)
    child.join("go")
    child.send(1)
    assert child.receive() == (child.id, "go", 1)
    words = log.read_text()
    assert "-o BatchMode=yes" in words and f"-- user@localhost exec {shlex.quote(str(python))} -" in words
    assert not any(len(word) == 64 and set(word) <= set("0123456789abcdef") for word in words.split())
    child.join("break")
    child.sync()


@pytest.mark.slow
def test_no_remote_child_outlives_a_killed_parent() -> None:
    """After kill -9 of the parent its remote children, their guardians and their own children are gone, even if Python cannot run."""
    script = """
        import ctypes, os, signal, time
        from pynickel import parallel

        def work():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            parallel.nfork(1).exec("import time; time.sleep(60)")
            parallel.print("there")
            if parallel.id == 1:
                ctypes.PyDLL(None).sleep(60)
            while True:
                pass

        parallel.add_remote("localhost", cores=2, command="sh -c 'exec \\"$0\\" \\"$@\\"'")
        parallel.sfork(2).exec(work)
        time.sleep(60)
    """
    with Script(script) as running:
        while running.stdout.count("there") < 2:
            running.wait_for("there")
            time.sleep(0.05)
        assert len(running.left()) == 7  # the parent, and twice a guardian, a child and its child
        running.signal(signal.SIGKILL)
        assert running.finish(patience=6).left == []


def test_a_remote_child_is_interrupted_and_closed() -> None:
    """Ctrl-C, which the terminal sends to all, and an exception of the parent end remote children in seconds, quietly."""
    script = """
        import sys, time
        from pynickel import parallel
        children = parallel.nfork(2, host="localhost", command="env")
        children.exec("from pynickel import parallel; import time; parallel.send(1); time.sleep(60)")
        children.receive()
        print("ready", flush=True)
        children.join()
    """
    with Script(script) as running:
        running.wait_for("ready")
        running.signal(signal.SIGINT, group=True)
        result = running.finish(10)
    assert (result.returncode, result.left, result.stderr.count("Traceback")) == (-signal.SIGINT, [], 1), result.stderr
    result = run(script.replace("children.join()", "raise ValueError('mine')"))
    assert (result.returncode, result.left, result.stderr.count("Traceback")) == (1, [], 1), result.stderr
    assert result.stderr.endswith("ValueError: mine\n") and result.seconds < 10


def test_fork_has_a_deadline() -> None:
    """fork, nfork, sfork and run take a timeout; at the deadline no process is left."""
    calls: list[Callable[[], object]] = [
        lambda: parallel.fork(command="sh -c 'exec sleep 60'", timeout=0.2),
        lambda: parallel.nfork(2, command="sh -c 'exec sleep 60'", timeout=0.2),
    ]
    for call in calls:
        with pytest.raises(TimeoutError, match="did not connect"):
            call()
    parallel.sfork(1, timeout=10)
    parallel.run(sleep, timeout=10)


@pytest.mark.slow
def test_what_a_command_has_started_is_killed_with_it() -> None:
    """When a command must be killed nothing is left of what it has started here, whether its child came or not."""
    script = r"""
        import signal, time
        from pynickel import parallel
        try:
            parallel.fork(command="sh -c 'sleep 50; true'", timeout=0.5)
        except TimeoutError as error:
            print("did not connect" in str(error))

        def stubborn():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            parallel.send("here")
            time.sleep(50)

        child = parallel.fork(command=["sh", "-c", 'trap "" TERM; sleep 50 & exec "$@"', "sh"])
        child.exec(stubborn)
        child.receive()
        parallel.close(timeout=0.5)
    """
    result = run(script)
    assert (result.stdout, result.returncode, result.left) == ("True\n", 0, []), result.stderr
