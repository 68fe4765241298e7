"""From init to the end: states, closing, aborting, threads, forks, signals, deadlines."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder
from helpers.threads import together

import pynickel
from pynickel import Communicator, UniqueId


@pytest.fixture
def stub_comm(recording: Recorder) -> Iterator[Communicator]:
    """A communicator of the recording library, with empty notes."""
    made = Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    yield made
    made.abort()


@pytest.fixture
def two() -> Iterator[tuple[Communicator, Communicator]]:
    """Both ranks of a communicator in the test's hands."""
    comms = Communicator.init_all(2, "host")
    yield comms[0], comms[1]
    for comm in comms:
        comm.abort()


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start function in a thread; the list gets what it returned or raised."""
    result: list[Any] = []

    def body() -> None:
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, result


def test_close_twice(stub_comm: Communicator, recording: Recorder) -> None:
    """However often and in whatever way a communicator is ended, one destroy reaches the library (scenario 39)."""
    with stub_comm as again:
        again.close()
    stub_comm.close()
    stub_comm.abort()
    threads = [in_thread(stub_comm.close)[0] for _ in range(4)]
    for thread in threads:
        thread.join(5)
    assert recording.names == ["ncclCommDestroy"] and stub_comm.state == "closed"


def test_finalize_twice(stub_comm: Communicator, recording: Recorder) -> None:
    """Finalize twice, then close: one finalize and one destroy (scenario 39)."""
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
    """After close or abort every call is CommunicatorClosedError with the reason, the library is not entered, and what
    the object remembers can still be read (scenario 40)."""
    getattr(stub_comm, end)()
    recording.forget()
    for name, call in every_call(stub_comm).items():
        with pytest.raises(pynickel.CommunicatorClosedError, match=rf"{end}\(\) was called"):
            call()
            pytest.fail(name)
    assert recording.calls == []
    assert (stub_comm.rank, stub_comm.nranks, stub_comm.handle) == (1, 4, 0)
    assert end.removesuffix("e") in stub_comm.state and stub_comm.state in repr(stub_comm)


def test_failed_init(recording: Recorder) -> None:
    """An init that fails leaves an object that refuses calls and that nobody has to close (scenario 40)."""
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
    """close() under a running call is BusyError at once; with a timeout it aborts after it, and the call ends (scenario 44)."""
    comm, _ = two
    thread, result = in_thread(lambda: comm.all_reduce(np.zeros(4)))
    time.sleep(0.1)
    with pytest.raises(pynickel.BusyError):
        comm.close()
    assert comm.state == "ready"
    start = time.monotonic()
    comm.close(timeout=0.2)
    thread.join(5)
    assert isinstance(result[0], pynickel.AbortedError) and 0.2 <= time.monotonic() - start < 2 and comm.state == "aborted"


def test_abort_while_a_call_runs(two: tuple[Communicator, Communicator]) -> None:
    """abort() from another thread ends the call with AbortedError within a second (scenario 44)."""
    comm, other = two
    thread, result = in_thread(lambda: comm.all_reduce(np.zeros(4)))
    time.sleep(0.1)
    comm.abort()
    thread.join(1)
    assert isinstance(result[0], pynickel.AbortedError)
    with pytest.raises(pynickel.RemoteError) as caught:
        other.all_reduce(np.zeros(4))
    assert caught.value.rank == 0 and caught.value.pid == os.getpid() and other.state == "failed"
    other.close()
    assert other.state == "aborted"


def test_second_thread(two: tuple[Communicator, Communicator]) -> None:
    """A second thread in a communicator gets BusyError at once; the first one's call is not disturbed."""
    first, second = two
    thread, result = in_thread(lambda: first.all_reduce(np.ones(4)))
    time.sleep(0.1)
    with pytest.raises(pynickel.BusyError, match="one thread at a time"):
        first.all_reduce(np.ones(4))
    second.all_reduce(np.ones(4))
    thread.join(5)
    assert result[0].tolist() == [2, 2, 2, 2]


def test_ranks_as_threads() -> None:
    """Four threads are four ranks, and a fifth counts on meanwhile: calls let other threads run (scenario 63)."""
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
    """Communicators made at the same time by many threads do not mix (scenario 63)."""
    threads = []
    for i in range(12):
        uid = UniqueId.create("host")
        for rank in (0, 1):
            threads.append(in_thread(lambda rank=rank, uid=uid, i=i: one_sum(rank, uid, i)))  # type: ignore[misc]
    for thread, _ in threads:
        thread.join(10)
    assert [result[0] for _, result in threads] == [2 * i for i in range(12) for _ in (0, 1)]


