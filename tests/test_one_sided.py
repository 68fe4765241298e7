"""Windows, puts, signals, registrations, and operators: what they do, and that they end with their communicator."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder, build
from helpers.threads import outcomes, together

import pynickel
from pynickel import Communicator, Config, Plan, UniqueId, group
from pynickel.redop import encode


def windowed(comm: Communicator, size: int = 1024) -> tuple[Any, Any]:
    """An array of zeros on every rank, and the window on it."""
    box = pynickel.empty(size, "float32", library="host")
    box[:] = 0
    window = comm.window(box)
    comm.barrier()
    return box, window


def test_put_signal() -> None:
    """A put is in the peer's window, at its offset, when the signal has been waited for."""

    def program(comm: Communicator) -> None:
        box, window = windowed(comm)
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        for i in range(5):
            comm.put_signal(np.full(4, 10 * i + comm.rank, "f4"), right, window, offset=16 * i)
            comm.wait_signal(left)
            assert box[4 * i : 4 * i + 4].tolist() == [10 * i + left] * 4
        assert window and window.user_pointer == box.ctypes.data and box[20:].sum() == 0
        window.close()
        window.close()

    together(3, program)


def test_signals_are_counted() -> None:
    """Signals without data are counted per peer; one wait may be for several peers and several signals."""

    def program(comm: Communicator) -> None:
        if comm.rank:
            comm.signal(0)
            comm.signal(0)
        else:
            comm.wait_signal([1, 2], count=2)
        comm.barrier()

    together(3, program)


def test_group_and_plan() -> None:
    """Puts, signals and waits take part in groups and plans."""

    def program(comm: Communicator) -> None:
        box, window = windowed(comm)
        peer, source = 1 - comm.rank, np.zeros(2, "f4")
        with group():
            comm.put_signal(source + 5, peer, window)
            comm.wait_signal(peer)
        assert box[:2].tolist() == [5, 5]
        plan = Plan(comm)
        plan.put_signal(source, peer, window, 8)
        plan.wait_signal(peer)
        for i in range(1, 4):
            source[:] = i
            plan.launch()
            assert box[2:4].tolist() == [i, i]
            comm.barrier()

    together(2, program)


def test_several_signal_indices() -> None:
    """Config(numRmaSig=) gives several signals per pair of ranks; an index beyond them is the library's error."""
    config = Config(numRmaSig=2)
    uid = UniqueId.create("host")

    def program(outer: Communicator) -> None:
        with Communicator(2, uid, outer.rank, library="host", config=config, timeout=5) as comm:
            comm.signal(1 - comm.rank, index=1)
            comm.wait_signal(1 - comm.rank, index=1)
            with pytest.raises(pynickel.InvalidArgumentError, match="signal index is 2"):
                comm.signal(1 - comm.rank, index=2)

    together(2, program)


def test_wait_without_signal() -> None:
    """A wait for a signal that does not come ends with the deadline and names the peer."""

    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.wait_signal(1)
        else:
            with pytest.raises(pynickel.NCCLError):
                comm.barrier()

    assert isinstance(outcomes(2, program, deadline=2)[0], (pynickel.WaitTimeoutError, pynickel.RemoteError, pynickel.DeadlockError))


