"""How programs that use pynickel.parallel end, by themselves or by force, and that no process is left of them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.processes import Script, run

pytestmark = pytest.mark.timeout(30)

SLEEPERS = """
    import os, sys, time
    from pynickel import parallel

    def sleep():
        parallel.send("here")
        time.sleep(60)
"""


def slow(*values: object) -> list[Any]:
    """More cases of the same, for the slow tests."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("busy", ["ctypes.PyDLL(None).sleep(60)", *slow("while True: pass", "time.sleep(60)", "parallel.yield_(60)")])
def test_no_child_outlives_a_killed_parent(busy: str) -> None:
    """After kill -9 of the parent its children and theirs are gone, also those that never let Python run."""
    script = f"""
        import ctypes, signal, time
        from pynickel import parallel

        def work():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            parallel.print("there")
            {busy}

        def middle():
            parallel.nfork(2).exec(work)
            work()

        parallel.nfork(2).exec(middle)
        time.sleep(60)
    """
    with Script(script) as running:
        while running.stdout.count("there") < 6:
            running.wait_for("there")
            time.sleep(0.05)
        assert len(running.left()) == 7
        running.signal(signal.SIGKILL)
        assert running.finish().left == []


def test_children_say_that_their_parent_was_killed() -> None:
    """What a killed parent cannot say any more its children say, on the stderr that was the parent's."""
    with Script(
        """
        import os, time
        from pynickel import parallel
        parallel.nfork(3).exec("from pynickel import parallel; import time; parallel.send('here'); time.sleep(60)")
        parallel.children.receive()
        print("ready", flush=True)
        time.sleep(60)
        """
    ) as running:
        running.wait_for("ready")
        running.signal(signal.SIGKILL)
        ended = running.finish()
    said = [f"because its parent (pid {running.process.pid}) has ended" in line for line in ended.stderr.splitlines()]
    assert (said, ended.left) == ([True] * 3, []), ended.stderr


@pytest.mark.parametrize("delay", [0.04, *slow(0, 0.01, 0.02, 0.08)])
def test_no_child_outlives_a_parent_killed_early(delay: float) -> None:
    """The same when the parent dies while its children are starting."""
    script = """
        import time
        from pynickel import parallel
        children = parallel.nfork(4)
        print("forked", flush=True)
        children.exec("import time; time.sleep(60)")
        time.sleep(60)
    """
    with Script(script) as running:
        running.wait_for("forked")
        time.sleep(delay)
        running.signal(signal.SIGKILL)
        assert running.finish().left == []


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(signal.SIGHUP, signal.SIGQUIT)])
def test_no_child_outlives_a_parent_ended_by_a_signal(number: signal.Signals) -> None:
    """A parent that a signal ends, without Python's clean-up, leaves no child."""
    script = SLEEPERS + """
    parallel.nfork(2).exec(sleep)
    print(parallel.children.receive(), flush=True)
    time.sleep(60)
    """
    with Script(script) as running:
        running.wait_for("here")
        running.signal(number)
        assert running.finish().left == []


def test_a_parent_that_raises_ends_its_children() -> None:
    """A program that ends with an exception, and never calls close, leaves no process and shows one traceback."""
    result = run(SLEEPERS + "    parallel.nfork(3).exec(sleep)\n    parallel.children.receive()\n    raise ValueError('mine')")
    assert result.returncode == 1
    assert result.left == []
    assert result.seconds < 15
    assert result.stderr.count("Traceback") == 1
    assert result.stderr.endswith("ValueError: mine\n")


def test_an_exception_in_one_child_ends_the_program() -> None:
    """One of three children raises: exit status 1 within five seconds, its traceback shown once, no process left."""
    script = SLEEPERS + """
    def fail():
        raise ValueError("rank 1 is wrong")

    children = parallel.nfork(3)
    children[1:].exec(sleep)
    children[0].exec(fail)
    children.join("all")
    """
    result = run(script)
    assert result.returncode == 1
    assert result.left == []
    assert result.seconds < 15
    assert result.stderr.count("in fail\n") == 1
    assert result.stderr.count('    raise ValueError("rank 1 is wrong")\n') == 1  # the line itself, from the script
    assert "pynickel.parallel.ChildError: child 1 (pid " in result.stderr
    assert result.stdout == ""