def one_sum(rank: int, uid: UniqueId, value: int) -> int:
    with Communicator(2, uid, rank, library="host", timeout=8) as comm:
        return int(comm.all_reduce(np.array([value]))[0])


def test_forked_child(comm: Communicator) -> None:
    """In a forked child the parent's communicator is dead and says so, closing it is harmless, a new one works, and the
    parent's goes on (scenario 50)."""
    code = """
import os, sys, numpy as np, pynickel as p
c = p.Communicator(1, p.UniqueId.create('host'), 0, library='host')
pid = os.fork()
if pid == 0:
    try:
        c.all_reduce(np.ones(1))
    except p.ForkedError as error:
        assert 'make a new one in the child' in str(error) and c.state == 'forked'
        c.close(); c.abort(); del c
        with p.Communicator(1, p.UniqueId.create('host'), 0, library='host', timeout=5) as d:
            os._exit(int(d.all_reduce(np.full(1, 42))[0]))
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
assert c.all_reduce(np.ones(1))[0] == 1
c.close()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_never_closed(recording: Recorder) -> None:
    """A communicator that is dropped without an end gives one ResourceWarning, and the library is not entered (scenario 42)."""
    made = Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    with pytest.warns(ResourceWarning, match="rank 1 of 4.* was never closed"):
        del made
        gc.collect()
    assert not {"ncclCommDestroy", "ncclCommAbort"} & set(recording.names)


def test_closed_ones_do_not_warn(recording: Recorder) -> None:
    """Closed, aborted and borrowed communicators are dropped in silence."""
    one, two = (Communicator(4, bytes(range(128)), 1, library=recording.path) for _ in range(2))
    three = Communicator.from_handle(one.handle, recording.path)
    one.close()
    two.abort()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del one, two, three
        gc.collect()


KEEP = {
    "global": "keep = c",
    "cycle": "keep = [c]; keep.append(keep); del c",
    "thread-local": "import threading; keep = threading.local(); keep.c = c",
    "daemon thread": "import threading, time; threading.Thread(target=lambda k=c: time.sleep(60), daemon=True).start()",
    "atexit": "import atexit; atexit.register(lambda: c.all_reduce(bytearray(4)))",
    "atexit close": "import atexit; atexit.register(c.close)",
    "running": "import threading; threading.Thread(target=lambda: d.all_reduce(bytearray(4)), daemon=True).start()",
}


@pytest.mark.parametrize("where", KEEP)
def test_interpreter_exit(where: str) -> None:
    """A process that never closes its communicator ends at once and well, with at most a ResourceWarning (scenario 42)."""
    code = (
        "import pynickel as p; c = p.Communicator(1, p.UniqueId.create('host'), 0, library='host')\n"
        "d, e = p.Communicator.init_all(2, 'host'); c.barrier()\n" + KEEP[where]
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0 and time.monotonic() - start < 5
    for line in done.stderr.split("\n"):
        assert not line or "never closed" in line or line.startswith(" ") or "ResourceWarning" in line, done.stderr


def interrupted(call: Callable[[], Any], number: int = signal.SIGINT, delay: float = 0.2) -> float:
    """Seconds until call, sent a signal after `delay`, raised KeyboardInterrupt."""
    timer = threading.Timer(delay, os.kill, (os.getpid(), number))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()
    return time.monotonic() - start - delay


def test_interrupt_of_a_collective(two: tuple[Communicator, Communicator]) -> None:
    """Ctrl-C ends a blocked call within a second; the communicator has failed, and the peer is told (scenario 52)."""
    comm, other = two
    assert interrupted(lambda: comm.all_reduce(np.zeros(4))) < 1
    assert comm.state == "failed"
    with pytest.raises(pynickel.CommunicatorClosedError, match="failed"):
        comm.all_reduce(np.zeros(4))
    with pytest.raises(pynickel.RemoteError, match="interrupted"):
        other.all_reduce(np.zeros(4))


def test_interrupt_of_init_and_of_a_group(two: tuple[Communicator, Communicator]) -> None:
    """Ctrl-C also ends a blocked init and the exit of a group."""
    assert interrupted(lambda: Communicator(2, UniqueId.create("host"), 0, library="host")) < 1

    def grouped() -> None:
        with pynickel.group():
            two[0].all_reduce(np.zeros(4))

    assert interrupted(grouped) < 1


def test_other_handlers(two: tuple[Communicator, Communicator]) -> None:
    """A handler of the user's own runs during a wait, the call goes on, and no handler is changed (scenario 52)."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    interrupt_handler = signal.getsignal(signal.SIGINT)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        late, _ = in_thread(lambda: (time.sleep(0.5), two[1].all_reduce(np.ones(2))))
        assert two[0].all_reduce(np.ones(2)).tolist() == [2, 2]
        late.join(5)
        assert seen == [signal.SIGUSR1] and signal.getsignal(signal.SIGINT) is interrupt_handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handler_that_raises(two: tuple[Communicator, Communicator]) -> None:
    """Whatever a signal handler raises comes out of the call, as itself."""

    class Stop(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Stop("enough")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Stop, match="enough"):
            two[0].all_reduce(np.zeros(4))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_deadline_of_init() -> None:
    """Init with a deadline ends in time, names who is missing, lets other threads run, and leaves no thread or descriptor
    (scenarios 32d, 33)."""
    uid = UniqueId.create("host")
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter, _ = in_thread(count)
    start = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError) as caught:
        Communicator(3, uid, 0, library="host", timeout=0.5)
    took = time.monotonic() - start
    stop.set()
    counter.join(5)
    assert 0.5 <= took < 1.5 and caught.value.missing == (1, 2) and counted[0] > 50
    assert len(os.listdir("/proc/self/fd")) <= descriptors and len(os.listdir("/proc/self/task")) <= threads


