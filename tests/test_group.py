"""group(): queued in Python, started together at a clean exit, nothing started otherwise."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.recorder import Recorder
from helpers.threads import outcomes, together

import pynickel
from pynickel import Communicator, group
from pynickel._nccl import lib
from pynickel.batch import Operation, open_groups


def test_starts_at_the_exit(stub_comm: Communicator, recording: Recorder) -> None:
    """Nothing reaches the library in the body; at the exit all does, in order, between start and end."""
    with group():
        stub_comm.all_reduce(np.zeros(4))
        stub_comm.send(bytearray(3), 2)
        stub_comm.recv(bytearray(3), 2)
        assert recording.names == []
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclSend", "ncclRecv", "ncclGroupEnd"]


def test_empty(stub_comm: Communicator, recording: Recorder) -> None:
    """An empty group does not enter the library."""
    with group():
        pass
    assert recording.names == [] and not open_groups


def test_nested(stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 55: Three levels start once, at the outermost exit; an inner body that raises takes its own operations away."""
    with group():
        stub_comm.all_reduce(bytearray(1))
        with group(), group():
            stub_comm.broadcast(bytearray(1))
        with pytest.raises(KeyError), group():
            stub_comm.reduce(bytearray(1))
            raise KeyError
        stub_comm.send(bytearray(1), 0)
        assert recording.names == []
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclBroadcast", "ncclSend", "ncclGroupEnd"]


