"""What pynickel.parallel carries: objects, functions, program texts, arrays, and how."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from helpers.processes import no_child_left
from helpers.work import echo, sleep

from pynickel import parallel
from pynickel.parallel import ChildError, serial
from pynickel.parallel.channel import OBJECT, Channel
from pynickel.parallel.deadline import Deadline

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_child_left():
        yield


def test_a_group_is_served_whole_or_not_at_all() -> None:
    """When one child has sent nothing, receive names it, and what the others sent is still there."""

    def some(silent: int) -> None:
        parallel.send("begun")
        if parallel.id != silent:
            parallel.send("word")
        parallel.yield_()
        parallel.yield_()
        if parallel.id == silent:
            parallel.send("late")

    children = parallel.nfork(2)
    children.exec(some, children[1].id)
    assert list(children.receive().values()) == ["begun", "begun"]
    children.join()  # what they have sent before it has come
    with pytest.raises(TimeoutError, match=rf"^child {children[1].id} \(pid \d+\) did not send anything within 0.5 s$"):
        children.receive(timeout=0.5)
    children.join()
    assert list(children.receive().values()) == ["word", "late"]


def test_a_list_is_serialised_once() -> None:
    """Sending to four children pickles the object one time."""
    count = []

    class Counted:
        def __reduce__(self) -> tuple[Any, ...]:
            count.append(1)
            return (str, ("counted",))

    def answer() -> None:
        parallel.send(parallel.receive())

    children = parallel.nfork(4)
    children.exec(answer)
    children.send(Counted())
    assert set(children.receive().values()) == {"counted"}
    assert len(count) == 1


def test_functions_travel() -> None:
    """A child works off the functions it is sent, each with the data that it asks for itself."""

    def queue() -> None:
        while (function := parallel.receive()) is not None:
            parallel.send(function())

    offset = 100
    child = parallel.fork()
    child.exec(queue)
    child.send(lambda: parallel.receive() + offset)
    child.send(5)
    assert child.receive() == 105
    child.send(None)
    child.sync()


def test_source_text_runs() -> None:
    """exec takes a program text; the arguments are its `args`, and an error shows its line."""
    child = parallel.run("from pynickel import parallel\nparallel.send(args + parallel.args)", 1, "two")
    assert child.receive() == (1, "two", 1, "two")
    child = parallel.run("x = 1\nx / 0")
    with pytest.raises(ChildError, match="ZeroDivisionError") as caught:
        child.sync()
    assert 'line 2, in <module>\n    x / 0' in caught.value.traceback


def test_wrong_source_is_refused_here() -> None:
    """A text that is no Python, or no text and no function, never reaches the child."""
    child = parallel.fork()
    with pytest.raises(SyntaxError):
        child.exec("for")
    with pytest.raises(TypeError, match="exec needs a function or a string of Python source, not int"):
        child.exec(3)  # type: ignore[arg-type]
    child.exec("pass")
    child.sync()


def test_arrays_are_not_copied_into_the_pickle() -> None:
    """The parts of a message are the array's own memory, and the loaded array is the memory that was received."""
    array = np.arange(10_000, dtype=np.float32)
    parts = serial.dump({"array": array, "small": np.zeros(3)})
    assert len(parts) == 2
    assert np.shares_memory(np.frombuffer(parts[1], np.float32), array)
    assert len(parts[0]) < 1000
    received = [bytearray(part) for part in parts]
    loaded = serial.load(received)["array"]
    assert np.shares_memory(loaded, np.frombuffer(received[1], np.uint8))
    assert loaded.flags.writeable


PARTS = """
import gc
import numpy as np
from pynickel.parallel import serial

for value in ("plain", {"not": lambda: 0}, np.zeros(100_000)):
    ring = [serial.dump(value)]
    ring.append(ring)
    del ring
    gc.collect()
"""


