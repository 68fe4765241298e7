"""Children that fail, end or cannot start, and what the parent is told."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.order import SOON
from helpers.processes import no_child_left
from helpers.work import echo, sleep

from pynickel import parallel
from pynickel.parallel import ChildError, link

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield


def test_a_failure_ends_the_wait_for_another_child() -> None:
    """While the parent joins a child that sleeps, another one raises: ChildError, at once, with its traceback."""

    def fail() -> None:
        def inner() -> None:
            raise ValueError("wrong number: 7")

        parallel.yield_()
        parallel.receive()
        time.sleep(0.3)
        inner()

    failing, sleeping = parallel.fork(), parallel.run(sleep)
    failing.exec(fail)
    failing.join()
    begun = time.monotonic()
    with pytest.raises(ChildError) as caught:
        failing.send(None)
        sleeping.join("hello")
    assert time.monotonic() - begun < SOON
    error = caught.value
    assert (error.id, error.pid) == (failing.id, failing.pid)
    assert str(error).startswith(f"child {failing.id} (pid {failing.pid}) failed: ValueError: wrong number: 7\nits traceback:\n")
    assert f'File "{__file__}"' in error.traceback
    assert "in inner" in error.traceback
    assert "worker.py" not in error.traceback


@pytest.mark.parametrize("wait", ["receive", "sync", "send", "nfork", "join all"])
def test_a_failure_ends_any_wait(wait: str) -> None:
    """Whatever the parent does with other children, it learns of a failure."""
    other, failing = parallel.run(sleep), parallel.fork()
    calls: dict[str, Callable[[], object]] = {
        "receive": other.receive,
        "sync": other.sync,
        "send": lambda: other.send(1),
        "nfork": lambda: parallel.nfork(1),
        "join all": parallel.children.join,
    }
    failing.exec("1 / 0")
    if wait in ("send", "nfork"):  # these do not wait by themselves
        while failing.failure is None:
            time.sleep(0.01)
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        calls[wait]()


def test_a_failure_is_told_once_and_the_others_go_on() -> None:
    """After its ChildError a failed child raises it again when asked itself; the others work as before."""
    other, failing = parallel.run(echo), parallel.run("1 / 0")
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        failing.sync()
    other.join("go")
    other.send(1)
    assert other.receive() == (other.id, "go", 1)
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        failing.receive()
    failing.sync()
    assert list(parallel.children) == [other.id]


@pytest.mark.slow
def test_a_cause_is_told_before_what_follows_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that fails because it lost somebody, and is first to say so, is told after the one that failed by itself; when nobody else
    fails, it is told half a second later, or at the wait's own deadline."""
    lonely, failing = parallel.nfork(2)
    sleeping = parallel.run(sleep)
    with monkeypatch.context() as patch:
        patch.setattr(link, "_CAUSE", 20)  # the cause comes within it, however busy the machine
        lonely.exec("raise ConnectionError('my peer is gone')")
        failing.exec("from pynickel import parallel\nparallel.receive()\nraise ValueError('it was me')")
        while lonely.failure is None:
            time.sleep(0.005)
        failing.send(None)
        for match, follows in (("ValueError: it was me", False), ("ConnectionError: my peer is gone", True)):
            with pytest.raises(ChildError, match=match) as caught:
                lonely.receive()
            assert caught.value.follows is follows
            link.news.hold = 0.0
    for timeout in (10, 0.2):
        lonely = parallel.run("raise ConnectionError('my peer is gone')")
        while lonely.failure is None:
            time.sleep(0.005)
        with pytest.raises(ChildError, match="ConnectionError: my peer is gone"):
            (lonely if timeout > 1 else sleeping).receive(timeout=timeout)
    lonely = parallel.run("raise ConnectionError('my peer is gone')")
    while lonely.exitcode is None:
        time.sleep(0.005)
    with pytest.raises(ChildError, match="ConnectionError: my peer is gone"):
        lonely.send(bytes(1000))


def test_a_failure_is_not_lost_when_nobody_waits() -> None:
    """close raises a failure that no wait has raised, after all children have ended."""
    _, failing = parallel.run(sleep), parallel.run("1 / 0")
    while failing.failure is None:
        time.sleep(0.01)
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        parallel.close()
    assert parallel.nchildren == 0


