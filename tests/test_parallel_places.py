"""Where children run and how they come in: the door and its key, dealing, speeds, commands, addresses, and beginning anew."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from helpers.order import SOON
from helpers.processes import no_child_left

from pynickel import parallel
from pynickel.parallel import Remote, address, door
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.remote import deal, relative

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield
        parallel.reset()


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
    resolve = socket.getaddrinfo

    def known(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "name.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")  # at once, whatever this machine's resolver does
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", known)
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
    assert (child.exitcode, time.monotonic() - begun < SOON) == (-signal.SIGKILL, True)
    for wrong in (-1, "1", None):
        with pytest.raises((TypeError, ValueError), match="timeout must be"):
            parallel.close(timeout=wrong)  # type: ignore[arg-type]
