"""Config(blocking=False): nothing waits that does not have to, and what has to wait has a deadline."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.order import SOON
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, Config, Plan, UniqueId, group

BACKGROUND = Config(blocking=False)


def pair(timeout: float = 5) -> tuple[Communicator, Communicator]:
    """Both ranks in one thread: nothing of this would end if a call waited for the other rank."""
    uid = UniqueId.create("host")
    a, b = (Communicator(2, uid, rank, library="host", config=BACKGROUND, timeout=timeout) for rank in (0, 1))
    a.wait()
    b.wait()
    return a, b


@pytest.fixture
def two() -> Iterator[tuple[Communicator, Communicator]]:
    """Two ranks that are ready."""
    comms = pair()
    yield comms
    pynickel.abort_all(comms)


def test_init_returns_at_once_and_can_be_polled() -> None:
    """Scenario 67: Init without its peer returns, "in progress" raises nothing, and wait() makes it ready when the peer has come."""
    uid = UniqueId.create("host")
    first = Communicator(2, uid, 0, library="host", config=BACKGROUND, device=3, name="early")
    assert first.state == "in progress" and not first.poll() and first.get_async_error() is pynickel.Result.IN_PROGRESS
    assert (first.rank, first.nranks, first.name) == (0, 2, "early")
    second = Communicator(2, uid, 1, library="host", config=BACKGROUND)
    for comm in (first, second):
        comm.wait(timeout=5)
        assert comm.state == "ready" and comm.poll()
    assert first.device == 3
    pynickel.abort_all([first, second])


def test_early_call() -> None:
    """Scenario 67: A call before the communicator is ready waits within the timeout and then is BusyError; the library is not entered.

    If the init's own deadline comes before it, that is the error, and it names who is missing.
    """
    comm = Communicator(2, UniqueId.create("host"), 0, library="host", config=BACKGROUND, timeout=20)
    comm._timeout = 0.3  # of the call: the init, which has begun, has its own
    start = time.monotonic()
    with pytest.raises(pynickel.BusyError, match=r"not ready within 0.3 s; use wait\(\) or poll\(\)"):
        comm.all_reduce(np.ones(2))
    assert 0.3 <= time.monotonic() - start < SOON and comm.state == "in progress"
    comm.abort()
    comm = Communicator(2, UniqueId.create("host"), 0, library="host", config=BACKGROUND, timeout=0.3)
    comm._timeout = 20
    with pytest.raises(pynickel.WaitTimeoutError, match="waited 0.3 s for rank 1"):
        comm.all_reduce(np.ones(2))
    comm.abort()


def test_early_call_waits() -> None:
    """An early call is made as soon as the communicator is ready."""
    uid = UniqueId.create("host")
    first = Communicator(2, uid, 0, library="host", config=BACKGROUND, timeout=5)
    late = threading.Timer(0.2, lambda: others.append(Communicator(2, uid, 1, library="host", config=BACKGROUND)))
    others: list[Communicator] = []
    late.start()
    box = np.ones(2)
    first.all_reduce(box)
    late.join()
    others[0].all_reduce(other := np.ones(2))
    others[0].wait(timeout=5)
    first.wait()
    assert box.tolist() == other.tolist() == [2, 2]
    pynickel.abort_all([first, *others])


def test_abort_while_in_progress() -> None:
    """Scenario 67: An init in progress is aborted at once, and closed with a deadline by aborting it."""
    for end in (lambda comm: comm.abort(), lambda comm: comm.close(timeout=0.2)):
        comm = Communicator(2, UniqueId.create("host"), 0, library="host", config=BACKGROUND)
        start = time.monotonic()
        end(comm)
        assert comm.state == "aborted" and time.monotonic() - start < SOON


def test_calls_return_at_once(two: tuple[Communicator, Communicator]) -> None:
    """Both ranks' calls are made by one thread, one after the other; each is done when its communicator says so."""
    a, b = two
    one, other = np.ones(5), np.full(5, 2.0)
    a.all_reduce(one)
    assert a.state == "in progress" and not a.poll()
    b.all_reduce(other)
    for comm in two:
        comm.wait()
    assert one.tolist() == other.tolist() == [3] * 5
    for comm in two:
        comm.all_reduce(one if comm is a else other)
    b.wait()
    a.wait()
    assert one.tolist() == [6] * 5


def test_buffers_live_until_the_work_is_done(two: tuple[Communicator, Communicator]) -> None:
    """A buffer that nobody else holds is kept alive while the work goes on, and let go when it is seen to be done."""
    a, b = two
    box: Any = np.ones(100_000)
    gone = weakref.ref(box)
    a.all_reduce(box)
    del box
    gc.collect()
    assert gone() is not None
    b.all_reduce(np.ones(100_000))
    a.wait()
    b.wait()
    gc.collect()
    assert gone() is None


