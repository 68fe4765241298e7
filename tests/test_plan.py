"""Plan: queued once, launched often, all or nothing, alive as long as it needs its buffers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder
from helpers.threads import outcomes, together

import pynickel
from pynickel import Communicator, Plan, group
from pynickel._nccl import lib


def test_launch_is_a_group(stub_comm: Communicator, recording: Recorder) -> None:
    """Queueing does not enter the library; each launch is group start, every operation in order, group end."""
    plan = Plan(stub_comm)
    box = bytearray(8)
    assert plan.all_reduce(box) is box
    plan.send(box, 2, stream=5)
    plan.reduce(box, op="max")
    assert recording.names == [] and len(plan) == 3
    for _ in range(2):
        plan.launch()
    one = ["ncclGroupStart", "ncclAllReduce", "ncclSend", "ncclReduce", "ncclGroupEnd"]
    assert recording.names == one * 2
    calls = dict(recording.calls)
    address = pynickel.ffi.cast("uintptr_t", pynickel.ffi.from_buffer(box))
    assert calls["ncclSend"][:6] == [int(address), 8, 1, 2, stub_comm.handle, 5]
    assert calls["ncclReduce"][2:7] == [8, 1, 2, 0, stub_comm.handle]


def test_stream(stub_comm: Communicator, recording: Recorder) -> None:
    """launch(stream) moves every operation to that stream, for this launch alone."""
    plan = Plan(stub_comm)
    plan.send(bytearray(1), 2, stream=5)
    plan.send(bytearray(1), 2)
    for stream, seen in ((7, [7, 7]), (None, [5, 0])):
        recording.forget()
        plan.launch(stream)
        assert [args[5] for name, args in recording.calls if name == "ncclSend"] == seen
    with pytest.raises(TypeError, match="stream must be"):
        plan.launch("7")


def test_every_operation_of_the_communicator_can_be_planned() -> None:
    """A plan has each method that moves data, with the communicator's own arguments."""
    methods = {
        name
        for name, method in inspect.getmembers(Communicator, inspect.isfunction)
        if "stream" in inspect.signature(method).parameters and name != "wait" and not name.startswith("_")
    }
    assert methods == {name for name in methods if hasattr(Plan, name)}
    for name in methods:
        assert inspect.signature(getattr(Plan, name)) == inspect.signature(getattr(Communicator, name))


def test_right_results() -> None:
    """Plans of ranks give what single calls give, again and again, with data that changes in between."""

    def program(comm: Communicator) -> None:
        n = comm.nranks
        box, everyone, ring = np.zeros(3), np.zeros(3 * n), np.zeros(2)
        plan = Plan(comm)
        plan.all_reduce(box)
        plan.all_gather(box, everyone)
        plan.send_recv(np.full(2, float(comm.rank)), (comm.rank + 1) % n, ring, (comm.rank - 1) % n)
        for i in range(20):
            box[:] = i + comm.rank
            plan.launch()
            assert (box == n * i + sum(range(n))).all() and (everyone == box[0]).all() and (ring == (comm.rank - 1) % n).all()

    together(3, program)


def test_launches_in_a_group(stub_comm: Communicator, recording: Recorder) -> None:
    """Inside group() a plan's operations take their place among the others, as often as it is launched."""
    plan = Plan(stub_comm)
    plan.broadcast(bytearray(1))
    with group():
        plan.launch()
        stub_comm.all_reduce(bytearray(1))
        plan.launch()
        with pytest.raises(pynickel.InvalidUsageError, match="queue the operations with their stream"):
            plan.launch(stream=3)
    assert recording.names == ["ncclGroupStart", "ncclBroadcast", "ncclAllReduce", "ncclBroadcast", "ncclGroupEnd"]
    assert len(plan) == 1


def test_queueing_inside_a_group(stub_comm: Communicator, recording: Recorder) -> None:
    """What is queued for a plan inside group() belongs to the plan alone."""
    plan = Plan(stub_comm)
    with group():
        plan.broadcast(bytearray(1))
        stub_comm.all_reduce(bytearray(1))
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"] and len(plan) == 1


def test_keeps_buffers_alive_until_clear(comm: Communicator) -> None:
    """The plan holds its buffers while it can be launched; clear() lets go of them, and the plan takes new ones."""
    box: Any = np.ones(1000)
    gone = weakref.ref(box)
    plan = Plan(comm)
    plan.all_reduce(box)
    del box
    gc.collect()
    assert gone() is not None
    plan.launch()
    plan.clear()
    gc.collect()
    assert gone() is None and len(plan) == 0
    plan.launch()
    plan.all_reduce(new := np.full(3, 5.0))
    plan.launch()
    assert new.tolist() == [5, 5, 5]