def test_body_that_raises(stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 54: A body that raises starts nothing, its own exception comes out, and no group is open."""
    with pytest.raises(ValueError, match="mine"), group():
        stub_comm.all_reduce(bytearray(1))
        raise ValueError("mine")
    assert recording.names == [] and not open_groups
    stub_comm.all_reduce(bytearray(1))
    assert recording.names == ["ncclAllReduce"]


def test_body_that_raises_on_one_rank() -> None:
    """Scenario 54: If only one rank's body raises, the other gets an error at its deadline or at once, not a hang."""

    def program(comm: Communicator) -> None:
        with group():
            comm.all_reduce(np.zeros(4))
            if comm.rank == 0:
                raise ValueError("mine")

    mine, other = outcomes(2, program)
    assert str(mine) == "mine" and isinstance(other, (pynickel.RemoteError, pynickel.WaitTimeoutError, pynickel.CommunicatorClosedError))


def test_bad_argument_in_the_body(stub_comm: Communicator, recording: Recorder) -> None:
    """Arguments are checked in the body; if the error is caught there, the rest still starts."""
    with group():
        stub_comm.all_reduce(bytearray(4))
        with pytest.raises(ValueError, match=r"0\.\.3"):
            stub_comm.send(bytearray(4), 9)
        with pytest.raises(ValueError, match="NULL"):
            stub_comm.all_reduce(0, 0, count=4, dtype="int8")
        with pytest.raises(ValueError, match="no address"):
            stub_comm.all_reduce(2**64, 8, count=4, dtype=pynickel.int8)
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"]


def test_failing_call_starts_nothing(stub_comm: Communicator, recording: Recorder) -> None:
    """If the library refuses one call, the group is made to fail as a whole before it is ended."""
    recording.returns("ncclSend", 5)
    with pytest.raises(pynickel.InvalidUsageError, match="ncclSend failed"), group():
        stub_comm.all_reduce(bytearray(4))
        stub_comm.send(bytearray(4), 0)
        stub_comm.broadcast(bytearray(4))
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclSend", "ncclBroadcast", "ncclGroupEnd"]
    spoiling = [args for name, args in recording.calls if name == "ncclBroadcast"]
    assert spoiling[0][3] == -1  # a data type that does not exist


def test_failing_call_on_the_cpu_library() -> None:
    """On the CPU library a group with a call that is refused starts nothing of the rest, and the ranks go on."""

    def program(comm: Communicator) -> None:
        box = np.ones(4)
        lane = Operation(comm, lib.comm_ncclSend, (0, 4, 99, 0, 0), None)
        with pytest.raises(pynickel.InvalidArgumentError, match="operation 1 of 0..1") as caught, group() as opened:
            comm.all_reduce(box)
            opened.add(lane)
        assert caught.value.operation == 1
        assert box.tolist() == [1, 1, 1, 1]
        assert comm.all_reduce(box).tolist() == [2, 2, 2, 2]

    together(2, program)


def test_end_that_fails(stub_comm: Communicator, recording: Recorder) -> None:
    """An error of the group's end names the end."""
    recording.returns("ncclGroupEnd", 2)
    with pytest.raises(pynickel.NCCLSystemError, match="ncclGroupEnd failed with ncclSystemError"), group():
        stub_comm.all_reduce(bytearray(4))


def test_end_in_progress(stub_comm: Communicator, recording: Recorder) -> None:
    """With a non-blocking communicator the exit waits until the library has taken the work."""
    recording.returns("ncclGroupEnd", 7)
    recording.set("async_polls", 4)
    with group():
        stub_comm.all_reduce(bytearray(4))
    assert recording.get("async_polls") < 0


def test_other_thread(stub_comm: Communicator, recording: Recorder) -> None:
    """Scenario 55: A group belongs to its thread: another thread is not in it, and cannot leave it."""
    caught: list[BaseException] = []

    def other() -> None:
        stub_comm.broadcast(bytearray(1))
        try:
            opened.__exit__(None, None, None)
        except pynickel.InvalidUsageError as error:
            caught.append(error)

    with group() as opened:
        stub_comm.all_reduce(bytearray(1))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(5)
        assert recording.names == ["ncclBroadcast"] and "the thread that entered it" in str(caught[0])
    assert recording.names == ["ncclBroadcast", "ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"]


def test_enter_twice() -> None:
    """A group is entered once."""
    opened = group()
    with opened:
        pass
    with pytest.raises(pynickel.InvalidUsageError, match="make a new one"), opened:
        pass
    assert not open_groups


@pytest.mark.parametrize("what", ["barrier", "wait", "close", "finalize"])
def test_not_in_a_group(what: str, stub_comm: Communicator, recording: Recorder) -> None:
    """What has to happen at once is refused in a group, and so is making a communicator."""
    with group():
        with pytest.raises(pynickel.InvalidUsageError, match="cannot be part of group"):
            getattr(stub_comm, what)()
        with pytest.raises(pynickel.InvalidUsageError, match="making a communicator"):
            Communicator(1, bytes(range(128)), 0, library=recording.path)
    assert recording.names == []


def test_keeps_buffers_alive(comm: Communicator) -> None:
    """Buffers that nobody else holds live until the group has run."""
    results = []
    with group():
        for i in range(20):
            results.append(comm.all_reduce(np.full(1000, float(i)), np.empty(1000)))
        gc.collect()
    assert [r[0] for r in results] == list(range(20))


def test_closed_communicator(comm: Communicator) -> None:
    """A closed communicator is refused in the body; one that is closed in the body fails at the exit, and starts nothing."""
    other = Communicator(1, pynickel.UniqueId.create("host"), 0, library="host")
    box = np.full(2, 7.0)
    with pytest.raises(pynickel.CommunicatorClosedError), group():
        comm.all_reduce(np.ones(2), box)
        other.all_reduce(np.ones(2))
        other.abort()
    assert box.tolist() == [7, 7]
    with group(), pytest.raises(pynickel.CommunicatorClosedError):
        other.all_reduce(np.ones(2))


def test_several_libraries(stub_comm: Communicator, recording: Recorder, comm: Communicator) -> None:
    """A group over communicators of two libraries opens and ends a group in each."""
    box = np.ones(2)
    with group():
        comm.all_reduce(box)
        stub_comm.all_reduce(bytearray(1))
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"] and box.tolist() == [1, 1]


@pytest.mark.parametrize("nranks", [2, 3])
def test_ring(nranks: int) -> None:
    """Scenario 58: A ring of sends and receives in a group is right for large and small messages."""

    def program(comm: Communicator) -> None:
        for size in (1, 1 << 18):
            send, recv = np.full(size, float(comm.rank)), np.zeros(size)
            with group():
                comm.send(send, (comm.rank + 1) % nranks)
                comm.recv(recv, (comm.rank - 1) % nranks)
            assert (recv == (comm.rank - 1) % nranks).all()

    together(nranks, program)


@pytest.mark.parametrize("size", [1, 1 << 19])
def test_cycle_without_group(size: int) -> None:
    """Scenario 58: Two ranks that both send first get an error, also for small messages, and do not hang."""

    def program(comm: Communicator) -> None:
        comm.send(np.zeros(size), 1 - comm.rank)

    for end in outcomes(2, program, deadline=2.5):
        assert isinstance(end, (pynickel.DeadlockError, pynickel.RemoteError, pynickel.WaitTimeoutError)), end


def test_self_send() -> None:
    """Scenario 60: Messages to the own rank work in a group, in order; alone they are an error."""

    def program(comm: Communicator) -> None:
        one, two, a, b = np.ones(3), np.full(3, 2.0), np.zeros(3), np.zeros(3)
        with group():
            comm.send(one, comm.rank)
            comm.send(two, comm.rank)
            comm.recv(a, comm.rank)
            comm.recv(b, comm.rank)
        assert (a.tolist(), b.tolist()) == ([1, 1, 1], [2, 2, 2])

    together(2, program)
    for end in outcomes(1, lambda comm: comm.send(np.ones(3), 0)):
        assert isinstance(end, pynickel.InvalidUsageError), end


def test_busy_communicator(recording: Recorder) -> None:
    """While another thread is inside one of its communicators a group enters no library, and leaves the others free."""
    one, two = (Communicator(4, bytes(range(128)), 1, library=recording.path) for _ in range(2))
    recording.forget()
    assert lib.pn_enter(two._guard) == 0
    with pytest.raises(pynickel.BusyError, match="one thread at a time"), group():
        one.all_reduce(bytearray(1))
        two.all_reduce(bytearray(1))
    assert recording.names == []
    lib.pn_leave(two._guard)
    one.all_reduce(bytearray(1))
    two.all_reduce(bytearray(1))
    assert recording.names == ["ncclAllReduce", "ncclAllReduce"]
    for comm in (one, two):
        comm.abort()


def test_simulate(comm: Communicator, stub_comm: Communicator, recording: Recorder) -> None:
    """simulate() estimates what is queued so far and starts nothing; the exit starts it all."""
    box = np.ones(1000)
    with group() as opened:
        assert opened.simulate() == 0
        comm.all_reduce(box)
        first = opened.simulate()
        comm.all_reduce(box, np.empty(1000))
        assert 0 < first < opened.simulate()
    with group() as other:
        stub_comm.all_reduce(bytearray(4))
        other.simulate()
        assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclGroupSimulateEnd"]
        recording.forget()
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"]


def test_open_group_does_not_block_the_exit(tmp_path: Path) -> None:
    """Scenario 55: A process ends with a group open."""
    import subprocess
    import sys

    code = "import pynickel as p; p.group().__enter__(); c = p.Communicator(1, p.UniqueId.create(), 0); c.all_reduce(bytearray(4))"
    done = subprocess.run([sys.executable, "-c", code], timeout=10, capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be part of group" in done.stderr
