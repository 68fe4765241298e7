"""Communicator: every operation on the CPU library, in place and out of place, on arrays and on bare addresses."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import arrays, faulty
from helpers.recorder import Recorder
from helpers.threads import outcomes, together

import pynickel
from pynickel import Communicator, UniqueId, group

N = 5  # elements of one rank's part


def data(rank: int, parts: int = 1) -> Any:
    """What rank contributes: different on every rank and in every element."""
    return np.arange(N * parts, dtype=np.float32) + 100 * rank


def check(found: Any, expected: Any) -> None:
    assert np.array_equal(np.asarray(found), np.asarray(expected)), (found, expected)


def usable(comm: Communicator) -> None:
    """The communicator still gives the right sum."""
    check(comm.all_reduce(np.full(3, comm.rank + 1.0)), np.full(3, comm.nranks * (comm.nranks + 1) / 2))


def forms(comm: Communicator, array: Any) -> list[Any]:
    """The same memory as an object, and as an address with count and dtype."""
    return [(array, {}), (array.ctypes.data, {"count": N, "dtype": pynickel.float32})]


def on_every_form(body: Callable[..., None]) -> Callable[[Communicator], None]:
    """A rank's program that runs body once for arrays and once for addresses."""

    def program(comm: Communicator) -> None:
        for pointers in (False, True):
            options = {"count": N, "dtype": "float32"} if pointers else {}
            body(comm, (lambda array: array.ctypes.data) if pointers else (lambda array: array), options)
        usable(comm)

    return program


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_all_reduce(nranks: int) -> None:
    """Every rank has the reduction, in recv or in place, and gets back the object that received."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        everyone = [data(r) for r in range(nranks)]
        for op, expected in {"sum": sum(everyone), "max": everyone[-1], "min": everyone[0], "prod": np.prod(everyone, 0)}.items():
            send, recv = data(comm.rank), np.zeros(N, "f4")
            sent, received = form(send), form(recv)
            assert comm.all_reduce(sent, received, op, **options) is received
            check(recv, expected)
            check(send, data(comm.rank))
            assert comm.all_reduce(sent, op=op, **options) is sent
            check(send, expected)

    together(nranks, on_every_form(body))


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_broadcast(nranks: int) -> None:
    """Every rank has the root's data, for every root; elsewhere send may be None."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        for root in range(nranks):
            send, recv = data(comm.rank), np.zeros(N, "f4")
            comm.broadcast(form(send), form(recv), root, **options)
            check(recv, data(root))
            recv[:] = 0
            comm.broadcast(form(send) if comm.rank == root else None, form(recv), root, **options)
            check(recv, data(root))
            comm.bcast(form(send), root, **options)
            check(send, data(root))

    together(nranks, on_every_form(body))


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_reduce(nranks: int) -> None:
    """The root has the reduction; elsewhere nothing changes and recv is not looked at."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        total = sum(data(r) for r in range(nranks))
        for root in range(nranks):
            send, recv = data(comm.rank), np.zeros(N, "f4")
            result = comm.reduce(form(send), form(recv) if comm.rank == root else None, root=root, **options)
            check(recv, total if comm.rank == root else 0 * total)
            assert (result is None) == (comm.rank != root)
            comm.reduce(form(send), None if comm.rank == root else "not used", root=root, **options)
            check(send, total if comm.rank == root else data(comm.rank))

    together(nranks, on_every_form(body))


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_all_gather(nranks: int) -> None:
    """Scenario 14a: Every rank has all parts in rank order, also in place."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        expected = np.concatenate([data(r) for r in range(nranks)])
        recv = np.zeros(N * nranks, "f4")
        comm.all_gather(form(data(comm.rank)), form(recv), **options) if not options else None
        own = recv[comm.rank * N : (comm.rank + 1) * N]
        recv[:] = 0
        own[:] = data(comm.rank)
        comm.all_gather(form(own), form(recv), **options)
        check(recv, expected)

    together(nranks, on_every_form(body))


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_reduce_scatter(nranks: int) -> None:
    """Rank r has slice r of the reduction, also in place."""

    def body(comm: Communicator, form: Any, options: Any) -> None:
        mine = slice(comm.rank * N, (comm.rank + 1) * N)
        expected = sum(data(r, nranks) for r in range(nranks))[mine]
        send, recv = data(comm.rank, nranks), np.zeros(N, "f4")
        comm.reduce_scatter(form(send), form(recv), **options)
        check(recv, expected)
        comm.reduce_scatter(form(send), form(send[mine]), "sum", **options)
        check(send[mine], expected)

    together(nranks, on_every_form(body))