def test_refused_arguments_queue_nothing(comm: Communicator) -> None:
    """Arguments are checked when they are queued, and a refused operation leaves nothing behind."""
    plan = Plan(comm)
    with pytest.raises(pynickel.NonContiguousError):
        plan.all_reduce(np.zeros((4, 4))[:, 0])
    with pytest.raises(ValueError, match="root"):
        plan.broadcast(np.zeros(4), root=9)
    assert len(plan) == 0
    with pytest.raises(TypeError, match="must be a Communicator"):
        Plan("world")  # type: ignore[arg-type]


def test_tells_which_operation_failed(stub_comm: Communicator, recording: Recorder) -> None:
    """If the library refuses an operation, the exception has its index and its function, and none is started."""
    plan = Plan(stub_comm)
    plan.all_reduce(bytearray(1))
    plan.all_reduce(bytearray(1))
    plan.send(bytearray(1), 0)
    recording.returns("ncclSend", 4)
    words = r"(?s)ncclSend failed.*operation 2 of 0\.\.2; none was started.*last words"
    with pytest.raises(pynickel.InvalidArgumentError, match=words) as caught:
        plan.launch()
    assert caught.value.operation == 2 and caught.value.function == "ncclSend"
    assert recording.names[-2:] == ["ncclBroadcast", "ncclGroupEnd"]  # an operation that cannot be, so that the end starts nothing
    recording.forget()
    plan.launch()
    assert recording.names == ["ncclGroupStart", "ncclAllReduce", "ncclAllReduce", "ncclSend", "ncclGroupEnd"]


def test_failing_group(stub_comm: Communicator, recording: Recorder) -> None:
    """A group that cannot be opened or ended is told as such."""
    plan = Plan(stub_comm)
    plan.all_reduce(bytearray(1))
    for function in ("ncclGroupStart", "ncclGroupEnd"):
        recording.forget()
        recording.returns(function, 3)
        with pytest.raises(pynickel.InternalError, match=f"{function} failed"):
            plan.launch()


def test_mismatch_and_on() -> None:
    """Plans that do not fit together raise on every rank, and the ranks go on."""

    def program(comm: Communicator) -> None:
        plan = Plan(comm)
        plan.all_reduce(np.zeros(4 + comm.rank))
        with pytest.raises(pynickel.CollectiveMismatchError):
            plan.launch()
        plan.clear()
        plan.all_reduce(box := np.ones(3))
        plan.launch()
        assert box.tolist() == [2, 2, 2]

    together(2, program)


def test_after_the_end(comm: Communicator) -> None:
    """A plan of a closed communicator says so, and enters no library."""
    other = Communicator(1, pynickel.UniqueId.create("host"), 0, library="host")
    plan = Plan(other)
    plan.all_reduce(np.zeros(3))
    other.close()
    with pytest.raises(pynickel.CommunicatorClosedError, match=r"close\(\) was called"):
        plan.launch()
    with pytest.raises(pynickel.CommunicatorClosedError):
        plan.all_reduce(np.zeros(3))
    with pytest.raises(pynickel.CommunicatorClosedError):
        Plan(other)


def test_peer_that_is_gone() -> None:
    """A launch whose peer has left ends with its error, not in a hang."""

    def program(comm: Communicator) -> None:
        plan = Plan(comm)
        plan.all_reduce(np.zeros(3))
        plan.launch()
        if comm.rank == 0:
            plan.launch()

    assert isinstance(outcomes(2, program)[0], (pynickel.RemoteError, pynickel.CommunicatorClosedError))


def test_two_threads(stub_comm: Communicator) -> None:
    """Threads that queue into and launch one plan at once get BusyError or their turn, and nothing is damaged."""
    plan = Plan(stub_comm)
    plan.all_reduce(bytearray(8))
    wrong: list[BaseException] = []

    def body() -> None:
        for i in range(300):
            try:
                plan.all_reduce(bytearray(8)) if i % 3 == 0 else plan.launch()
            except pynickel.BusyError:
                pass
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    plan.launch()


def test_many_operations(comm: Communicator) -> None:
    """A thousand operations are one launch."""
    boxes = [np.full(3, float(i)) for i in range(1000)]
    plan = Plan(comm)
    for box in boxes:
        plan.all_reduce(box)
    plan.launch()
    assert [box[0] for box in boxes] == list(range(1000))
    assert plan.simulate() > 0 and "1000 operations" in repr(plan)


def test_no_memory_is_leaked_by_refusals() -> None:
    """The C side refuses a plan that is in use, instead of waiting."""
    plan = lib.pn_plan_new()
    assert lib.pn_plan_extend(plan, plan) == lib.PN_BUSY
    assert lib.pn_plan_clear(plan) == 0 and lib.pn_plan_launch(plan) == 0 and plan.failed == lib.PN_NONE
    lib.pn_plan_free(plan)
    lib.pn_plan_free(pynickel.ffi.NULL)
