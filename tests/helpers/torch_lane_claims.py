"""What lanes, and the meetings of ranks, must do when things come in an odd order; no other rank has a part in it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from torch import distributed as dist

from pynickel import UniqueId, WaitTimeoutError
from pynickel.rendezvous.meeting import machine
from pynickel.torch import lane as lanes
from pynickel.torch.lane import Lane, Task
from pynickel.torch.meeting import Meeting, begun, host_library
from pynickel.torch.patience import CROSSED, REST, Patience, Waits
from pynickel.torch.soon import Soon


def nothing() -> None:
    """An operation that is over at once."""


def refused(words: str, call: Callable[[], object]) -> None:
    """Assert that a call raises RuntimeError with these words."""
    try:
        call()
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no RuntimeError with {words!r}")


def until(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Turn:
    """A lane's turn, by which a test sees how long it is waited for, and keeps whoever gives it back in the lane's thread."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.lock, self.seconds = lane, lane._turn, list[float]()
        self.given_back, self.go_on = threading.Event(), threading.Event()
        lane._turn = cast(Any, self)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.seconds.append(timeout)
        return self.lock.acquire(blocking, timeout)

    def release(self) -> None:
        self.lock.release()
        if threading.current_thread() is self.lane._thread:
            self.given_back.set()
            self.go_on.wait(20)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def signal_handlers() -> None:
    """Who is called in the middle of an operation of the same thread is refused, as it would wait for itself."""
    lane = Lane("lane")

    def interrupted() -> None:
        refused("signal handler", lambda: lane.now(nothing))
        refused("signal handler", lambda: lane.submit(nothing).wait(None))
        refused("signal handler", lane.require_outside)
        assert not lane.end(0.1), "it is not over"

    lane.now(interrupted)
    assert lane.end(5)
    lane, stop = Lane("lane"), threading.Event()
    lane.submit(lambda: stop.wait(60))  # type: ignore[arg-type, return-value]
    turn = Turn(lane)
    assert not lane.end(0.2) and max(turn.seconds) < 0.1, "the thread and the turn have one deadline together"
    turn.go_on.set()
    stop.set()


def at_once() -> None:
    """Who waits at once wakes no thread, unless the machine is so busy that a tick passes; Ctrl-C on the way there loses no operation."""
    lanes = [Lane("lane") for _ in range(50)]
    assert all(lane.submit(nothing).wait(None) for lane in lanes)
    assert sum(lane._thread is not None for lane in lanes) < 25

    def interrupt() -> None:
        raise KeyboardInterrupt

    lane, done = lanes[0], threading.Event()
    lane.patient = True
    lane._waiting.append(task := Task(done.set, lane))
    try:
        with lane._turn:
            lane._next(interrupt)
    except KeyboardInterrupt:
        assert task.wait(None) and done.is_set()


def callbacks() -> None:
    """Callbacks wait for later operations of their lane: by its thread, with a deadline, or without waiting for the lane at all."""
    for wait in (lambda later, done: later.wait(None), lambda later, done: later.wait(20), lambda later, done: done.wait(20)):
        lane, started, done, waited = Lane("lane"), threading.Event(), threading.Event(), threading.Event()
        first = lane.submit(lambda started=started: started.wait(20))  # type: ignore[misc]
        later = lane.submit(done.set)
        first.then(lambda later=later, done=done, wait=wait, waited=waited: wait(later, done) and waited.set())  # type: ignore[misc]
        started.set()
        assert waited.wait(20) and lane.end(5)


def in_order() -> None:
    """When an operation is over, those before it are, even if the thread that ran them has not come further since."""
    lane = Lane("lane")
    turn, lane.patient = Turn(lane), False
    first = lane.submit(nothing)
    assert turn.given_back.wait(20)
    lane.now(nothing)
    assert first.is_over
    turn.go_on.set()
    assert lane.end(5)


def one_thread() -> None:
    """Callbacks that end soon leave the thread where it is, though operations come meanwhile: they do not start one for each."""
    lane, seen = Lane("lane"), set()
    lane.patient = False
    lanes.perf_counter, kept = lambda: 1.0, lanes.perf_counter  # type: ignore[assignment]  # none is ever seen to take long
    try:
        for _ in range(300):
            last = lane.submit(lambda: seen.add(threading.current_thread()))  # the threads are kept, so that each counts
            last.then(lambda: time.sleep(0.0002))
            time.sleep(0.0001)
        until(lambda: last.is_over)
    finally:
        lanes.perf_counter = kept
    assert len(seen) == 1, seen
    assert lane.end(5)


def idle_threads() -> None:
    """The thread of a lane without work ends, and there is another one for what comes later."""
    lanes.IDLE, kept = 0.01, lanes.IDLE
    try:
        lane = Lane("lane")
        for _ in range(3):
            lane.patient = False
            assert lane.submit(nothing).wait(20)
            until(lambda: lane._thread is None)
    finally:
        lanes.IDLE = kept
    assert lane.end(5)