def body_of_gather(comm: Communicator, form: Any, options: Any) -> None:
    """Gather for every root, out of place and in place."""
    nranks = comm.nranks
    expected = np.concatenate([data(r) for r in range(nranks)])
    for root in range(nranks):
        send, recv = data(comm.rank), np.zeros(N * nranks, "f4")
        comm.gather(form(send), form(recv) if comm.rank == root else None, root, **options)
        check(recv, expected if comm.rank == root else 0 * expected)
        recv[:] = 0
        own = recv[root * N : (root + 1) * N]
        own[:] = data(comm.rank)
        comm.gather(form(own), form(recv) if comm.rank == root else None, root, **options)
        check(recv if comm.rank == root else own, expected if comm.rank == root else data(comm.rank))


def body_of_scatter(comm: Communicator, form: Any, options: Any) -> None:
    """Scatter for every root, out of place and in place."""
    nranks = comm.nranks
    mine = slice(comm.rank * N, (comm.rank + 1) * N)
    for root in range(nranks):
        send, recv = data(root, nranks), np.zeros(N, "f4")
        comm.scatter(form(send) if comm.rank == root else None, form(recv), root, **options)
        check(recv, data(root, nranks)[mine])
        comm.scatter(form(send) if comm.rank == root else None, form(send[mine] if comm.rank == root else recv), root, **options)
        check(send, data(root, nranks))


def body_of_all_to_all(comm: Communicator, form: Any, options: Any) -> None:
    """All-to-all."""
    nranks = comm.nranks
    mine = slice(comm.rank * N, (comm.rank + 1) * N)
    send, recv = data(comm.rank, nranks), np.zeros(N * nranks, "f4")
    comm.all_to_all(form(send), form(recv), **options)
    check(recv, np.concatenate([data(r, nranks)[mine] for r in range(nranks)]))


SPLIT = {"gather": body_of_gather, "scatter": body_of_scatter, "all_to_all": body_of_all_to_all}


