"""Waits that would last for ever on NVIDIA's library, played by one that stays in progress: deadlines, Ctrl-C, what is left to do."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import recorder
from helpers.order import SOON, signalled
from helpers.recorder import Recorder

import pynickel
from pynickel import Communicator, Config, Plan, group

UID = bytes(range(128))
FOREVER = 10**9
IN_PROGRESS = 7


def grouped(comm: Communicator) -> None:
    with group():
        comm.all_reduce(bytearray(4))


def planned(comm: Communicator) -> None:
    plan = Plan(comm)
    plan.all_reduce(bytearray(4))
    plan.launch()


# By what waits: the call, and the C function that begins it. After revoke() the state is that, whether it was waited for or not.
WAITS: dict[str, tuple[Callable[[Communicator], Any], str, str]] = {
    "all_reduce": (lambda comm: comm.all_reduce(bytearray(4)), "ncclAllReduce", "failed"),
    "send": (lambda comm: comm.send(bytearray(4), 0), "ncclSend", "failed"),
    "barrier": (lambda comm: comm.barrier(), "ncclAllReduce", "failed"),
    "group": (grouped, "ncclGroupEnd", "failed"),
    "plan": (planned, "ncclGroupEnd", "failed"),
    "all_gather_v": (lambda comm: comm.all_gather_v(bytearray(1), bytearray(4), [1] * 4), "ncclGroupEnd", "failed"),
    "finalize": (lambda comm: comm.finalize(), "ncclCommFinalize", "failed"),
    "suspend": (lambda comm: comm.suspend(), "ncclCommSuspend", "failed"),
    "revoke": (lambda comm: comm.revoke(), "ncclCommRevoke", "revoked"),
    "split": (lambda comm: comm.split(0), "ncclCommSplit", "failed"),
    "shrink": (lambda comm: comm.shrink([0]), "ncclCommShrink", "failed"),
    "grow": (lambda comm: comm.grow(9), "ncclCommGrow", "failed"),
    "register": (lambda comm: comm.register(bytearray(4096)), "ncclCommRegister", "failed"),
    "window": (lambda comm: comm.window(bytearray(4096)), "ncclCommWindowRegister", "failed"),
    "pre_mul_sum": (lambda comm: comm.pre_mul_sum(2, "int8"), "ncclRedOpCreatePreMulSum", "failed"),
    "put_signal": (lambda comm: comm.signal(0), "ncclSignal", "failed"),
}


def made(recording: Recorder, timeout: float | None, **options: Any) -> Communicator:
    """A communicator that is ready, of a library with empty notes."""
    comm = Communicator(4, UID, 1, library=recording.path, timeout=timeout, **options)
    recording.forget()
    return comm


def ended(comm: Communicator, recording: Recorder) -> None:
    """The way out of it all: close() aborts what cannot be waited for."""
    recording.set("async_polls", 0)
    recording.forget()
    comm.close()
    assert recording.names in (["ncclCommAbort"], ["ncclCommDestroy"]) and comm.handle == 0


@pytest.mark.parametrize("what", WAITS)
def test_deadline(what: str, recording: Recorder) -> None:
    """A call that stays in progress is WaitTimeoutError after the communicator's timeout; then close() is left, and aborts."""
    call, function, state = WAITS[what]
    comm = made(recording, 0.1)
    recording.returns(function, IN_PROGRESS)
    recording.set("async_polls", FOREVER)
    begun = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError, match=f"{function} was not done within 0.1 s"):
        call(comm)
    assert 0.1 <= time.monotonic() - begun < 5 and comm.state == state
    with pytest.raises(pynickel.CommunicatorClosedError, match="given up while it was in progress|revoke"):
        comm.all_reduce(bytearray(4))
    ended(comm, recording)


@pytest.mark.parametrize("what", WAITS)
def test_a_while(what: str, recording: Recorder) -> None:
    """A call that is in progress for a while is waited for, and the communicator is as good as after a call that was done at once."""
    call, function, state = WAITS[what]
    comm = made(recording, 10)
    recording.returns(function, IN_PROGRESS)
    recording.set("async_polls", 5)
    call(comm)
    assert recording.get("async_polls") < 0
    if what not in ("finalize", "suspend", "revoke"):
        recording.forget()
        comm.all_reduce(bytearray(4))
    comm.abort()


def test_interrupt(recording: Recorder) -> None:
    """Scenario 52: Ctrl-C ends each of these waits within a second, init and wait() too; the communicator is then as after a deadline."""
    waits = {name: (*wait[:2], wait[2]) for name, wait in WAITS.items()}
    waits["wait"] = (lambda comm: comm.wait(), "ncclAllReduce", "ready")
    for name, (call, function, state) in waits.items():
        comm = made(recording, 30)
        recording.returns(function, IN_PROGRESS)
        recording.set("async_polls", FOREVER)
        assert interrupted(lambda comm=comm, call=call: call(comm), recording) < SOON, name  # type: ignore[misc]
        assert comm.state == state, name
        recording.set("async_polls", 0)
        comm.abort()
    recording.forget()
    recording.set("async_polls", FOREVER)
    assert interrupted(lambda: Communicator(4, UID, 1, library=recording.path, timeout=30), recording) < SOON
    assert recording.names[-1] == "ncclCommAbort"