def test_parts_end_in_silence() -> None:
    """What a message was made of can be collected as garbage, in any order, without a word on stderr."""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", PARTS], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_plain_values_are_pickled_the_short_way() -> None:
    """Numbers, texts, arrays and small collections of them need no cloudpickle; whatever may hold a function or a class does."""
    plain = [1, "text", None, np.zeros(3), {"a": [1, (2.0, b"b")], "c": np.arange(4)}, []]
    assert all(serial._is_plain(value) for value in plain)
    other = [print, int, np.array([None]), [lambda: 1], {"a": {1: {2: {3: 4}}}}, list(range(17)), {1, 2}, np.ma.zeros(3), signal.SIGINT]
    assert not any(serial._is_plain(value) for value in other)
    for value in [*plain[:3], plain[5], *other[4:7]]:
        assert serial.load([bytearray(part) for part in serial.dump(value)]) == value


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.arange(20_000)[::2],
        np.asfortranarray(np.arange(6_000.0).reshape(60, 100)),
        np.array(["text", None], dtype=object),
        np.float32(3),
    ],
    ids=["empty", "strided", "fortran", "object", "scalar"],
)
def test_arrays_of_all_kinds_come_back(array: Any) -> None:
    """An array comes back with its values, shape and type."""
    child = parallel.run("from pynickel import parallel\nparallel.send(parallel.receive())")
    child.send(array)
    back = child.receive()
    np.testing.assert_array_equal(back, array)
    assert (np.shape(back), np.asarray(back).dtype) == (np.shape(array), np.asarray(array).dtype)


def test_big_arrays_cross() -> None:
    """Parent and child send each other 32 MiB at the same time, and neither waits for the other to read."""

    def big(count: int) -> None:
        parallel.send(np.full(count, 2.0))
        parallel.send(float(parallel.receive().sum()))

    count = 4 << 20
    child = parallel.run(big, count)
    child.send(np.ones(count))
    assert child.receive().sum() == 2 * count
    assert child.receive() == count


def test_many_arrays_in_one_message() -> None:
    """A message may have more parts than one system call takes."""
    child = parallel.run("from pynickel import parallel\nparallel.send(parallel.receive())")
    child.send([np.full(2048, n) for n in range(2000)])
    assert [int(array[-1]) for array in child.receive()] == list(range(2000))


def test_run_gives_the_arguments() -> None:
    """run forks one child and calls the function with the arguments."""

    def tell(*args: object) -> None:
        parallel.send((args, parallel.args))

    child = parallel.run(tell, 1, [2])
    assert child.receive() == ((1, [2]), (1, [2]))


def test_a_child_that_takes_nothing() -> None:
    """Sending to a stopped process ends at the deadline too."""
    child = parallel.run(sleep)
    while not child.ready:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="took no data for 0.3 s"):
        child.send(bytes(10 << 20), timeout=0.3)
    os.kill(child.pid, signal.SIGCONT)


def test_what_cannot_be_sent_changes_nothing() -> None:
    """An object that cannot be pickled is refused in the caller; the connection stays good."""
    child = parallel.run(echo)
    for wrong in (threading.Lock(), child, parallel.fork()):
        with pytest.raises(TypeError):
            child.send(wrong)
    child.join("go")
    child.send(1)
    assert child.receive() == (child.id, "go", 1)


def test_nothing_listens() -> None:
    """Neither parent nor child has a socket that anyone could connect to."""
    child = parallel.run(echo)
    while not child.ready:
        time.sleep(0.01)
    sockets = psutil.Process(child.pid).net_connections("all")
    assert {connection.family for connection in sockets} == {socket.AF_UNIX}
    assert not any(connection.laddr or connection.status == psutil.CONN_LISTEN for connection in sockets)


def test_half_a_message_ends_the_connection() -> None:
    """When sending is interrupted in mid-message, the peer sees an end of file, never a wrong message."""
    near, far = socket.socketpair()
    ours, theirs = Channel(near), Channel(far)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.send(OBJECT, [bytes(10 << 20)], Deadline(5), interrupt)
    with pytest.raises(BrokenPipeError, match="cut off"):
        ours.send(OBJECT, [b"more"], Deadline(5), interrupt)
    with pytest.raises(EOFError):
        for _ in range(1000):
            assert not list(theirs.arrived())
    ours.close()
    theirs.close()
