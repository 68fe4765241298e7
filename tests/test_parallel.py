"""Who is who, meetings, deadlines and misuse of pynickel.parallel."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from helpers.order import SOON
from helpers.processes import no_child_left
from helpers.work import echo, sleep

from pynickel import parallel
from pynickel.parallel import ChildError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield


def test_the_root_knows_itself() -> None:
    """The root process has id 0, no arguments, no children, and a parent with id -1."""
    assert (parallel.id, parallel.args, parallel.nchildren, len(parallel.children)) == (0, (), 0, 0)
    assert parallel.parent.id == -1
    assert {"id", "parent", "children", "nchildren", "args", "timeout"} <= set(dir(parallel))


def test_children_know_who_they_are() -> None:
    """Children are numbered in fork order, know their parent, and find the arguments of fork, of any kind."""

    def tell() -> None:
        parallel.send((parallel.id, os.getpid(), parallel.parent.id, parallel.parent.pid, parallel.args, parallel.timeout))

    children = parallel.nfork(3, "text with 'quotes'", {"a": [None, 1j]}, np.arange(3))
    assert [child.id for child in children] == list(parallel.children)
    assert parallel.nchildren == 3
    children.exec(tell)
    for child, told in zip(children, children.receive().values(), strict=True):
        assert told[:4] == (child.id, child.pid, 0, os.getpid())
        assert told[4][:2] == ("text with 'quotes'", {"a": [None, 1j]})
        assert told[4][2].tolist() == [0, 1, 2]
        assert told[5] == 20


def test_ids_are_not_used_again() -> None:
    """A child that is forked later has a higher id, and `children` is indexed by id."""
    first, second = parallel.fork(), parallel.fork()
    assert second.id == first.id + 1
    assert parallel.children[second.id] is second
    with pytest.raises(KeyError, match=f"no child has the id 0; ids: {first.id}, {second.id}"):
        parallel.children[0]


def test_a_thousand_round_trips() -> None:
    """A thousand times join, send and receive with four children takes a few seconds at most."""
    children = parallel.nfork(4)
    children.exec(echo)
    begun = time.monotonic()
    for number in range(1000):
        children.join("go")
        children.send({"number": number})
        assert children.receive() == {child.id: (child.id, "go", {"number": number}) for child in children}
    assert time.monotonic() - begun < 10
    children.join("break")
    children.sync()
    assert parallel.nchildren == 0


def test_join_releases_all_at_once() -> None:
    """A child that comes late to yield_ does not keep the others there."""

    def meet(late: int) -> None:
        if parallel.id == late:
            parallel.receive()
        parallel.yield_()
        parallel.send("released")

    children = parallel.nfork(3)
    children.exec(meet, children[0].id)
    joining = threading.Thread(target=children.join)
    joining.start()
    assert list(children[1:].receive().values()) == ["released"] * 2
    assert joining.is_alive()
    children[0].send(None)
    assert children[0].receive() == "released"
    joining.join(20)


def test_a_join_that_timed_out_does_not_count_for_the_next() -> None:
    """When a child answers an old join late, the next join still waits for its own answer."""

    def slow() -> None:
        parallel.receive()
        parallel.send(parallel.yield_())
        parallel.receive()
        parallel.send(parallel.yield_())

    child = parallel.fork()
    child.exec(slow)
    with pytest.raises(TimeoutError, match=rf"child {child.id} \(pid {child.pid}\) did not come to yield_ within 0.05 s"):
        child.join("first", timeout=0.05)
    child.send(None)
    assert child.receive() == "first"
    with pytest.raises(TimeoutError):
        child.join("second", timeout=0.2)
    child.send(None)
    assert child.receive() == "second"


def test_sync_counts_down() -> None:
    """After sync the processes are gone and nchildren is 0, twice in a row."""
    for _ in range(2):
        children = parallel.nfork(4)
        children.exec("from pynickel import parallel\nparallel.send(parallel.id)")
        assert parallel.nchildren == 4
        assert children.receive() == {child.id: child.id for child in children}
        children.sync()
        assert parallel.nchildren == 0
        assert not any(psutil.pid_exists(child.pid) for child in children)


@pytest.mark.parametrize("call", ["join", "receive", "sync"])
def test_timeouts_name_the_child(call: str) -> None:
    """Each wait of the parent ends at its deadline and names who did not answer."""
    child = parallel.run(sleep)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"^child {child.id} \(pid {child.pid}\) did not .* within 0.3 s$"):
        getattr(child, call)(timeout=0.3)
    assert 0.25 < time.monotonic() - begun < 0.3 + SOON


def test_the_module_timeout_counts() -> None:
    """`parallel.timeout` is the deadline of calls that get none, here and in children forked afterwards."""
    parallel.timeout = 0.3
    child = parallel.run("from pynickel import parallel\nparallel.yield_()")
    with pytest.raises(ChildError, match=r"TimeoutError: the parent \(pid \d+\) did not join within 0.3 s"):
        child.sync(timeout=10)


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), (math.nan, ValueError), ("1", TypeError), (True, TypeError), (np.array([1]), TypeError)]
)
def test_wrong_timeouts(timeout: Any, error: type[Exception]) -> None:
    """A timeout that is no number of seconds is refused, and the child does not notice."""
    child = parallel.run(echo)
    with pytest.raises(error, match="timeout must be"):
        child.join("go", timeout=timeout)
    with pytest.raises(error, match=r"parallel.timeout must be"):
        parallel.timeout = timeout
    child.join("go", timeout=math.inf)
    child.send(1)
    assert child.receive() == (child.id, "go", 1)


def test_calls_of_children_in_the_root() -> None:
    """send, receive and yield_ in the root say that it has no parent and what to use."""
    for call in (lambda: parallel.send(1), parallel.receive, parallel.yield_):
        with pytest.raises(RuntimeError, match="is for children, and this is the root process; use parallel.children"):
            call()


def test_waiting_for_an_idle_child_is_refused() -> None:
    """A child without work would never answer; one with work takes no more."""
    child = parallel.fork()
    for call in (child.join, child.receive, child.sync):
        with pytest.raises(RuntimeError, match=r"would wait for ever: child \d+ \(pid \d+\) has nothing to run; call exec first"):
            call()
    child.exec("pass")
    with pytest.raises(RuntimeError, match="was already given something to run; fork another child"):
        child.exec("pass")


@pytest.mark.parametrize(("n", "error"), [(-1, ValueError), (1.0, TypeError), ("2", TypeError), (True, TypeError), (None, TypeError)])
def test_wrong_numbers_of_children(n: Any, error: type[Exception]) -> None:
    """nfork takes an int of 0 or more."""
    with pytest.raises(error, match="nfork needs"):
        parallel.nfork(n)
    assert parallel.nfork(0).receive() == {}


def test_slices_and_sums_have_the_methods() -> None:
    """A slice of the list, and the sum of two lists, have the same methods as the list."""
    children = parallel.nfork(2) + parallel.nfork(1)
    assert isinstance(children, parallel.Children) and [child.id for child in children] == list(parallel.children)[-3:]
    children[:2].exec(echo)
    children[:2].join("go")
    children[:2].send(0)
    assert list(children[:2].receive()) == [child.id for child in children[:2]]


def test_a_child_outlives_the_thread_that_forked_it() -> None:
    """fork may be called from a thread that ends before the child."""
    children: list[parallel.Child] = []
    thread = threading.Thread(target=lambda: children.append(parallel.run(echo)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    children[0].join("go")
    children[0].send(1)
    assert children[0].receive() == (children[0].id, "go", 1)


def test_nothing_is_kept_after_the_children() -> None:
    """Forking and closing again and again leaves no descriptor and no thread behind."""

    def once() -> None:
        children = parallel.nfork(2)
        children.exec(echo)
        children.join("break")
        parallel.close()

    once()
    gc.collect()  # what other tests have left may go meanwhile, but nothing may come
    process = psutil.Process()
    descriptors, threads = process.num_fds(), threading.active_count()
    for _ in range(2):
        once()
    assert process.num_fds() <= descriptors and threading.active_count() <= threads


def test_signal_handlers_run_during_a_wait() -> None:
    """A handler of the program's own is called while the parent waits, and the wait goes on."""
    called: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    try:
        child = parallel.run("import os, signal, time\nos.kill(os.getppid(), signal.SIGUSR1)\ntime.sleep(0.2)")
        child.sync()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert called == [signal.SIGUSR1]
