"""Parent and children as ranks of a communicator: what everybody is told when one of them fails, dies, does not come, or forks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.processes import Script, no_child_left, run

import pynickel
from pynickel import Communicator, UniqueId, parallel
from pynickel.parallel import ChildError

pytestmark = pytest.mark.timeout(40)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield


def one_is_killed(rank: int, ids: list[UniqueId], where: str) -> tuple[Any, ...]:
    """Rank 2 kills itself before, in or at the end of the third call, a group; the others say what they saw and go on without it."""

    def die(here: str) -> None:
        if rank == 2 and where == here:
            os.kill(os.getpid(), signal.SIGKILL)

    comm, ones = Communicator(3, ids[0], rank, library="host", timeout=15), np.ones(4)
    comm.all_reduce(ones)
    comm.all_reduce(ones)
    seen: list[Any] = []
    begun = time.monotonic()
    die("before")
    try:
        with pynickel.group():
            comm.all_reduce(ones)
            die("inside")
            comm.all_reduce(ones)
            die("queued")
    except pynickel.RemoteError as error:
        seen.append((error.rank, time.monotonic() - begun < 5))
    try:
        comm.all_reduce(ones)
    except pynickel.NCCLError as error:
        seen.append(type(error).__name__)
    comm.abort()
    with Communicator(2, ids[1], rank, library="host", timeout=15) as rest:
        return *seen, float(rest.all_reduce(np.ones(1))[0])


@pytest.mark.parametrize("where", ["before", *(pytest.param(where, marks=pytest.mark.slow) for where in ("inside", "queued"))])
def test_a_killed_rank(where: str) -> None:
    """Scenario 46: when a child is killed the parent, as rank 0, and the other child get RemoteError with its rank, later calls are
    refused, and the two go on with a new communicator; the parent also learns from its children how it was killed."""
    ids = [UniqueId.create("host") for _ in range(2)]

    def work() -> None:
        parallel.send(one_is_killed(parallel.id - parallel.args[0], ids, where))

    first, second = children = parallel.nfork(2, _offset())
    children.exec(work)
    mine = one_is_killed(0, ids, where)
    with pytest.raises(ChildError, match=rf"child {second.id} .* was killed by SIGKILL"):
        second.sync()
    assert mine == first.receive() and mine[0] == (2, True) and mine[2] == 2.0, mine


def _offset() -> int:
    """What children must subtract from their id to be ranks 1 and 2: this process has forked before."""
    child = parallel.fork()
    parallel.close()
    return child.id


RANKS = """
    import numpy as np, time
    from pynickel import Communicator, UniqueId, parallel
    from pynickel.parallel import link, tree, worker

    link._CAUSE = tree.GRACE = 20  # seconds in which the error itself is told

    def work(nranks, uid):
        worker._CAUSE = 2000  # looks, 10 ms apart
        with Communicator(nranks, uid, parallel.id - FIRST, library="host", timeout=20) as comm:
            comm.all_reduce(np.ones(1))
            if parallel.id == 2:
                raise ValueError("rank 1 has had enough")
            comm.all_reduce(np.ones(1))

"""


@pytest.mark.parametrize("parent_takes_part", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_exception_in_one_rank(parent_takes_part: bool) -> None:
    """Scenario 47: a child raises between two all-reduces, and its peers lose it; the program ends with an error within seconds and shows
    that child's traceback, once, whoever was first to fail, and no process is left."""
    start = "    uid, children = UniqueId.create('host'), parallel.nfork(3)\n    children.exec(work, {n}, uid)\n    {then}\n"
    if parent_takes_part:
        script = "    FIRST = 0\n" + RANKS + start.format(n=4, then="work(4, uid)")
    else:
        script = "    FIRST = 1\n" + RANKS + start.format(n=3, then="children.sync()")
    result = run(script)
    assert (result.returncode, result.left) == (1, []), result.stderr
    assert result.stderr.count("ValueError: rank 1 has had enough") == 2  # the headline, and the end of the traceback
    assert "ChildError: child 2 (pid" in result.stderr and result.seconds < 10
    assert ("RemoteError" in result.stderr) is parent_takes_part