def test_deadline_of_calls() -> None:
    """The communicator's own timeout ends its later calls; barrier's beats it, and afterwards it holds again."""
    first, second = Communicator.init_all(2, "host")
    first.abort()
    second.abort()
    uid = UniqueId.create("host")
    thread, result = in_thread(lambda: Communicator(2, uid, 1, library="host"))
    comm = Communicator(2, uid, 0, library="host", timeout=0.4)
    thread.join(5)
    start = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError):
        comm.barrier(timeout=0.1)
    assert time.monotonic() - start < 0.35
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
    """get_async_error gives Result members, and the plain number of a code that is not known (scenario 68)."""
    for code in (0, 7, 6, 99):
        recording.set("set_async", code)
        assert stub_comm.get_async_error() == code
    recording.set("set_async", 6)
    assert stub_comm.get_async_error() is pynickel.Result.REMOTE_ERROR
    assert stub_comm.last_error() == "last words of the recorder"


def test_revoke(two: tuple[Communicator, Communicator]) -> None:
    """revoke() ends the calls of all ranks; afterwards calls are refused, twice is harmless, and close() is left."""
    first, second = two
    thread, result = in_thread(lambda: second.all_reduce(np.zeros(4)))
    time.sleep(0.1)
    first.revoke()
    first.revoke()
    thread.join(2)
    assert isinstance(result[0], pynickel.RemoteError) and "revoked" in str(result[0])
    assert first.state == "revoked" and second.state == "failed"
    for call in (lambda: first.all_reduce(np.zeros(4)), first.finalize, first.suspend):
        with pytest.raises(pynickel.CommunicatorClosedError, match=r"revoke\(\) was called"):
            call()
    second.revoke()
    first.close()
    second.close()
    assert first.state == second.state == "closed"
    with pytest.raises(pynickel.CommunicatorClosedError, match=r"close\(\)"):
        first.revoke()


def test_revoke_ends_the_own_call(two: tuple[Communicator, Communicator]) -> None:
    """revoke() from another thread ends the call that is running in the communicator."""
    thread, result = in_thread(lambda: two[0].all_reduce(np.zeros(4)))
    time.sleep(0.1)
    two[0].revoke()
    thread.join(2)
    assert isinstance(result[0], pynickel.NCCLError) and two[0].state == "revoked"


def test_abort_all() -> None:
    """abort_all ends communicators of one process together, also ones that one group is working on."""
    a, b = (Communicator.init_all(2, "host") for _ in range(2))

    def grouped() -> None:
        with pynickel.group():
            a[0].all_reduce(np.zeros(4))
            b[0].all_reduce(np.zeros(4))

    thread, result = in_thread(grouped)
    time.sleep(0.1)
    start = time.monotonic()
    pynickel.abort_all([*a, *b])
    thread.join(2)
    assert time.monotonic() - start < 2 and isinstance(result[0], (pynickel.AbortedError, pynickel.RemoteError))
    assert {comm.state for comm in [*a, *b]} == {"aborted"}
    pynickel.abort_all([])


def test_abort_all_raises_the_first_error(recording: Recorder) -> None:
    """If an abort fails, all others are made and the error comes out."""
    comms = [Communicator(4, bytes(range(128)), 1, library=recording.path) for _ in range(3)]
    recording.forget()
    recording.returns("ncclCommAbort", 3)
    with pytest.raises(pynickel.InternalError, match="ncclCommAbort failed"):
        pynickel.abort_all(comms)
    assert recording.names == ["ncclCommAbort"] * 3