def test_plain_memory_makes_no_window() -> None:
    """Where the library makes no window the object is false, and put_signal says what memory is needed."""
    uid = UniqueId.create("host")
    import subprocess
    import sys

    code = f"""
import numpy as np, pynickel as p, sys
with p.Communicator(2, p.UniqueId.fromhex({uid.hex()!r}), int(sys.argv[1]), library='host', timeout=8) as comm:
    box = np.zeros(4096, 'f4')
    start = -box.ctypes.data % 4096 // 4
    window = comm.window(box[start:start + 1024])
    assert not window and window.user_pointer == 0 and 'not made' in repr(window)
    try:
        comm.put_signal(np.zeros(1), 0, window)
    except ValueError as error:
        assert 'from empty() or mem_alloc()' in str(error)
    else:
        raise SystemExit('no error')
"""
    children = [subprocess.Popen([sys.executable, "-c", code, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    for child in children:
        try:
            _, errors = child.communicate(timeout=20)
        finally:
            child.kill()
        assert child.returncode == 0, errors


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [({"peer": 2}, ValueError, r"0\.\.1"), ({"offset": -1}, ValueError, "offset"), ({"offset": 1.5}, TypeError, "offset"),
     ({"index": -1}, ValueError, "index"), ({"context": "0"}, TypeError, "context"), ({"window": None}, TypeError, "window must be one")],
)  # fmt: skip
def test_bad_arguments(arguments: Any, error: type[Exception], words: str) -> None:
    """Arguments are refused by name before the library is entered."""

    def program(comm: Communicator) -> None:
        _, window = windowed(comm)
        values = {"peer": 0, "window": window, "offset": 0} | arguments
        with pytest.raises(error, match=words):
            comm.put_signal(np.zeros(2, "f4"), **values)
        comm.barrier()

    together(2, program)


def test_bad_waits(comm: Communicator) -> None:
    """A wait needs a peer and at least one signal."""
    with pytest.raises(ValueError, match="empty list"):
        comm.wait_signal([])
    with pytest.raises(ValueError, match="count"):
        comm.wait_signal(0, count=0)


def test_put_beyond_the_window() -> None:
    """A put that does not fit is the library's error and nothing is written."""

    def program(comm: Communicator) -> None:
        box, window = windowed(comm)
        with pytest.raises(pynickel.InvalidArgumentError, match="do not fit"):
            comm.put_signal(np.ones(2, "f4"), 1 - comm.rank, window, offset=box.nbytes - 4)
        comm.barrier()
        assert box.sum() == 0

    together(2, program)


def test_window_of_another_communicator() -> None:
    """Windows and operators belong to their communicator, and a closed one is refused."""

    def program(comm: Communicator) -> None:
        _, window = windowed(comm)
        op = comm.pre_mul_sum(2, "float32")
        child = comm.duplicate()
        with pytest.raises(ValueError, match="made by another communicator"):
            child.put_signal(np.zeros(1, "f4"), 0, window)
        with pytest.raises(ValueError, match="made by another communicator"):
            child.all_reduce(np.zeros(1, "f4"), op=op)
        child.close()
        window.close()
        op.close()
        with pytest.raises(pynickel.CommunicatorClosedError, match="was closed"):
            comm.put_signal(np.zeros(1, "f4"), 0, window)
        with pytest.raises(pynickel.CommunicatorClosedError, match="was closed"):
            comm.all_reduce(np.zeros(1, "f4"), op=op)

    together(2, program)


def test_flags_and_their_gates(recording: Recorder, tmp_path: Any) -> None:
    """The flags are NCCL's bits; one that the library does not know says which release does."""
    uid = bytes(range(128))
    comm = Communicator(4, uid, 1, library=recording.path)
    for flags, bits in (({}, 1), ({"symmetric": False}, 0), ({"strict_ordering": True, "cft_counted": True}, 11), ({"gin_only": True}, 5)):
        recording.forget()
        comm.window(bytearray(64), **flags)
        assert dict(recording.calls)["ncclCommWindowRegister"][4] == bits
    comm.abort()
    path = build(tmp_path)
    Recorder(path).set("set_version", 22803)
    comm = Communicator(4, uid, 1, library=path)
    with pytest.raises(pynickel.NotAvailableError, match=r"window\(strict_ordering=\) needs NCCL 2.29.7; 2.28.3 is loaded"):
        comm.window(bytearray(64), strict_ordering=True)
    comm.abort()


def test_registration(recording: Recorder) -> None:
    """A registered buffer is kept alive until it is closed; the communicator's end closes what is open, once."""
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    box: Any = np.zeros(16)
    gone = weakref.ref(box)
    with comm.register(box) as registration:
        assert (registration.address, registration.nbytes) == (box.ctypes.data, 128)
        del box
        gc.collect()
        assert gone() is not None
    assert recording.names == ["ncclCommRegister", "ncclCommDeregister"]
    recording.forget()
    open_ones = [comm.register(0x1000, count=4, dtype="int8"), comm.window(bytearray(8)), comm.pre_mul_sum(1.5, "float64")]
    comm.close()
    assert recording.names == [
        "ncclCommRegister", "ncclCommWindowRegister", "ncclRedOpCreatePreMulSum", "ncclCommDeregister", "ncclCommWindowDeregister",
        "ncclRedOpDestroy", "ncclCommDestroy",
    ]  # fmt: skip
    recording.forget()
    for thing in open_ones:
        assert not thing.is_open and "closed" in repr(thing)
        thing.close()
    assert recording.names == []


def test_after_abort(recording: Recorder) -> None:
    """After abort() what belonged to the communicator is closed, without a call."""
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    thing = comm.register(bytearray(8))
    comm.abort()
    recording.forget()
    thing.close()
    assert recording.names == [] and not thing.is_open


def test_in_a_forked_child() -> None:
    """A forked child closes what its parent's communicator owns without harm; the parent's goes on."""
    import subprocess
    import sys

    code = """
import os, numpy as np, pynickel as p
comm = p.Communicator(1, p.UniqueId.create('host'), 0, library='host')
op, plan = comm.pre_mul_sum(2, 'float32'), p.Plan(comm)
plan.all_reduce(box := np.ones(2, 'f4'), op=op)
if (pid := os.fork()) == 0:
    try:
        plan.launch()
    except p.ForkedError:
        op.close()
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
plan.launch()
assert box.tolist() == [2, 2]
comm.close()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_not_in_a_group(comm: Communicator) -> None:
    """Making and closing happen at once, so they are refused in a group, where operations that use them wait."""
    op = comm.pre_mul_sum(1, "int32")
    with group():
        for make in (lambda: comm.register(bytearray(8)), lambda: comm.window(bytearray(8)), lambda: comm.pre_mul_sum(1, "int8"), op.close):
            with pytest.raises(pynickel.InvalidUsageError, match="cannot be part of group"):
                make()
    op.close()


def on_two(body: Callable[[Communicator], Any]) -> list[Any]:
    return together(2, body)


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64", "bfloat16"])
def test_pre_mul_sum(name: str) -> None:
    """Each rank's input is multiplied by its own factor before the sum, in every type."""
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)

    def program(comm: Communicator) -> Any:
        with comm.pre_mul_sum(comm.rank + 2, name) as op:
            reduced = comm.all_reduce(np.arange(4).astype(kind), op=op)
            at_root = comm.reduce(np.ones(2, kind), np.zeros(2, kind), op, root=1)
            part = comm.reduce_scatter(np.ones(2, kind), np.zeros(1, kind), op)
        assert at_root is None or comm.rank == 0 or at_root.astype(int).tolist() == [5, 5]
        assert part.astype(int).tolist() == [5]
        return reduced.astype(int).tolist()

    assert on_two(program) == [[0, 5, 10, 15]] * 2


def test_factors(recording: Recorder) -> None:
    """A factor is a number, a NumPy scalar, or one element in a buffer; what the library sees are its bytes."""
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path)
    for factor in (2.5, np.float32(2.5), np.array(2.5, "f4"), np.array([2.5], "f4"), np.array([2.5], "f4").tobytes()):
        op = comm.pre_mul_sum(factor, "float32")
        assert bytes(recording.struct("seen_scalar", "uint64_t")[0].to_bytes(8, "little"))[:4] == np.float32(2.5).tobytes()
        assert dict(recording.calls)["ncclRedOpCreatePreMulSum"][3] == 1 and op.number == 77
    comm.abort()