@pytest.mark.parametrize("operation", SPLIT)
@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_gather_scatter_all_to_all(operation: str, nranks: int) -> None:
    """Scenario 16: Gather, scatter and all-to-all for every root, also in place where there is a form for it."""
    together(nranks, on_every_form(SPLIT[operation]))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU library without the three functions that NCCL has since 2.28."""
    lacking = ("ncclGather", "ncclScatter", "ncclAlltoAll")
    return faulty.build(Path(pynickel.load("host").path), tmp_path_factory.mktemp("older"), changed=lacking)


@pytest.mark.parametrize("operation", SPLIT)
@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_without_native_functions(operation: str, nranks: int, older: Path) -> None:
    """A library that lacks them gives the same results by grouped sends and receives, alone and inside a group."""
    assert not pynickel.load(older).has("ncclGather")

    def grouped(comm: Communicator) -> None:
        send, big = data(comm.rank), np.zeros(N * nranks, "f4")
        with group():
            comm.gather(send, big if comm.rank == 0 else None)
            comm.all_reduce(total := np.ones(2))
        check(total, [nranks, nranks])
        check(big, np.concatenate([data(r) for r in range(nranks)]) if comm.rank == 0 else 0 * big)

    together(nranks, on_every_form(SPLIT[operation]), library=older)
    together(nranks, grouped, library=older)


def test_calls_without_native_functions(tmp_path: Path) -> None:
    """Such a gather is one group with a receive per rank at the root, and a refused part starts nothing."""
    from helpers import recorder

    path = recorder.build(tmp_path, lacks=["ncclGather"])
    recording = Recorder(path)
    comm = Communicator(4, bytes(range(128)), 1, library=path)
    recording.forget()
    comm.gather(np.zeros(2), np.zeros(8), root=1)
    assert recording.names == ["ncclGroupStart", "ncclSend", *["ncclRecv"] * 4, "ncclGroupEnd"]
    recording.forget()
    recording.returns("ncclRecv", 4)
    with pytest.raises(pynickel.InvalidArgumentError, match="ncclRecv failed"):
        comm.gather(np.zeros(2), np.zeros(8), root=1)
    assert recording.names == ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclBroadcast", "ncclGroupEnd"]
    comm.abort()


def test_send_recv() -> None:
    """send and recv match, send_recv does both at once, also to the own rank, with sizes of their own."""

    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            assert comm.send(data(7), 1) is None
        elif comm.rank == 1:
            box = np.zeros(N, "f4")
            assert comm.recv(box, 0) is box
            check(box, data(7))
        left, right = (comm.rank - 1) % 3, (comm.rank + 1) % 3
        got = np.zeros(left + 1)
        assert comm.send_recv(np.full(comm.rank + 1, float(comm.rank)), right, got, left) is got
        check(got, np.full(left + 1, float(left)))
        check(comm.send_recv(data(1), comm.rank, np.zeros(N, "f4"), comm.rank), data(1))
        usable(comm)

    together(3, program)


def test_send_recv_in_place_is_refused(comm: Communicator) -> None:
    """send_recv on one buffer is OverlapError: there is no in-place form."""
    box = np.zeros(4)
    with pytest.raises(pynickel.OverlapError, match="no in-place form"):
        comm.send_recv(box, 0, box[2:], 0)


@pytest.mark.parametrize("kind", arrays.kinds(np.zeros(1, "f4")))
def test_every_kind_of_buffer(kind: str) -> None:
    """Every protocol works in every position."""

    def program(comm: Communicator) -> None:
        send, recv, big = (np.full(n, comm.rank + 1, "f4") for n in (N, N, 2 * N))
        a, b, c = (arrays.kinds(x)[kind] for x in (send, recv, big))
        assert comm.all_reduce(a, b) is b
        check(recv, np.full(N, 3))
        comm.all_reduce(a)
        check(send, np.full(N, 3))
        comm.all_gather(b, c)
        comm.reduce_scatter(c, a)
        check(send, np.full(N, 6))
        comm.gather(a, c if comm.rank == 0 else None)
        comm.scatter(c, b)
        comm.all_to_all(c, arrays.kinds(np.zeros(2 * N, "f4"))[kind])
        comm.broadcast(a)
        comm.reduce(a, b)
        comm.send_recv(a, 1 - comm.rank, b, 1 - comm.rank)

    together(2, program)


def test_barrier() -> None:
    """barrier returns when all ranks have called it, and with a timeout names who has not."""

    done = threading.Event()

    def program(comm: Communicator) -> Any:
        comm.barrier()
        if comm.rank == 1:
            assert done.wait(5)
            return None
        try:
            with pytest.raises(pynickel.WaitTimeoutError) as caught:
                comm.barrier(timeout=0.3)
        finally:
            done.set()
        return caught.value.missing

    assert outcomes(2, program)[0] == (1,)


def test_zero_count() -> None:
    """Scenario 04: Count 0 succeeds everywhere with valid and with null pointers, and changes nothing."""

    def program(comm: Communicator) -> None:
        box = np.full(4, 7, "f4")
        for a, b in ((box.ctypes.data, box.ctypes.data + 8), (0, 0)):
            options = {"count": 0, "dtype": "float32"}
            comm.all_reduce(a, b, **options)
            comm.broadcast(a, b, **options)
            comm.reduce(a, b, **options)
            comm.all_gather(a, b, **options)
            comm.reduce_scatter(a, b, **options)
            comm.all_to_all(a, b, **options)
            comm.gather(a, b, **options)
            comm.scatter(a, b, **options)
            comm.send_recv(a, (comm.rank + 1) % 3, b, (comm.rank - 1) % 3, **options)
        comm.all_reduce(np.zeros(0))
        check(box, np.full(4, 7))
        usable(comm)

    together(3, program)


def test_strided_is_refused_and_leaves_no_trace() -> None:
    """Scenarios 01, 03: A strided array is refused on its own rank before anything is sent; values stay and the ranks go on."""

    def program(comm: Communicator) -> None:
        square = np.arange(16, dtype="i4").reshape(4, 4)
        out, big = np.zeros(4, "i4"), np.zeros(8, "i4")
        calls: list[Callable[[Any], Any]] = [
            comm.all_reduce, lambda x: comm.all_reduce(x, out), comm.broadcast, lambda x: comm.send(x, 0), lambda x: comm.gather(x, big),
            lambda x: comm.reduce_scatter(x, out[:2]), lambda x: comm.all_gather(out, x), lambda x: comm.all_reduce(out, x),
        ]  # fmt: skip
        for bad in (square[:, 0], square.T[:1], square[::2].T):
            for call in calls:
                with pytest.raises(pynickel.NonContiguousError, match="shape .* strides"):
                    call(bad)
        check(square, np.arange(16).reshape(4, 4))
        usable(comm)

    together(2, program)


@pytest.mark.parametrize("bad", [-1, 2, 5, 2**40, True, 1.0, "0", None])
def test_roots_and_peers(bad: Any) -> None:
    """Scenario 08: A root or peer out of range is refused at once with the valid range, and leaves no trace."""

    def program(comm: Communicator) -> None:
        box, big = np.zeros(2), np.zeros(4)
        error, words = (ValueError, r"0\.\.1") if type(bad) is int else (TypeError, "must be an int")
        for call in (
            lambda: comm.broadcast(box, root=bad), lambda: comm.reduce(box, root=bad), lambda: comm.gather(box, big, root=bad),
            lambda: comm.scatter(big, box, root=bad), lambda: comm.send(box, bad), lambda: comm.recv(box, bad),
            lambda: comm.send_recv(box, bad, big, 0), lambda: comm.send_recv(box, 0, big, bad),
        ):  # fmt: skip
            with pytest.raises(error, match=words):
                call()
        usable(comm)

    together(2, program)


def test_numpy_ints_are_ints() -> None:
    """NumPy integers serve as rank, root, peer and count."""

    def program(comm: Communicator) -> None:
        check(comm.broadcast(data(comm.rank), root=np.int64(1), count=np.uint8(N)), data(1))

    together(2, program)


def test_in_place_offsets() -> None:
    """Scenario 14: An in-place all-gather at another place than the own slice is OverlapError with the right address."""

    def program(comm: Communicator) -> None:
        box = np.zeros(3 * N, "f4")
        right = box.ctypes.data + comm.rank * N * 4
        wrong = [box.ctypes.data + N * 2] + [box.ctypes.data] * (comm.rank > 0)
        for address in wrong:
            with pytest.raises(pynickel.OverlapError, match=f"send at {right:#x}" if comm.rank else "in place"):
                comm.all_gather(address, box.ctypes.data, count=N, dtype=pynickel.float32)
        usable(comm)

    together(3, program)


def test_uneven_sizes_are_refused() -> None:
    """Scenario 18: 73 elements for 4 ranks are refused, never rounded down."""

    def program(comm: Communicator) -> None:
        for call in (
            lambda: comm.reduce_scatter(np.zeros(73), np.zeros(18)), lambda: comm.all_to_all(np.zeros(73), np.zeros(73)),
            lambda: comm.scatter(np.zeros(73), np.zeros(18), root=comm.rank),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="73 elements, no multiple of 4 ranks; pad it to 76"):
                call()
        usable(comm)

    together(4, program)


@pytest.mark.parametrize("change", ["type", "count", "op", "operation", "root"])
def test_mismatch(change: str) -> None:
    """Calls that do not fit together raise CollectiveMismatchError on every rank; nothing is written and the ranks go on."""

    def program(comm: Communicator) -> str:
        odd = comm.rank == 1
        box = np.full(8 if odd and change == "count" else 16, 3, "f4" if not (odd and change == "type") else "f8")
        before = box.copy()
        with pytest.raises(pynickel.CollectiveMismatchError) as caught:
            if odd and change == "operation":
                comm.broadcast(box)
            elif change == "root":
                comm.broadcast(box, root=comm.rank)
            else:
                comm.all_reduce(box, op="max" if odd and change == "op" else "sum")
        check(box, before)
        usable(comm)
        return str(caught.value)

    for text in together(3, program):
        assert "rank" in text and "float32" in text


def test_init_all() -> None:
    """init_all gives every rank of a communicator to one thread; a group drives them together."""
    comms = Communicator.init_all(3, "host")
    boxes = [data(r) for r in range(3)]
    with group():
        for comm, box in zip(comms, boxes, strict=True):
            comm.all_reduce(box)
    for box in boxes:
        check(box, sum(data(r) for r in range(3)))
    assert [(c.rank, c.nranks, c.device) for c in comms] == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]
    for comm in comms:
        comm.close()


def test_init_all_with_devices() -> None:
    """The devices of init_all are labels on the CPU library."""
    comms = Communicator.init_all([3, 7], "host")
    assert [c.device for c in comms] == [3, 7]
    for comm in comms:
        comm.close()


@pytest.mark.parametrize("devices", [0, -1, [], [-1], True, 1.5, "2", None, [1.0]])
def test_bad_devices(devices: Any) -> None:
    """Devices are a number of at least 1 or a list of device numbers."""
    with pytest.raises((TypeError, ValueError), match="device"):
        Communicator.init_all(devices, "host")


def test_from_handle() -> None:
    """A borrowed communicator works and is not ended by close; an owned one is."""
    made = Communicator(1, UniqueId.create("host"), 0, library="host")
    for pointer in (made.handle, pynickel.ffi.cast("ncclComm_t", made.handle)):
        borrowed = Communicator.from_handle(pointer, "host")
        assert (borrowed.rank, borrowed.nranks, borrowed.handle) == (0, 1, made.handle)
        usable(borrowed)
        borrowed.close()
        assert borrowed.state == "closed" and made.state == "ready"
    usable(made)
    with pytest.raises(ValueError, match="NULL"):
        Communicator.from_handle(0, "host")
    made.close()


@pytest.mark.parametrize(
    ("nranks", "rank", "error", "words"),
    [(0, 0, ValueError, "nranks must be at least 1"), (2, 2, ValueError, r"0\.\.1"), (2, -1, ValueError, r"0\.\.1"),
     (True, 0, TypeError, "nranks"), (2.0, 0, TypeError, "nranks"), ("2", 0, TypeError, "nranks"), (2, None, TypeError, "rank"),
     (2**31, 0, ValueError, "nranks")],
)  # fmt: skip
def test_bad_world(nranks: Any, rank: Any, error: type[Exception], words: str) -> None:
    """Scenario 32: nranks and rank are checked before anything is waited for."""
    with pytest.raises(error, match=words):
        Communicator(nranks, UniqueId.create("host"), rank, library="host")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "3", True])
def test_bad_timeout(timeout: Any, comm: Communicator) -> None:
    """A timeout is a number above 0."""
    calls = [
        lambda: Communicator(1, UniqueId.create("host"), 0, timeout=timeout), lambda: comm.barrier(timeout),
        lambda: comm.wait(timeout=timeout), lambda: comm.close(timeout),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError if timeout in ("3", True) else ValueError, match="timeout"):
            call()
    for number in (np.float32(9), np.int64(9), 9, float("inf")):
        comm.barrier(number)
    assert comm.state == "ready"


def test_properties() -> None:
    """A communicator knows its name, device label, library and handle, and says so."""
    with Communicator(1, UniqueId.create("host"), 0, library="host", device=5, name="inner") as comm:
        assert (comm.rank, comm.nranks, comm.device, comm.name, comm.state) == (0, 1, 5, "inner", "ready")
        assert comm.library.kind == "host" and comm.handle > 0
        assert repr(comm) == "<Communicator 'inner' rank 0 of 1, ready, host 2.32.3>"
        assert comm.get_async_error() == 0 and isinstance(comm.last_error(), str)
        assert comm.wait() is None


def test_no_pickling(comm: Communicator) -> None:
    """Pickling is refused with the advice to send an id."""
    with pytest.raises(TypeError, match="send a UniqueId"):
        pickle.dumps(comm)


def test_config_of_a_deadline(recording: Recorder) -> None:
    """With another library a timeout makes the communicator non-blocking, waits for it by polling, and aborts at the deadline."""
    recording.set("async_polls", 5)
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path, timeout=5)
    assert recording.get("seen_blocking") == 0 and comm.state == "ready"
    comm.abort()
    recording.forget()
    recording.set("async_polls", 10**9)
    with pytest.raises(pynickel.WaitTimeoutError, match="ncclCommInitRankConfig was not done within 0.1 s"):
        Communicator(4, bytes(range(128)), 1, library=recording.path, timeout=0.1)
    assert recording.names[-1] == "ncclCommAbort"