@pytest.mark.parametrize("leaving", ["except ValueError: comm.abort(); {slow}; raise", "finally: comm.abort(); {slow}"])
def test_an_error_that_comes_slowly(leaving: str) -> None:
    """A child whose communicator has told its peers before the error itself is out: the parent fails by that and ends its children, and
    still shows the child's own traceback."""
    script = f"""
        import numpy as np, time
        from pynickel import Communicator, UniqueId, parallel
        from pynickel.parallel import tree, worker

        tree.GRACE = 20

        def work(uid):
            worker._CAUSE = 2000  # looks, 10 ms apart
            comm = Communicator(2, uid, parallel.id, library="host", timeout=20)
            try:
                comm.all_reduce(np.ones(1))
                if parallel.id:
                    raise ValueError("rank 1 has had enough")
                comm.all_reduce(np.ones(1))
            {leaving.format(slow="time.sleep(0.25 * parallel.id)")}

        uid = UniqueId.create("host")
        parallel.fork().exec(work, uid)
        work(uid)
    """
    result = run(script)
    assert (result.returncode, result.left) == (1, []), result.stderr
    assert result.stderr.count("ValueError: rank 1 has had enough") == 2 and "RemoteError" in result.stderr, result.stderr


def test_a_rank_that_cannot_start_or_does_not_come(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 49: a module with a syntax error is the parent's error with its line; a child that exits with 0 before it joins is a
    rank that does not come, named at the deadline. (Wrong interpreters: test_parallel_failures.py.)"""
    (tmp_path / "broken.py").write_text("def broken(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ChildError, match=r"(?s)failed: SyntaxError: .*broken.py"):
        parallel.run("import broken").sync()
    child = parallel.run("import sys; sys.exit(0)")
    with pytest.raises(pynickel.WaitTimeoutError) as caught:
        Communicator(2, UniqueId.create("host"), 0, library="host", timeout=0.7)
    assert caught.value.missing == (1,)
    child.sync()


def test_forks_after_init() -> None:
    """Scenario 50: a copy of the parent made by os.fork that calls, closes or exits does not disturb the ranks, its own children
    included, and can be a rank of a communicator of its own."""
    script = """
        import os, sys, numpy as np, pynickel
        from pynickel import Communicator, UniqueId, parallel

        def work(uid):
            with Communicator(2, uid, 1, library="host", timeout=20) as comm:
                while parallel.yield_() == "go":
                    comm.all_reduce(np.ones(1))

        uid = UniqueId.create("host")
        child = parallel.run(work, uid)
        comm = Communicator(2, uid, 0, library="host", timeout=20)

        def call():
            try:
                comm.all_reduce(np.ones(1))
            except pynickel.ForkedError:
                os._exit(0)

        def fresh():
            with Communicator(1, UniqueId.create("host"), 0, library="host") as own:
                os._exit(int(own.all_reduce(np.zeros(1))[0]))

        for what in (call, lambda: os._exit(0), lambda: (comm.close(), os._exit(0)), fresh, sys.exit):
            copy = os.fork()
            if copy == 0:
                what()
            print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), end=" ")
            child.join("go")
            print(comm.all_reduce(np.ones(1))[0], flush=True)
        child.join("end")
        comm.close()
        child.sync()
    """
    result = run(script, env={"PYTHONWARNINGS": "ignore::DeprecationWarning"})
    assert (result.stdout, result.returncode, result.left) == ("0 2.0\n" * 5, 0, []), result.stderr


def test_an_interrupt_of_a_rank_that_waits() -> None:
    """Scenario 52: Ctrl-C while the parent waits in a collective is KeyboardInterrupt within a second, the children end, and handlers are
    as they were after import and init; a handler of the program's own runs during the wait."""
    script = """
        import os, signal, time, numpy as np
        called = []
        signal.signal(signal.SIGUSR1, lambda *_: called.append(1))
        before = [signal.getsignal(number) for number in range(1, 32)]
        from pynickel import Communicator, UniqueId, parallel

        def work(uid):
            comm = Communicator(2, uid, 1, library="host", timeout=30)
            os.kill(os.getppid(), signal.SIGUSR1)
            parallel.send("there")
            time.sleep(60)

        uid = UniqueId.create("host")
        child = parallel.run(work, uid)
        comm = Communicator(2, uid, 0, library="host", timeout=30)
        child.receive()
        print("ready", called, [signal.getsignal(number) for number in range(1, 32)] == before, flush=True)
        comm.all_reduce(np.ones(1))
    """
    with Script(script) as running:
        running.wait_for("ready", 20)
        time.sleep(0.2)
        begun = time.monotonic()
        running.signal(signal.SIGINT, group=True)
        result = running.finish(10)
        seconds = time.monotonic() - begun
    assert result.stdout == "ready [1] True\n"
    assert (result.returncode, result.left, result.stderr.count("Traceback")) == (-signal.SIGINT, [], 1), result.stderr
    assert seconds < 5