@pytest.mark.parametrize(
    ("factor", "dtype", "error", "words"),
    [
        (1.5, "int32", TypeError, "must be an int"),
        (300, "uint8", ValueError, "does not fit uint8"),
        (1e39, "bfloat16", ValueError, "does not fit"),
        (True, "float32", TypeError, "must be a number"),
        ("2", "float32", TypeError, "scalar"),
        (np.zeros(2, "f4"), "float32", ValueError, "one element"),
        (np.zeros(1, "f8"), "float32", ValueError, "one element"),
        (np.zeros(1, "i4"), "float32", ValueError, "one element"),
    ],
)
def test_bad_factors(factor: Any, dtype: str, error: type[Exception], words: str, comm: Communicator) -> None:
    """A factor that is not one element of the type is refused."""
    with pytest.raises(error, match=words):
        comm.pre_mul_sum(factor, dtype)


def test_operator_of_another_type(comm: Communicator) -> None:
    """The operator multiplies one type, and says so when the buffers hold another."""
    with comm.pre_mul_sum(2, "float32") as op, pytest.raises(ValueError, match="multiplies float32, but the buffers hold float64"):
        comm.all_reduce(np.zeros(2), op=op)


def test_narrow_numbers() -> None:
    """bfloat16 and fp8 factors are rounded as ml_dtypes rounds them."""
    import ml_dtypes

    for value in (0.0, -1.5, 1 / 3, 256.5, 1e-40, 3.389e38, float("inf"), float("nan"), -0.0):
        assert encode(value, pynickel.bfloat16) == np.array(value).astype(ml_dtypes.bfloat16).tobytes() or value != value
    assert np.frombuffer(encode(float("nan"), pynickel.bfloat16), ml_dtypes.bfloat16)[0] != 0
    assert encode(1.5, pynickel.float8e4m3) == np.array(1.5, ml_dtypes.float8_e4m3fn).tobytes()
    assert encode(1.5, pynickel.float8e5m2) == np.array(1.5, ml_dtypes.float8_e5m2).tobytes()