def no_threads() -> None:
    """Where no thread can be begun, as at the interpreter's exit, who waits does the operation; the end says that something is left."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lane, soon = Lane("lane"), Soon()
    kept, threading.Thread.start = threading.Thread.start, fail  # type: ignore[method-assign, assignment]
    try:
        assert lane.submit(nothing).wait(None)
        assert not soon.add(nothing) and not soon._given, "nobody would look later"
        lane.submit(nothing)
        assert not lane.end(0.1)
    finally:
        threading.Thread.start = kept  # type: ignore[method-assign]


def the_end() -> None:
    """What was given before the end is done, even if the thread has just seen that there was nothing."""
    lane, done = Lane("lane"), threading.Event()

    class Late(deque):  # type: ignore[type-arg]
        def __bool__(self) -> bool:
            there = len(self) > 0
            if not there and threading.current_thread() is lane._thread and not lane._ended:
                lane.submit(done.set)
                lane._ended = True
            return there

    lane._waiting, lane.patient = Late(), False
    lane.submit(nothing)
    until(lambda: lane._ended)
    assert lane.end(10) and done.is_set()
    refused("shut down", lambda: lane.submit(nothing))


def one_deadline() -> None:
    """Many lanes with operations that do not end have the same seconds for that, not so many each."""
    from pynickel.torch import group

    lanes, stop = [Lane("lane") for _ in range(20)], threading.Event()
    for lane in lanes:
        lane.submit(lambda: stop.wait(60))  # type: ignore[arg-type, return-value]
    group.END, kept = 0.3, group.END
    begun_at = time.monotonic()
    try:
        assert not group.all_end(lanes) and time.monotonic() - begun_at < 4
        stop.set()
        group.END = 20.0
        assert group.all_end(lanes)
    finally:
        group.END = kept
        stop.set()


def the_store() -> None:
    """Where the store is gone, ranks that were to meet are told why they cannot."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = Meeting(dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False), 0, 2, 5.0)
    del server
    refused("store cannot be reached", lambda: meeting.communicator("key", (0, 1), host_library()))


def stale_ids() -> None:
    """Ranks that have failed to meet wait for another id the next time."""
    meeting = Meeting(dist.HashStore(), 1, 2, 0.3)
    meeting.store.set("host/key", bytes(UniqueId.create("host")).hex())
    for error, words in ((WaitTimeoutError, "never seen"), (dist.DistBackendError, "rank 0 did not come")):
        try:
            meeting.communicator("key", (0, 1), host_library())
        except error as told:
            assert words in str(told), told
        else:
            raise AssertionError("rank 0 never comes")


def the_living() -> None:
    """Only an ended process of this machine is dead: not another machine's, of which nothing is seen; and not by another's clock."""
    meeting = Meeting(dist.HashStore(), 0, 2, 5.0)
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert meeting._lives(0) and meeting._lives(1), "the latter has not begun"
        for text, lives in [
            (f"elsewhere {child.pid} 1", True),
            (f"{machine()} {child.pid} {begun(child.pid)}", True),
            (f"{machine()} {child.pid} 1", False),
        ]:
            meeting.store.set("process/1", text)
            assert meeting._lives(1) == lives, text
        meeting.store.set("process/1", f"{machine()} {child.pid} {begun(child.pid)}")
        child.kill()
        until(lambda: not meeting._lives(1))  # though nobody has asked for how it ended
    finally:
        child.kill()
        child.wait()
    assert begun(child.pid) is None and begun(os.getpid()) is not None
    refused("rank 1 ended before it met rank 0", lambda: meeting._require_alive((0, 1)))
    meeting.store.set("process/2", meeting.store.get("process/1"))
    refused("ranks 1, 2 ended before they met rank 0", lambda: meeting._require_alive((0, 1, 2)))


def same_name(group: object, me: int, n: int) -> None:
    """A group made again with the name and the store of one that was destroyed is a new one."""
    import torch

    from pynickel.torch.group import create

    for turn in range(3):
        again = create(dist.PrefixStore(f"again {n}", dist.distributed_c10d._get_default_store()), me, n, timedelta(seconds=20))
        tensor = torch.tensor([1.0 + turn])
        again.allreduce([tensor]).wait()
        again.shutdown()
        assert tensor == n * (1 + turn)


class Others:
    """A communicator whose ranks come, or do not come within two milliseconds."""

    def __init__(self) -> None:
        self.come, self.asked = False, list[int]()

    def _come(self, wait: int) -> bool:
        self.asked.append(wait)
        time.sleep(0 if self.come else 0.002 * wait)
        return self.come


def patience() -> None:
    """Waits in vain take a sixteenth of the time; between them it only looks. Who finds all there waits the next time, too."""
    patience, others = Patience(Waits()), cast(Any, Others())
    begun_at, calls = time.perf_counter(), 0
    while others.asked.count(1) < 3:
        assert not patience.all_come(others) and patience.promised == (others.asked[-1] == 1)
        calls += 1
    assert time.perf_counter() - begun_at > 2 * REST * 0.002 and calls == len(others.asked) > 3
    patience, others.come = Patience(Waits()), True
    del others.asked[:]
    assert all(patience.all_come(others) for _ in range(5)) and others.asked == [1] * 5


def patience_of_several_groups() -> None:
    """A wait in vain makes all groups look only; for longer, where the wait before it was another group's."""
    waits, others = Waits(), cast(Any, Others())
    one, other = Patience(waits), Patience(waits)
    for waiting, looking, times in ((one, other, REST), (other, one, CROSSED)):
        waits.rest_until = 0.0
        begun_at = time.perf_counter()
        assert not waiting.all_come(others) and waiting.promised
        assert not looking.all_come(others) and not looking.promised
        assert begun_at + times * 0.002 <= waits.rest_until <= time.perf_counter() + times * (time.perf_counter() - begun_at)
    assert others.asked == [1, 0, 1, 0]


ALONE = (
    patience,
    patience_of_several_groups,
    signal_handlers,
    at_once,
    callbacks,
    in_order,
    one_thread,
    idle_threads,
    no_threads,
    the_end,
    one_deadline,
    the_store,
    stale_ids,
    the_living,
)
