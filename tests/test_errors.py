"""From result codes to exceptions."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pickle
import re
from typing import Any

import cloudpickle
import pytest
from helpers import recorder
from helpers.c import ROOT
from helpers.recorder import Recorder

import pynickel
from pynickel import errors, report

CLASSES = {
    errors.CudaError: errors.NCCLError,
    errors.NCCLSystemError: OSError,
    errors.InternalError: errors.NCCLError,
    errors.InvalidArgumentError: ValueError,
    errors.InvalidUsageError: RuntimeError,
    errors.CollectiveMismatchError: errors.InvalidUsageError,
    errors.DeadlockError: errors.InvalidUsageError,
    errors.CommunicatorClosedError: errors.InvalidUsageError,
    errors.AbortedError: errors.InvalidUsageError,
    errors.ForkedError: errors.InvalidUsageError,
    errors.BusyError: errors.InvalidUsageError,
    errors.RemoteError: ConnectionError,
    errors.WaitTimeoutError: TimeoutError,
    errors.RendezvousError: ConnectionError,
    errors.LauncherMismatchError: errors.RendezvousError,
    errors.NotAvailableError: NotImplementedError,
    errors.LibraryNotFoundError: ImportError,
    errors.UnevenBatchesError: ValueError,
    errors.NonContiguousError: ValueError,
    errors.OverlapError: ValueError,
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_class(kind: type[errors.NCCLError]) -> None:
    """Each class is an NCCLError and also what a Python reader would catch; it survives pickling with all it knows."""
    assert issubclass(kind, errors.NCCLError) and issubclass(kind, CLASSES[kind])
    error = kind("what happened", code=5, rank=3, library_version=(2, 1))
    for dump in (pickle.dumps, cloudpickle.dumps):
        copy = pickle.loads(dump(error))
        assert type(copy) is kind and str(copy) == "what happened" and (copy.code, copy.rank) == (5, 3)


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        (1, "CudaError", "ncclUnhandledCudaError"), (2, "NCCLSystemError", "ncclSystemError"),
        (3, "InternalError", "ncclInternalError"), (4, "InvalidArgumentError", "ncclInvalidArgument"),
        (5, "InvalidUsageError", "ncclInvalidUsage"), (6, "RemoteError", "ncclRemoteError"),
        (8, "WaitTimeoutError", "ncclTimeout"), (9, "NCCLError", "code"), (99, "NCCLError", "code"), (-1, "NCCLError", "code"),
    ],
)  # fmt: skip
def test_every_code(recording: Recorder, code: int, kind: str, name: str) -> None:
    """Scenario 68: Each code has its class and keeps its number; the text has call, library's words, last error, rank, path."""
    comm = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path, name="inner")
    recording.returns("ncclAllReduce", code)
    with pytest.raises(errors.NCCLError) as caught:
        comm.all_reduce(bytearray(4))
    error = caught.value
    assert type(error).__name__ == kind and error.code == code and error.function == "ncclAllReduce"
    text = str(error)
    assert f"ncclAllReduce failed with {name} ({code}): " in text
    assert "last words of the recorder" in text and error.last_error == "last words of the recorder"
    assert "rank 1 of 4, device 0, communicator 'inner'; nvidia library 2.32.3, " + recording.path in text
    assert error.library_text == ("text of the recorder" if 0 <= code <= 8 else "unknown result code")
    assert (error.nranks, error.device, error.library_version) == (4, 0, (2, 32, 3))
    comm.abort()


@pytest.mark.parametrize("code", [6, 8, 99, -1])
def test_codes_from_init(recording: Recorder, code: int) -> None:
    """Scenario 68: Init raises by the same rules."""
    recording.returns("ncclCommInitRank", code)
    with pytest.raises(errors.NCCLError) as caught:
        pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    assert caught.value.code == code and caught.value.rank in (1, None)


def test_in_progress_is_no_error(recording: Recorder) -> None:
    """Scenario 68: "In progress" from a call means to wait until the library says that it is done."""
    comm = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.returns("ncclAllReduce", 7)
    recording.set("async_polls", 3)
    comm.all_reduce(bytearray(4))
    assert recording.get("async_polls") < 0
    comm.abort()