def test_close_does_not_hide_another_exception(capfd: pytest.CaptureFixture[str]) -> None:
    """In a `finally` of another exception close prints the failure instead."""
    failing = parallel.run("1 / 0")
    while failing.failure is None:
        time.sleep(0.01)
    with pytest.raises(KeyError, match="mine"):
        try:
            raise KeyError("mine")
        finally:
            parallel.close()
    assert capfd.readouterr().err.count("ZeroDivisionError: division by zero") == 2  # headline and traceback


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("import os; os._exit(0)", "exited with code 0"),
        ("import sys; sys.exit('no more')", "exited with code 1\nits last lines on stderr:\n    no more"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("import os; os.write(2, b'one\\ntwo\\n'); os._exit(4)", "exited with code 4\nits last lines on stderr:\n    one\n    two"),
        ("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", "exited with code 143 (ended by SIGTERM)"),
        (
            "import atexit, os; atexit.register(os._exit, 5)",
            "exited with code 5 after its work had returned",
        ),
    ],
    ids=["exit", "_exit", "exit text", "killed", "stderr", "terminated", "late"],
)
def test_an_end_is_reported(code: str, end: str) -> None:
    """A child that ends by itself or by a signal is reported at once, with how, and its last lines on stderr."""
    sleeping, ending = parallel.run(sleep), parallel.run(code)
    begun = time.monotonic()
    with pytest.raises(ChildError) as caught:
        sleeping.receive()
    assert time.monotonic() - begun < SOON
    assert str(caught.value) == f"child {ending.id} (pid {ending.pid}) {end}"
    assert caught.value.exitcode == ending.exitcode


def test_a_crash_in_c_shows_where() -> None:
    """A child that crashes outside Python is reported with its signal and the Python lines that led there."""
    with pytest.raises(ChildError, match=r"(?s)was killed by SIGSEGV\nits last lines.*line 2 in <module>"):
        parallel.run("import ctypes\nctypes.string_at(0)").sync()


def test_leaving_early_without_error_is_no_failure() -> None:
    """sys.exit(0) ends a child as a return does; asking it for more says that it has ended."""
    child = parallel.run("import sys\nfrom pynickel import parallel\nparallel.send(1)\nsys.exit(0)")
    child.sync()
    assert child.receive() == 1
    with pytest.raises(ChildError, match="did not send anything: it exited with code 0"):
        child.receive()
    calls: list[Callable[[], object]] = [child.join, lambda: child.send(1)]
    for call in calls:
        with pytest.raises(ChildError, match="did not take a message: it exited with code 0"):
            call()
    assert parallel.nchildren == 0


@pytest.mark.parametrize(
    ("interpreter", "message"),
    [
        ("/nowhere/python", "could not be started: .*No such file or directory: '/nowhere/python'"),
        ("/etc/passwd", "could not be started: .*Permission denied: '/etc/passwd'"),
        ("", "could not be started: sys.executable is empty"),
        ("/bin/false", "exited with code 1 before it had started"),
        ("/bin/ls", r"exited with code 2 before it had started\nits last lines on stderr:\n    /bin/ls: "),
    ],
)
def test_an_interpreter_that_cannot_start(monkeypatch: pytest.MonkeyPatch, interpreter: str, message: str) -> None:
    """A wrong interpreter is an error within two seconds, with what it wrote."""
    monkeypatch.setattr(sys, "executable", interpreter)
    begun = time.monotonic()
    with pytest.raises(ChildError, match=message):
        parallel.run(sleep).sync()
    assert time.monotonic() - begun < SOON


def test_a_megabyte_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever a child writes on stderr comes out on ours, and does not hold the child up."""
    child = parallel.run("import sys\nsys.stderr.write(('x' * 99 + '\\n') * 10486)")
    child.sync()
    assert capfd.readouterr().err == ("x" * 99 + "\n") * 10486


def test_what_a_child_cannot_load_is_its_error() -> None:
    """When the child cannot rebuild an argument, the parent gets the reason."""

    class Wrong:
        def __reduce__(self) -> tuple[Any, ...]:
            return (eval, ("1 / 0",))

    with pytest.raises(ChildError, match="ZeroDivisionError"):
        parallel.run("pass", Wrong()).sync()
