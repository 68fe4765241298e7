"""What may stand for a stream."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder

import pynickel


class CudaStream:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __cuda_stream__(self) -> Any:
        return self.answer


@pytest.fixture
def stub_comm(recording: Recorder) -> Any:
    """A communicator of the recording library."""
    made = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    yield made
    made.abort()


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0), (0, 0), (1, 1), (2, 2), (2**48 + 8, 2**48 + 8), (np.int64(9), 9), (CudaStream((0, 5)), 5),
        (SimpleNamespace(cuda_stream=6), 6), (SimpleNamespace(ptr=7), 7), (pynickel.ffi.cast("cudaStream_t", 8), 8),
    ],
)  # fmt: skip
def test_handle_reaches_the_library(stub_comm: Any, recording: Recorder, stream: Any, handle: int) -> None:
    """Scenario 69: None and 0 are the default stream; handles and stream objects arrive as they are."""
    stub_comm.all_reduce(np.zeros(4), stream=stream)
    stub_comm.broadcast(np.zeros(4), stream=stream)
    assert [args[6] for _, args in recording.calls] == [handle, handle]


@pytest.mark.parametrize(
    ("stream", "error"),
    [(-1, ValueError), (2**64, ValueError), (True, TypeError), (1.5, TypeError), ("0", TypeError), (object(), TypeError),
     (CudaStream((1, 5)), TypeError), (CudaStream(5), TypeError), (SimpleNamespace(ptr=None), TypeError)],
)  # fmt: skip
def test_refused(stub_comm: Any, recording: Recorder, stream: Any, error: type[Exception]) -> None:
    """Scenario 69: Anything else is refused before the library is entered."""
    with pytest.raises(error, match="stream"):
        stub_comm.all_reduce(np.zeros(4), stream=stream)
    assert recording.names == []


def test_cpu_library_takes_any_handle(comm: pynickel.Communicator) -> None:
    """The CPU library accepts handles and ignores them."""
    assert comm.all_reduce(np.ones(2), stream=1234).tolist() == [1, 1]