def test_causes(recording: Recorder) -> None:
    """Errors of NVIDIA's library list what is often the cause."""
    with pytest.raises(errors.CudaError, match="often because of: no GPU or no driver") as caught:
        recording.returns("ncclGetUniqueId", 1)
        pynickel.UniqueId.create(recording.path)
    assert len(caught.value.causes) > 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Mismatch", "CollectiveMismatchError"), ("Deadlock", "DeadlockError"), ("Closed", "CommunicatorClosedError"),
        ("Aborted", "AbortedError"), ("Forked", "ForkedError"), ("Busy", "BusyError"), ("Remote", "RemoteError"),
        ("Timeout", "WaitTimeoutError"), ("DuplicateRank", "RendezvousError"), ("WorldSize", "RendezvousError"),
        ("IdReused", "RendezvousError"), ("IdStale", "RendezvousError"), ("IdInvalid", "RendezvousError"),
        ("Version", "RendezvousError"), ("Memory", "InvalidUsageError"), ("Overlap", "OverlapError"), ("None", "InvalidUsageError"),
    ],
)  # fmt: skip
def test_kinds(kind: str, expected: str) -> None:
    """What the CPU library knows more finely than the code has the finer class, never by reading text."""
    number = getattr(pynickel._nccl.lib, f"nickelKind{kind}")  # type: ignore[attr-defined]
    chosen, _ = report.KINDS.get(number) or (report.CLASSES[5], 0)
    assert chosen.__name__ == expected


def test_codes_of_kinds() -> None:
    """The codes that the CPU library's sources give with a kind are those with which Python takes it for the kind of this error."""
    lib: Any = pynickel._nccl.lib  # type: ignore[attr-defined]
    pairs = re.compile(r"(?:nh_error|FAIL)\((nccl\w+), (nickelKind\w+)")
    found = {pair for file in (ROOT / "host").glob("*.c") for pair in pairs.findall(file.read_text())}
    known = {(code, kind) for code, kind in found if getattr(lib, kind) in report.KINDS}
    assert len(known) > 15
    assert [pair for pair in sorted(known) if getattr(lib, pair[0]) not in report.KINDS[getattr(lib, pair[1])][1]] == []


def test_a_code_that_is_not_the_last_error_s() -> None:
    """A code other than the last call's, on a thread that has had an error: the class is the code's, and neither words nor ranks of the
    earlier error are passed off as its own."""
    with pytest.raises(pynickel.WaitTimeoutError):
        pynickel.Communicator(2, pynickel.UniqueId.create("host"), 0, library="host", timeout=0.2)
    for code, kind in ((3, errors.InternalError), (5, errors.InvalidUsageError), (77, errors.NCCLError)):
        with pytest.raises(errors.NCCLError) as caught:
            pynickel.check(code, "what was called")
        assert type(caught.value) is kind and "waited" not in str(caught.value) and not hasattr(caught.value, "missing")
        assert (caught.value.code, caught.value.last_error, caught.value.rank) == (code, "", None)
    with pytest.raises(pynickel.WaitTimeoutError, match="waited") as caught:
        pynickel.check(8)
    assert caught.value.missing == (1,)  # type: ignore[attr-defined]


def test_ranks_of_an_error() -> None:
    """A deadline names who is missing, as attributes."""
    with pytest.raises(TimeoutError) as caught:
        pynickel.Communicator(3, pynickel.UniqueId.create("host"), 1, library="host", timeout=0.3)
    error: Any = caught.value
    assert isinstance(error, pynickel.WaitTimeoutError) and error.missing == (0, 2) and error.rank == 1 and error.code == 8


def test_broken_communicator(recording: Recorder) -> None:
    """When the library says that the communicator is broken, later calls are refused with the first reason; close aborts."""
    comm = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.returns("ncclAllReduce", 6)
    recording.set("set_async", 6)
    with pytest.raises(pynickel.RemoteError):
        comm.all_reduce(bytearray(4))
    assert comm.state == "failed"
    recording.forget()
    with pytest.raises(pynickel.CommunicatorClosedError, match="failed: ncclAllReduce"):
        comm.broadcast(bytearray(4))
    comm.close()
    assert recording.names == ["ncclCommAbort"]


def test_missing_function_of_a_communicator(tmp_path: Any) -> None:
    """A call that the library lacks is NotAvailableError, and the communicator is still good."""
    path = recorder.build(tmp_path, lacks=["ncclReduceScatter"])
    comm = pynickel.Communicator(4, bytes(range(128)), 1, library=path)
    with pytest.raises(pynickel.NotAvailableError, match="ncclReduceScatter needs NCCL 2.0"):
        comm.reduce_scatter(bytearray(8), bytearray(2))
    comm.all_reduce(bytearray(4))
    comm.close()
