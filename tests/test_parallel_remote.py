"""Children on other machines: how they come in, who gets which machine, and how they end; a command prefix stands for the way there."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
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
from pynickel.parallel import ChildError, Remote, address, door, keeper_away
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.remote import deal, relative

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


def test_only_who_has_the_key_comes_in(caplog: pytest.LogCaptureFixture) -> None:
    """Strangers who say nothing, too much, or answer with a wrong key are told a random number and no more, are logged, and keep
    nobody out; a listener without the key is refused by the child."""
    opened = door.Door("127.0.0.1")
    strangers = [socket.create_connection((opened.ip, opened.port)) for _ in range(20)]
    strangers[1].sendall(bytes(1000))
    found: list[object] = []

    def child() -> None:
        with pytest.raises(ConnectionError, match="closed before both sides had proved"):
            door.knock(opened.ip, opened.port, bytes(32), 5)
        found.append(door.knock(opened.ip, opened.port, opened.key, 5))

    thread = threading.Thread(target=child)
    thread.start()
    admitted = opened.admit(Deadline(10), lambda: None)
    thread.join(10)
    opened.close()
    theirs = found[0]
    assert isinstance(theirs, socket.socket) and theirs.getsockname() == admitted.getpeername()
    for stranger in strangers:
        stranger.settimeout(5)
        try:
            assert len(stranger.recv(4096)) in (0, 32) and stranger.recv(4096) == b""
        except ConnectionResetError:
            continue  # it was turned away with its words unread
        finally:
            stranger.close()
    assert sum("does not have the key" in record.getMessage() for record in caplog.records) >= 2
    for connection in (admitted, theirs):
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((opened.ip, opened.port))

    with socket.create_server(("127.0.0.1", 0)) as false:

        def pretend() -> None:
            connection, _ = false.accept()
            with connection:
                connection.sendall(bytes(32))
                connection.recv(64)
                connection.sendall(bytes(32))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ConnectionError, match="does not have the key"):
            door.knock(*false.getsockname(), bytes(32), 5)
        thread.join(10)


def test_nobody_comes() -> None:
    """A door that nobody comes to, or only people who say nothing, ends at the deadline."""
    opened = door.Door("127.0.0.1")
    silent = socket.create_connection((opened.ip, opened.port))
    with pytest.raises(TimeoutError):
        opened.admit(Deadline(0.3), lambda: None)
    opened.close()
    silent.close()


def test_dealing() -> None:
    """Processes go round the machines as long as these have free cores; beyond that all take more, with one warning."""
    a, b, c = Remote("a", 1), Remote("b", 3), Remote("c", 2)

    def dealt(n: int, *used: Remote) -> str:
        return "".join(machine.host for machine in deal(n, [a, b, c], used))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [dealt(n) for n in (0, 1, 4, 6)] == ["", "a", "abcb", "abcbcb"]
        assert dealt(3, a, b, a) == "bcb"
    with pytest.warns(RuntimeWarning, match=r"8 processes for 6 free cores of the remote machines \(a: 1, b: 3, c: 2\): 2 must share"):
        assert dealt(8) == "abcbcbab"
    with pytest.warns(RuntimeWarning, match="2 must share"):
        assert dealt(2, a, b, b, b, c, c, a) == "ab"


def test_calibrating() -> None:
    """Speeds are relative to the fastest machine, children inherit them, and without machines there is nothing to compare."""
    assert relative([2.0, 1.0, 4.0, 1000.0]) == [0.5, 1.0, 0.25, 0.01]
    with pytest.raises(ValueError, match="measured no time"):
        relative([1.0, 0.0])
    with pytest.raises(RuntimeError, match="call add_remote first"):
        parallel.calibrate()
    one, two = parallel.add_remote("localhost", command="env"), parallel.add_remote("localhost", command="env")
    with pytest.raises(ValueError, match="repetitions must be"):
        parallel.calibrate(0)
    assert parallel.calibrate(50) == (one, two) == parallel.remotes
    assert max(one.speed, two.speed) == 1 and min(one.speed, two.speed) > 0
    assert parallel.nchildren == 0
    one.speed = 0.5
    assert [child.speed for child in parallel.sfork(2)] == [0.5, two.speed]
    assert parallel.fork().speed == 1


def test_where_children_are_forked() -> None:
    """Without remotes sfork forks here; fork and nfork take a host's name, a Remote, or a dict of both, and what add_remote was
    told of a host counts where the call says nothing."""
    assert [child.host for child in parallel.sfork(1)] == [None]
    here = parallel.add_remote("localhost", command="env")
    children = parallel.nfork({"localhost": 1, here: 1})
    assert [child.host for child in children] == ["localhost"] * 2 and children[0].remote is here
    assert parallel.fork(host="localhost").remote is here
    with pytest.raises(ValueError, match="given hosts twice"):
        parallel.nfork({"localhost": 1}, host="localhost")
    with pytest.raises(TypeError, match="nfork on 'localhost' needs a number of children, not 'two'"):
        parallel.nfork({"localhost": "two"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="sfork needs a number of children"):
        parallel.sfork(1.5)  # type: ignore[arg-type]


def test_words_of_the_command() -> None:
    """A command is a text or a list of words; {host} stands for the host."""
    assert Remote("node1", command="ssh -p 2222 {host}", python="/usr/bin/python3").starting() == [
        "ssh", "-p", "2222", "node1", "/usr/bin/python3", "-"
    ]  # fmt: skip
    assert Remote("node1", command=["ip", "netns", "exec", "h 1"]).starting() == ["ip", "netns", "exec", "h 1", sys.executable, "-"]
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, "host must be", lambda: parallel.add_remote("")),
        (ValueError, "host must be the name or address of a machine, not '-oX=y'", lambda: parallel.add_remote("-oX=y")),
        (ValueError, "cores must be 1 or more for a, not 0", lambda: parallel.add_remote("a", cores=0)),
        (TypeError, "cores must be a number", lambda: parallel.add_remote("a", cores=1.5)),  # type: ignore[arg-type]
        (TypeError, "command must be the words", lambda: parallel.add_remote("a", command="")),
        (TypeError, "command must be the words", lambda: parallel.add_remote("a", command=["env", 3])),  # type: ignore[list-item]
        (ValueError, "python must be the path", lambda: parallel.add_remote("a", python="")),
    ]
    for error, match, call in wrong:
        with pytest.raises(error, match=match):
            call()
    assert parallel.remotes == ()


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """parallel.ip is loopback until autoip or the program sets it; an unknown interface is named with those that there are; a host
    that nobody knows the way to means a warning, and loopback."""
    assert parallel.ip == "127.0.0.1"
    with pytest.warns(RuntimeWarning, match="no address was found, parallel.ip stays 127.0.0.1"):
        assert parallel.autoip("lo") == "127.0.0.1"  # which is never found: it is for nobody else
    with pytest.raises(ValueError, match="this machine has no interface 'nix0'; it has .*lo"):
        parallel.autoip(["lo", "nix0"])
    monkeypatch.setattr(address, "of_interfaces", lambda names: "192.0.2.7" if names is None else None)
    assert parallel.autoip() == parallel.ip == "192.0.2.7"
    with pytest.warns(RuntimeWarning, match="no address was found, parallel.ip stays 192.0.2.7"):
        assert parallel.autoip("lo") == "192.0.2.7"
    for wrong in ("0.0.0.0", "::", "node1", ""):
        with pytest.raises(ValueError, match="parallel.ip must be"):
            parallel.ip = wrong
    parallel.ip = "127.0.0.2"
    child = parallel.fork(host="localhost", command="env")
    assert child.channel._socket.getsockname()[0] == "127.0.0.2"
    parallel.reset()
    assert parallel.ip == "127.0.0.1"
    assert address.facing("127.0.0.1") == "127.0.0.1" and address.facing("name.invalid") is None
    monkeypatch.setattr(address, "of_interfaces", lambda names: None)
    with pytest.warns(RuntimeWarning, match="no way to 'name.invalid' is known here"):
        assert parallel.fork(host="name.invalid", command="env").host == "name.invalid"
    monkeypatch.setattr(address, "of_interfaces", lambda names: "127.0.0.3")
    assert parallel.fork(host="name.invalid", command="env").channel._socket.getsockname()[0] == "127.0.0.3"
    parallel.ip = "192.0.2.77"
    with pytest.raises(OSError, match="no child can come in at 192.0.2.77: .*; set parallel.ip to an address of this machine"):
        parallel.fork(host="localhost", command="env")
    assert parallel.nchildren == 2


def test_reset() -> None:
    """reset ends the children, gives ids from 1 again, and forgets machines and address; close(timeout=) kills what does not end in it."""
    parallel.add_remote("localhost", command="env")
    children = parallel.nfork(2)
    parallel.reset()
    assert not any(psutil.pid_exists(child.pid) for child in children)
    assert (parallel.nchildren, parallel.remotes, parallel.ip) == (0, (), "127.0.0.1")

    def stubborn() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        parallel.send(1)
        time.sleep(60)

    child = parallel.run(stubborn)
    assert child.id == 1
    child.receive()
    begun = time.monotonic()
    parallel.close(timeout=0.2)
    assert (child.exitcode, time.monotonic() - begun < 1.5) == (-signal.SIGKILL, True)
    for wrong in (-1, "1", None):
        with pytest.raises((TypeError, ValueError), match="timeout must be"):
            parallel.close(timeout=wrong)  # type: ignore[arg-type]


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