def interrupted(call: Callable[[], Any], recording: Recorder) -> float:
    """Seconds until call, sent SIGINT while it polls, raised KeyboardInterrupt."""
    return signalled(call, lambda: recording.get("async_polls") < FOREVER - 3)


def test_init(recording: Recorder) -> None:
    """Scenario 33: an init that stays in progress ends at its deadline, is aborted, and leaves nothing to close."""
    recording.set("async_polls", FOREVER)
    begun = time.monotonic()
    with pytest.raises(pynickel.WaitTimeoutError, match="ncclCommInitRankConfig was not done within 0.2 s"):
        Communicator(4, UID, 1, library=recording.path, timeout=0.2)
    assert 0.2 <= time.monotonic() - begun < 5 and recording.names == ["ncclCommInitRankConfig", "ncclCommAbort"]


def test_child_that_stays_in_progress(recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does not become ready is aborted at the deadline; the parent is usable."""
    comm, poll = made(recording, 5), Communicator._poll

    def late(self: Communicator, function: str, timeout: float | None, *more: Any) -> None:
        if function == "the new communicator":
            raise pynickel.WaitTimeoutError("the child is not ready")
        poll(self, function, timeout, *more)

    monkeypatch.setattr(Communicator, "_poll", late)
    with pytest.raises(pynickel.WaitTimeoutError, match="child"):
        comm.split(0)
    assert recording.names == ["ncclCommSplit", "ncclCommAbort"]
    comm.all_reduce(bytearray(4))
    comm.abort()


def test_barrier_has_its_own_deadline(recording: Recorder) -> None:
    """barrier(timeout=) beats the communicator's, and afterwards that holds again."""
    comm = made(recording, 20)
    recording.returns("ncclAllReduce", IN_PROGRESS)
    recording.set("async_polls", FOREVER)
    with pytest.raises(pynickel.WaitTimeoutError, match="within 0.1 s"):
        comm.barrier(timeout=0.1)
    recording.set("async_polls", 0)
    comm.abort()


def test_error_while_in_progress(recording: Recorder) -> None:
    """An error that shows while a call is waited for is raised at once, as its own class."""
    comm = made(recording, 20)
    recording.returns("ncclAllReduce", IN_PROGRESS)
    recording.set("async_polls", 3)
    recording.set("set_async", 6)
    begun = time.monotonic()
    with pytest.raises(pynickel.RemoteError):
        comm.all_reduce(bytearray(4))
    assert time.monotonic() - begun < 5 and comm.state == "failed"
    comm.close()
    assert recording.names[-1] == "ncclCommAbort"


def test_memory_of_what_was_given_up(recording: Recorder) -> None:
    """The buffers of a call that was given up live until the communicator has ended: the library may still use them."""
    comm, box = made(recording, 0.1), np.ones(10)
    alive: Any = weakref.ref(box)
    recording.returns("ncclAllReduce", IN_PROGRESS)
    recording.set("async_polls", FOREVER)
    with pytest.raises(pynickel.WaitTimeoutError):
        comm.all_reduce(box)
    del box
    gc.collect()
    assert alive() is not None
    recording.set("async_polls", 0)
    comm.abort()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("config", [None, Config(blocking=False)])
def test_close(config: Config | None, recording: Recorder) -> None:
    """close() finalizes what cannot block and then destroys it; at the deadline, its own or the communicator's, it aborts."""
    comm = made(recording, 20, config=config)
    recording.returns("ncclCommFinalize", IN_PROGRESS)
    recording.set("async_polls", 4)
    comm.close()
    assert recording.names == ["ncclCommFinalize", "ncclCommDestroy"] and comm.state == "closed"
    for own, given in ((20, 0.1), (0.1, None)):
        comm = made(recording, own, config=config)
        if config is not None:
            comm.wait()
        recording.forget()
        recording.returns("ncclCommFinalize", IN_PROGRESS)
        recording.set("async_polls", FOREVER)
        begun = time.monotonic()
        comm.close(timeout=given)
        assert time.monotonic() - begun < 5 and comm.state == "aborted"
        assert recording.names == ["ncclCommFinalize", "ncclCommAbort"]
        recording.set("async_polls", 0)


def test_old_library(tmp_path: Path) -> None:
    """Before NCCL 2.14 there is nothing that a deadline could stand on, which timeout= says with both versions."""
    old = recorder.build(tmp_path, lacks=["ncclCommInitRankConfig", "ncclCommFinalize"])
    words = "timeout= needs a non-blocking communicator: ncclCommInitRankConfig needs NCCL 2.14"
    with pytest.raises(pynickel.NotAvailableError, match=words):
        Communicator(4, UID, 1, library=str(old), timeout=3)