def test_errors_come_when_looked_at(two: tuple[Communicator, Communicator]) -> None:
    """A mismatch is raised by wait() on each rank, and both go on."""
    a, b = two
    a.all_reduce(np.ones(3))
    b.all_reduce(np.ones(4))
    for comm in two:
        with pytest.raises(pynickel.CollectiveMismatchError):
            comm.wait()
        assert comm.state == "ready"
    a.all_reduce(one := np.ones(3))
    b.all_reduce(np.ones(3))
    a.wait()
    b.wait()
    assert one.tolist() == [2] * 3


def test_peer_that_left(two: tuple[Communicator, Communicator]) -> None:
    """A peer that is gone is RemoteError from wait() or poll(), and the communicator has failed."""
    a, b = two
    a.abort()
    b.all_reduce(np.ones(3))
    with pytest.raises(pynickel.RemoteError):
        b.wait()
    assert b.state == "failed"


def test_groups_and_plans(two: tuple[Communicator, Communicator]) -> None:
    """A group over both, and plans, run in the background too."""
    a, b = two
    one, other = np.ones(2), np.ones(2)
    with group():
        a.all_reduce(one)
        b.all_reduce(other)
    assert a.state == b.state == "in progress"
    a.wait()
    b.wait()
    plans = []
    for comm, box in ((a, one), (b, other)):
        plans.append(Plan(comm))
        plans[-1].all_reduce(box)
    for _ in range(3):
        for plan in plans:
            plan.launch()  # waits for its communicator's earlier launch, and not for this one
    a.wait()
    b.wait()
    assert one.tolist() == other.tolist() == [16, 16]


def test_mixing_is_refused(two: tuple[Communicator, Communicator], comm: Communicator) -> None:
    """Scenario 67: A group over blocking and non-blocking communicators is refused in a sentence, when the second kind is queued."""
    with group(), pytest.raises(pynickel.InvalidUsageError, match="blocking or on non-blocking communicators"):
        comm.all_reduce(np.ones(2))
        two[0].all_reduce(np.ones(2))
    with group() as opened, pytest.raises(pynickel.InvalidUsageError, match="needs blocking communicators"):
        two[0].send(np.ones(1), 1)
        two[1].recv(np.ones(1), 0)
        opened.simulate()


def test_split_and_close(two: tuple[Communicator, Communicator]) -> None:
    """split() gives a child that is ready and non-blocking as its parent; close() waits for what is in progress."""
    children: dict[int, Communicator] = {}

    def body(comm: Communicator) -> None:
        child = comm.split(0, -comm.rank)
        assert child is not None
        children[child.rank] = child

    threads = [threading.Thread(target=body, args=(comm,)) for comm in two]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    boxes = [np.ones(3), np.ones(3)]
    for rank, box in enumerate(boxes):
        assert children[rank].state == "ready"
        children[rank].all_reduce(box)
        assert children[rank].state == "in progress"
    for child in children.values():
        child.close()
        assert child.state == "closed"
    assert boxes[0].tolist() == boxes[1].tolist() == [2] * 3


def test_per_thread_stream_is_refused(two: tuple[Communicator, Communicator]) -> None:
    """Scenario 69: Stream 2 means the calling thread, which is not the one that works."""
    with pytest.raises(ValueError, match="stream 2"):
        two[0].all_reduce(np.ones(2), stream=2)


def test_other_libraries(recording: Recorder) -> None:
    """A timeout with blocking=True is refused on NCCL; blocking=False leaves each call in progress until the library is done."""
    uid = bytes(range(128))
    with pytest.raises(ValueError, match="config says blocking=True"):
        Communicator(4, uid, 1, library=recording.path, config=Config(blocking=True), timeout=3)
    recording.set("async_polls", 2)
    comm = Communicator(4, uid, 1, library=recording.path, config=BACKGROUND)
    assert recording.get("seen_blocking") == 0 and comm.state == "in progress"
    comm.wait(timeout=5)
    recording.returns("ncclAllReduce", 7)
    recording.set("async_polls", 3)
    comm.all_reduce(bytearray(4))
    assert comm.state == "in progress"
    recording.forget()
    comm.broadcast(bytearray(4))  # first until the reduction is done
    assert recording.names == ["ncclBroadcast"]
    recording.set("async_polls", 2)
    recording.returns("ncclCommFinalize", 7)
    comm.finalize()
    assert recording.get("async_polls") < 0 and comm.state == "finalized"
    comm.close()
    waits = Communicator(4, uid, 1, library=recording.path, timeout=5)
    recording.returns("ncclAllReduce", 7)
    recording.set("async_polls", 3)
    waits.all_reduce(bytearray(4))
    assert waits.state == "ready" and recording.get("async_polls") < 0
    waits.abort()