def test_a_failure_is_shown_when_the_parent_fails_by_itself() -> None:
    """When a child's failure makes the parent raise something else, both are shown."""
    script = SLEEPERS + """
    child = parallel.run("1 / 0")
    while child.failure is None:
        time.sleep(0.01)
    raise RuntimeError("my peer is gone")
    """
    result = run(script)
    assert result.returncode == 1
    assert "RuntimeError: my peer is gone" in result.stderr
    assert "ChildError: child 1 (pid" in result.stderr
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.parametrize("wait", ["parallel.children.join()", *slow("time.sleep(60)", "children[0].sync()")])
def test_ctrl_c(wait: str) -> None:
    """Ctrl-C, which the terminal sends to all, shows one traceback, the parent's; the children end quietly."""
    script = SLEEPERS + f"""
    children = parallel.nfork(3)
    children.exec(sleep)
    children.receive()
    print("ready", flush=True)
    {wait}
    """
    with Script(script) as running:
        running.wait_for("ready")
        running.signal(signal.SIGINT, group=True)
        result = running.finish()
    assert result.returncode == -signal.SIGINT
    assert result.left == []
    assert result.stderr.count("Traceback") == 1
    assert result.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("delay", [0.01, *slow(0, 0.02, 0.04)])
def test_ctrl_c_while_children_start(delay: float) -> None:
    """The same while the children's interpreters are starting."""
    script = SLEEPERS + """
    import cloudpickle, pynickel.parallel.keeper_here  # which the first fork would do: the interrupt is to come after it
    print("ready", flush=True)
    children = parallel.nfork(4)
    children.exec(sleep)
    time.sleep(60)
    """
    with Script(script) as running:
        running.wait_for("ready")
        time.sleep(delay)
        running.signal(signal.SIGINT, group=True)
        result = running.finish()
    assert result.returncode == -signal.SIGINT
    assert result.left == []
    assert result.stderr.count("Traceback") == 1


def test_children_may_be_interrupted_by_nobody() -> None:
    """SIGINT to a child alone does nothing: the parent decides."""
    script = """
        import os, signal
        from pynickel import parallel
        child = parallel.run("from pynickel import parallel\\nparallel.send(parallel.yield_())")
        child.send(None)
        os.kill(child.pid, signal.SIGINT)
        child.join("still there")
        print(child.receive())
    """
    result = run(script)
    assert (result.stdout, result.stderr) == ("still there\n", "")


def test_sigterm_to_a_child_that_is_ending(tmp_path: Path) -> None:
    """A child whose work is over but whose threads are not gets SIGTERM: it runs its exit functions and ends, without another word."""
    script = f"""
        import atexit, os, signal, threading, time
        from pynickel import parallel

        def work():
            def stay():
                while threading.main_thread().is_alive():
                    time.sleep(0.01)
                open({str(tmp_path / "ending")!r}, "x").close()
                time.sleep(60)

            atexit.register(parallel.print, "exit function")
            threading.Thread(target=stay).start()

        child = parallel.run(work)
        while not os.path.exists({str(tmp_path / "ending")!r}):
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGTERM)
        child.sync()
        print(child.exitcode)
    """
    result = run(script)
    assert (result.stdout, result.returncode, result.stderr, result.left) == ("<001> exit function\n0\n", 0, "", [])


@pytest.mark.slow
def test_close_asks_softly_first() -> None:
    """A child that is closed in mid-work runs its `finally` and its exit functions; a stubborn one is killed soon."""
    script = """
        import atexit, signal, time
        from pynickel import parallel

        def soft():
            atexit.register(parallel.print, "exit function")
            try:
                parallel.send("here")
                while True: pass
            finally:
                parallel.print("finally")

        def stubborn():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            parallel.send("here")
            time.sleep(60)

        for work in soft, stubborn:
            child = parallel.run(work)
            child.receive()
            begun = time.monotonic()
            parallel.close()
            print(work.__name__, child.exitcode, time.monotonic() - begun < (3 if work is soft else 5), flush=True)
    """
    result = run(script)
    assert result.stdout.splitlines() == ["<001> finally", "<001> exit function", "soft 143 True", "stubborn -9 True"]
    assert (result.returncode, result.stderr, result.left) == (0, "", [])
