"""From init to the end: states, closing, aborting, threads, forks, signals, deadlines."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import os
import pickle
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.forks import threads_left
from helpers.order import SOON, in_call
from helpers.recorder import Recorder
from helpers.threads import in_thread, together

import pynickel
from pynickel import Communicator, UniqueId


def test_close_twice(stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 39: However often and in whatever way a communicator is ended, one destroy reaches the library."""
    with stub_comm as again:
        again.close()
    stub_comm.close()
    stub_comm.abort()
    threads = [in_thread(stub_comm.close)[0] for _ in range(4)]
    for thread in threads:
        thread.join(5)
    assert recording.names == ["ncclCommDestroy"] and stub_comm.state == "closed"


def test_finalize_twice(stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 39: Finalize twice, then close: one finalize and one destroy."""
    stub_comm.finalize()
    stub_comm.finalize()
    assert stub_comm.state == "finalized"
    with pytest.raises(pynickel.CommunicatorClosedError, match="finalized"):
        stub_comm.all_reduce(bytearray(1))
    stub_comm.close()
    assert recording.names == ["ncclCommFinalize", "ncclCommDestroy"]


def test_many_threads_close_once(recording: Recorder) -> None:
    """Threads that close at the same time make one destroy."""
    for _ in range(20):
        comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
        recording.forget()
        threads = [in_thread(comm.close) for _ in range(4)]
        for thread, result in threads:
            thread.join(5)
            assert result == [None] or isinstance(result[0], pynickel.BusyError)
        assert recording.names == ["ncclCommDestroy"]


def every_call(comm: Communicator) -> dict[str, Callable[[], Any]]:
    """Every method that uses the library."""
    one, all_of_it = np.zeros(1), np.zeros(comm.nranks or 1)
    return {
        "all_reduce": lambda: comm.all_reduce(one), "broadcast": lambda: comm.broadcast(one), "bcast": lambda: comm.bcast(one),
        "reduce": lambda: comm.reduce(one), "all_gather": lambda: comm.all_gather(one, all_of_it),
        "reduce_scatter": lambda: comm.reduce_scatter(all_of_it, one), "all_to_all": lambda: comm.all_to_all(all_of_it, all_of_it.copy()),
        "gather": lambda: comm.gather(one, all_of_it), "scatter": lambda: comm.scatter(all_of_it, one),
        "send": lambda: comm.send(one, 0), "recv": lambda: comm.recv(one, 0), "send_recv": lambda: comm.send_recv(one, 0, one.copy(), 0),
        "barrier": comm.barrier, "wait": comm.wait, "get_async_error": comm.get_async_error, "finalize": comm.finalize,
        "with": lambda: comm.__enter__(), "poll": comm.poll, "suspend": comm.suspend, "resume": comm.resume, "revoke": comm.revoke,
        "all_gather_v": lambda: comm.all_gather_v(all_of_it[:1], all_of_it.copy(), [1] * comm.nranks),
        "all_to_all_v": lambda: comm.all_to_all_v(all_of_it, all_of_it.copy(), [1] * comm.nranks, [1] * comm.nranks),
        "signal": lambda: comm.signal(0), "wait_signal": lambda: comm.wait_signal(0), "register": lambda: comm.register(one),
        "window": lambda: comm.window(one), "pre_mul_sum": lambda: comm.pre_mul_sum(1, "int8"), "split": lambda: comm.split(0),
        "duplicate": comm.duplicate, "shrink": lambda: comm.shrink([0]), "grow": lambda: comm.grow(9), "growth_id": comm.growth_id,
        "properties": comm.properties, "memory_stats": comm.memory_stats, "Plan": lambda: pynickel.Plan(comm),
    }  # fmt: skip


@pytest.mark.parametrize("end", ["close", "abort"])
def test_use_after_the_end(end: str, stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 40: After close or abort every call is CommunicatorClosedError with the reason, the library is not entered, and what
    the object remembers can still be read."""
    getattr(stub_comm, end)()
    recording.forget()
    for name, call in every_call(stub_comm).items():
        with pytest.raises(pynickel.CommunicatorClosedError, match=rf"{end}\(\) was called"):
            call()
            pytest.fail(name)
    assert recording.calls == []
    assert (stub_comm.rank, stub_comm.nranks, stub_comm.handle) == (1, 4, 0)
    assert end.removesuffix("e") in stub_comm.state and stub_comm.state in repr(stub_comm)


def test_pickling_and_copying() -> None:
    """What belongs to a process refuses pickle and copy, and says what to send instead."""
    with Communicator(1, UniqueId.create("host"), 0, library="host") as comm:
        things = (
            comm, pynickel.Plan(comm), pynickel.group(), comm.library, comm.register(np.ones(4)), comm.pre_mul_sum(2.0, "float64"),
            comm.window(pynickel.empty(1024, library="host")), pynickel.mem_alloc(8, library="host"),
        )  # fmt: skip
        for thing in things:
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be pickled.*; (send|make)"):
                    attempt(thing)


def test_failed_init(recording: Recorder) -> None:
    """Scenario 40: An init that fails leaves an object that refuses calls and that nobody has to close."""
    recording.returns("ncclCommInitRank", 5)
    made = Communicator.__new__(Communicator)
    with pytest.raises(pynickel.InvalidUsageError):
        made.__init__(4, bytes(range(128)), 1, library=recording.path)  # type: ignore[misc]
    recording.forget()
    with pytest.raises(pynickel.CommunicatorClosedError, match="init has not succeeded"):
        made.all_reduce(bytearray(1))
    made.close()
    made.abort()
    assert recording.names == [] and made.state == "closed"


def test_context_manager(recording: Recorder) -> None:
    """A clean exit closes, an exception aborts and goes on."""
    with Communicator(4, bytes(range(128)), 1, library=recording.path):
        recording.forget()
    assert recording.names == ["ncclCommDestroy"]
    with pytest.raises(KeyError), Communicator(4, bytes(range(128)), 1, library=recording.path) as comm:
        recording.forget()
        raise KeyError
    assert recording.names == ["ncclCommAbort"] and comm.state == "aborted"


def test_close_while_a_call_runs(two: tuple[Communicator, Communicator]) -> None:
    """Scenario 44: close() under a running call is BusyError at once; with a timeout it aborts after it, and the call ends."""
    comm, _ = two
    thread, result = in_thread(lambda: comm.all_reduce(np.zeros(4)))
    in_call()
    with pytest.raises(pynickel.BusyError):
        comm.close()
    assert comm.state == "ready"
    start = time.monotonic()
    comm.close(timeout=0.2)
    thread.join(5)
    assert isinstance(result[0], pynickel.AbortedError) and 0.2 <= time.monotonic() - start < SOON and comm.state == "aborted"


def test_abort_while_a_call_runs(two: tuple[Communicator, Communicator]) -> None:
    """Scenario 44: abort() from another thread ends the call with AbortedError within a second."""
    comm, other = two
    thread, result = in_thread(lambda: comm.all_reduce(np.zeros(4)))
    in_call()
    start = time.monotonic()
    comm.abort()
    thread.join(5)
    assert isinstance(result[0], pynickel.AbortedError) and time.monotonic() - start < SOON
    with pytest.raises(pynickel.RemoteError) as caught:
        other.all_reduce(np.zeros(4))
    assert caught.value.rank == 0 and caught.value.pid == os.getpid() and other.state == "failed"
    other.close()
    assert other.state == "aborted"


def test_second_thread(two: tuple[Communicator, Communicator]) -> None:
    """A second thread in a communicator gets BusyError at once; the first one's call is not disturbed."""
    first, second = two
    thread, result = in_thread(lambda: first.all_reduce(np.ones(4)))
    in_call()
    with pytest.raises(pynickel.BusyError, match="one thread at a time"):
        first.all_reduce(np.ones(4))
    second.all_reduce(np.ones(4))
    thread.join(5)
    assert result[0].tolist() == [2, 2, 2, 2]


def test_ranks_as_threads() -> None:
    """Scenario 63: Four threads are four ranks, and a fifth counts on meanwhile: calls let other threads run."""
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    def program(comm: Communicator) -> None:
        for i in range(100):
            assert comm.all_reduce(np.full(3, i))[0] == 4 * i

    counter, _ = in_thread(count)
    together(4, program)
    assert counted[0] > 0
    stop.set()
    counter.join(5)


def test_many_communicators_at_once() -> None:
    """Scenario 63: Fifty communicators made at the same time by many threads, in random order, do not mix."""
    uids = [UniqueId.create("host") for _ in range(50)]
    jobs = [(i, rank) for i in range(50) for rank in (0, 1)]
    random.Random(5).shuffle(jobs)
    threads = {(i, rank): in_thread(lambda i=i, rank=rank: one_sum(rank, uids[i], i)) for i, rank in jobs}  # type: ignore[misc]
    for thread, _ in threads.values():
        thread.join(10)
    assert {job: result[0] for job, (_, result) in threads.items()} == {(i, rank): 2 * i for i, rank in jobs}


def one_sum(rank: int, uid: UniqueId, value: int) -> int:
    with Communicator(2, uid, rank, library="host", timeout=8) as comm:
        return int(comm.all_reduce(np.array([value]))[0])


def test_deadline_of_init() -> None:
    """Scenarios 32d, 33: Init with a deadline ends in time, names who is missing, lets other threads run, and leaves nothing open."""
    uid = UniqueId.create("host")
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    counted, stop = [0.0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted.append(time.monotonic())
            time.sleep(0.001)

    counter, _ = in_thread(count)
    start = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError) as caught:
        Communicator(3, uid, 0, library="host", timeout=0.5)
    took = time.monotonic() - start
    stop.set()
    counter.join(5)
    assert 0.5 <= took < 0.5 + SOON and caught.value.missing == (1, 2)
    assert any(start < moment < start + 0.5 for moment in counted)
    assert len(os.listdir("/proc/self/fd")) <= descriptors and threads_left(threads) <= threads


def test_deadline_of_calls() -> None:
    """The communicator's own timeout ends its later calls; barrier's beats it, and afterwards it holds again."""
    first, second = Communicator.init_all(2, "host")
    first.abort()
    second.abort()
    uid = UniqueId.create("host")
    thread, result = in_thread(lambda: Communicator(2, uid, 1, library="host"))
    comm = Communicator(2, uid, 0, library="host", timeout=8)
    thread.join(5)
    start = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError):
        comm.barrier(timeout=0.1)
    assert time.monotonic() - start < SOON
    comm.abort()
    result[0].abort()


def test_wait_polls_the_async_error(stub_comm: Communicator, recording: Recorder) -> None:
    """wait() returns when the library is done, raises its error as soon as it shows, and keeps its deadline."""
    recording.set("async_polls", 4)
    stub_comm.wait(stream=5, timeout=5)
    recording.set("async_polls", 10**9)
    with pytest.raises(pynickel.WaitTimeoutError, match="0.1 s"):
        stub_comm.wait(timeout=0.1)
    recording.set("async_polls", 3)
    recording.set("set_async", 6)
    with pytest.raises(pynickel.RemoteError):
        stub_comm.wait(timeout=5)
    assert stub_comm.state == "failed"


def test_async_error(stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 68: get_async_error gives Result members, and the plain number of a code that is not known."""
    for code in (0, 7, 6, 99):
        recording.set("set_async", code)
        assert stub_comm.get_async_error() == code
    recording.set("set_async", 6)
    assert stub_comm.get_async_error() is pynickel.Result.REMOTE_ERROR
    assert stub_comm.last_error() == "last words of the recorder"
