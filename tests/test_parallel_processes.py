"""Whole programs that use pynickel.parallel: what they print, trees of processes, copies made by os.fork."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
from helpers.processes import Script, run

pytestmark = pytest.mark.timeout(30)

FORK_WITH_THREADS = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Python 3.12 and later warn of it


def test_functions_and_classes_of_the_main_program() -> None:
    """Functions of the program and of modules beside it run in children, and its objects come back as its own class."""
    script = """
        import pathlib, sys
        from pynickel import parallel

        pathlib.Path(__file__).with_name("beside.py").write_text("from pynickel import parallel\\ndef there(): parallel.send(parallel.id)")
        import beside

        FACTOR = 3

        class Pair:
            def __init__(self, a, b):
                self.a, self.b = a, b

        def swap():
            pair = parallel.receive()
            parallel.send(Pair(pair.b, pair.a * FACTOR))

        if __name__ == "__main__":
            child = parallel.run(swap)
            child.send(Pair(1, 2))
            pair = child.receive()
            print(type(pair) is Pair, pair.a, pair.b, parallel.run(beside.there).receive())
    """
    result = run(script)
    assert (result.stdout, result.stderr, result.returncode, result.left) == ("True 2 3 2\n", "", 0, [])


@pytest.mark.slow
def test_print_keeps_lines_whole() -> None:
    """Four children print 500 lines each into one file: each line is whole and begins with the child's id."""
    script = """
        from pynickel import parallel

        def talk():
            parallel.yield_()
            for n in range(500):
                parallel.print(n, "x" * 100, sep="-")
            print("plain, flushed at the end", end="")

        children = parallel.nfork(4)
        children.exec(talk)
        children.join()
        children.sync()
        parallel.print("first\\nsecond")
    """
    result = run(script)
    lines = result.stdout.replace("plain, flushed at the end", "").splitlines()
    expected = [f"<{id:03d}> {n}-{'x' * 100}" for id in range(1, 5) for n in range(500)]
    assert sorted(lines[:-2]) == sorted(expected)
    assert lines[-2:] == ["<000> first", "<000> second"]
    assert result.stdout.count("plain, flushed at the end") == 4


def test_a_tree() -> None:
    """Children fork children of their own, numbered from 1 by each parent, and results travel up."""
    script = """
        from pynickel import parallel

        def leaf(path):
            parallel.send((*path, parallel.id))

        def middle():
            children = parallel.nfork(2)
            children.exec(leaf, (parallel.id,))
            parallel.send(children.receive())
            children.sync()
            parallel.send((parallel.parent.id, parallel.nchildren))

        children = parallel.nfork(2)
        children.exec(middle)
        print(children.receive(), children.receive())
    """
    result = run(script)
    assert result.stdout == "{1: {1: (1, 1), 2: (1, 2)}, 2: {1: (2, 1), 2: (2, 2)}} {1: (0, 0), 2: (0, 0)}\n"
    assert (result.returncode, result.stderr, result.left) == (0, "", [])


@pytest.mark.parametrize("end", ["children.sync()", "return"])
def test_a_failing_grandchild_reaches_the_root(end: str) -> None:
    """A failure two levels down is the root's error within seconds, whether or not the middle waits for it."""
    script = f"""
        import time
        from pynickel import parallel

        def leaf():
            raise LookupError("deep down")

        def middle():
            children = parallel.nfork(1)
            children.exec(leaf)
            while children[0].failure is None:
                time.sleep(0.01)
            {end}

        parallel.run(middle).sync()
    """
    result = run(script)
    assert result.returncode == 1
    assert result.seconds < 15
    assert result.left == []
    assert "LookupError: deep down" in result.stderr
    assert "in leaf" in result.stderr


def test_a_forked_copy_of_the_parent() -> None:
    """os.fork in the parent: the copy has no children, and its end does not touch the parent's."""
    script = """
        import os, sys
        from pynickel import parallel

        def answer():
            parallel.send(parallel.yield_())

        child = parallel.run(answer)
        copy = os.fork()
        if copy == 0:
            print(parallel.nchildren, flush=True)
            sys.exit()
        os.waitpid(copy, 0)
        child.join("alive")
        print(child.receive())
    """
    result = run(script, env=FORK_WITH_THREADS)
    assert (result.stdout, result.stderr, result.returncode) == ("0\nalive\n", "", 0)


def test_a_forked_copy_of_a_child() -> None:
    """os.fork in a child: the copy cannot speak for it, and the child's death is noticed while the copy lives."""
    script = """
        import os, signal, time
        from pynickel import parallel

        def work():
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

        begun = time.monotonic()
        try:
            parallel.run(work).sync()
        except parallel.ChildError as error:
            print("killed by SIGKILL" in str(error), time.monotonic() - begun < 10)
    """
    with Script(script, env=FORK_WITH_THREADS) as running:
        result = running.finish(patience=0)
    assert (result.stdout, result.stderr, result.returncode) == ("True True\n", "", 0)


def test_import_is_light() -> None:
    """Importing parallel starts no thread and no process, and loads neither the extension nor NumPy."""
    script = """
        import sys, threading
        from pynickel import parallel
        heavy = {"numpy", "click", "cloudpickle", "psutil", "pynickel._nccl", "dataclasses", "importlib.metadata"}
        print(sorted(heavy & set(sys.modules)), threading.active_count())
    """
    assert run(script).stdout == "[] 1\n"


def test_a_forked_copy_cannot_speak_for_a_child() -> None:
    """A copy that returns from the child's work, or fails in it, tells the parent nothing."""
    script = """
        import os, time
        from pynickel import parallel

        def work(fail):
            copy = os.fork()
            if copy == 0:
                return 1 / 0 if fail else None
            os.waitpid(copy, 0)
            parallel.send(parallel.id)

        for fail in (False, True):
            child = parallel.run(work, fail)
            print(child.receive())
            child.sync()
    """
    result = run(script, env=FORK_WITH_THREADS)
    assert (result.stdout, result.returncode, result.left) == ("1\n2\n", 0, [])
    assert result.stderr.count("ZeroDivisionError") == 1


def test_nfork_starts_all_or_none() -> None:
    """When descriptors run out half-way, nfork raises and none of its children is left."""
    script = """
        import resource
        from pynickel import parallel
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        try:
            parallel.nfork(40)
        except (OSError, parallel.ChildError) as error:
            print("Too many open files" in str(error), parallel.nchildren)
        children = parallel.nfork(2)
        children.exec("from pynickel import parallel; parallel.send(parallel.yield_())")
        children.join("still works")
        print(*children.receive().values())
    """
    result = run(script)
    assert (result.stdout, result.stderr, result.left) == ("True 0\nstill works still works\n", "", [])
