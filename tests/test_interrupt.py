"""Signals during waits of the CPU library: Ctrl-C ends whatever waits, and handlers of the user's own run meanwhile."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.order import SOON, in_call, in_package, signalled, until, waiting
from helpers.recorder import Recorder
from helpers.threads import in_thread

import pynickel
from pynickel import Communicator, UniqueId
from pynickel._nccl import ffi, lib


def test_interrupt_of_a_collective(two: tuple[Communicator, Communicator]) -> None:
    """Scenario 52: Ctrl-C ends a blocked call within a second; the communicator has failed, and the peer is told."""
    comm, other = two
    assert signalled(lambda: comm.all_reduce(np.zeros(4)), waiting) < SOON
    assert comm.state == "failed"
    with pytest.raises(pynickel.CommunicatorClosedError, match="failed"):
        comm.all_reduce(np.zeros(4))
    with pytest.raises(pynickel.RemoteError, match="interrupted"):
        other.all_reduce(np.zeros(4))


def test_interrupt_of_init_and_of_a_group(two: tuple[Communicator, Communicator]) -> None:
    """Ctrl-C also ends a blocked init and the exit of a group."""
    assert signalled(lambda: Communicator(2, UniqueId.create("host"), 0, library="host"), in_package, pause=0.2) < SOON

    def grouped() -> None:
        with pynickel.group():
            two[0].all_reduce(np.zeros(4))

    assert signalled(grouped, waiting) < SOON


def suspended(comm: Communicator) -> None:
    comm.suspend()
    comm.resume()


# What enters a communicator and leaves it again, and what the recorder is to say.
ENTERS: dict[str, tuple[Callable[[Communicator], Any], dict[str, int]]] = {
    "get_async_error": (lambda comm: comm.get_async_error(), {}),
    "wait": (lambda comm: comm.wait(), {"async_polls": 2}),
    "all_reduce": (lambda comm: comm.all_reduce(bytearray(4)), {}),
    "all_reduce that waits": (lambda comm: comm.all_reduce(bytearray(4)), {"ncclAllReduce": 7, "async_polls": 2}),
    "all_reduce that fails": (lambda comm: comm.all_reduce(bytearray(4)), {"ncclAllReduce": 7, "set_async": 6}),
    "memory_stats": (lambda comm: comm.memory_stats(), {}),
    "resume": (suspended, {}),
    "register": (lambda comm: comm.register(bytearray(4096)).close(), {}),
    "split": (lambda comm: comm.split(None), {}),
    "close": (lambda comm: comm.close(), {}),
}


@pytest.mark.parametrize("what", ENTERS)
@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in the end of a generator Python drops it
def test_interrupt_anywhere(what: str, timeout: float | None, recording: Recorder) -> None:
    """Wherever in a call Python may raise KeyboardInterrupt, nobody is left inside the communicator."""
    call, said = ENTERS[what]
    place, interrupted = -1, True  # first not interrupted, so that what it imports is there
    while interrupted:
        comm = Communicator(4, bytes(range(128)), 1, library=recording.path, timeout=timeout)
        for name, value in said.items():
            (recording.returns if name.startswith("nccl") else recording.set)(name, value)
        interrupted = at_place(place, lambda comm=comm: call(comm))  # type: ignore[misc]
        assert lib.pn_enter_at(comm._guard, comm._guard.state, ffi.new("int *")) == 0, place
        lib.pn_leave(comm._guard)
        recording.forget()
        comm.abort()
        place += 1
    assert place > 2


def at_place(place: int, call: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt at one of the places where Python looks for signals: a function begins, or one of C has returned.

    Whether there was such a place.
    """
    left = place

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt, pynickel.NCCLError):
        sys.setprofile(look)
        try:
            call()
        finally:
            sys.setprofile(None)
    return left < 0


def signal_in_a_call() -> None:
    """As soon as a rank of this process waits."""
    in_call()
    os.kill(os.getpid(), signal.SIGUSR1)


def test_other_handlers(two: tuple[Communicator, Communicator]) -> None:
    """Scenario 52: A handler of the user's own runs during a wait, the call goes on, and no handler is changed."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    interrupt_handler = signal.getsignal(signal.SIGINT)
    try:
        in_thread(signal_in_a_call)
        late, _ = in_thread(lambda: (until(lambda: seen, "the handler did not run"), two[1].all_reduce(np.ones(2))))
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
        in_thread(signal_in_a_call)
        with pytest.raises(Stop, match="enough"):
            two[0].all_reduce(np.zeros(4))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handler_that_aborts() -> None:
    """A signal handler ends the communicator in the middle of the thread's own call: that call is an AbortedError, and the peer is told."""
    two: list[Communicator] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: (two[0].abort(), two[0].abort()))
    try:
        for grouped in (False, True):
            two = Communicator.init_all(2, "host")
            in_thread(signal_in_a_call)
            begun = time.monotonic()
            with pytest.raises(pynickel.AbortedError), pynickel.group() if grouped else contextlib.nullcontext():
                two[0].all_reduce(np.zeros(4))
            assert time.monotonic() - begun < SOON and two[0].state == "aborted"
            with pytest.raises(pynickel.NCCLError, match="rank 0"):
                two[1].all_reduce(np.zeros(4))
            two[1].abort()
    finally:
        signal.signal(signal.SIGUSR1, before)


def host_waits(comm: Communicator, other: Communicator, lonely: UniqueId) -> dict[str, Callable[[], Any]]:
    """Everything that waits for another rank on the CPU library; none comes."""
    one, all_of_it = np.zeros(1), np.zeros(comm.nranks)
    page, plan = pynickel.empty(4096, "int8", library="host"), pynickel.Plan(comm)
    plan.all_reduce(one)

    def grouped() -> None:
        with pynickel.group():
            comm.recv(one, 1)

    return {
        "all_reduce": lambda: comm.all_reduce(one), "broadcast": lambda: comm.broadcast(one), "recv": lambda: comm.recv(one, 1),
        "send": lambda: comm.send(one, 1), "all_to_all": lambda: comm.all_to_all(all_of_it, all_of_it.copy()),
        "all_gather_v": lambda: comm.all_gather_v(one, all_of_it, [1] * comm.nranks), "barrier": lambda: comm.barrier(timeout=20),
        "group": grouped, "plan": plan.launch, "split": lambda: comm.split(0), "finalize": comm.finalize,
        "shrink": lambda: comm.shrink([2]),
        "window": lambda: comm.window(page), "wait_signal": lambda: comm.wait_signal(1),
        "init": lambda: Communicator(2, lonely, 0, library="host"), "close": lambda: other.close(timeout=20),
    }  # fmt: skip


@pytest.mark.parametrize(
    "what", ["all_reduce", "broadcast", "recv", "send", "all_to_all", "all_gather_v", "barrier", "group", "plan", "split", "shrink",
             "finalize", "window", "wait_signal", "init", "close"],
)  # fmt: skip
def test_interrupt_of_every_wait(what: str) -> None:
    """Scenario 52: Ctrl-C ends whatever waits within a second."""
    comms = Communicator.init_all(3, "host")
    others = Communicator.init_all(2, "host")
    busy, _ = in_thread(lambda: others[0].all_reduce(np.zeros(4)))
    in_call()  # else there is nothing that close would wait for
    try:
        assert signalled(host_waits(comms[0], others[0], UniqueId.create("host"))[what], in_package, pause=0.1) < SOON
    finally:
        pynickel.abort_all([*comms, *others])
        busy.join(5)
