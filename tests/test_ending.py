"""Ends that reach other ranks and other threads: revoke(), abort_all()."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time

import numpy as np
import pytest
from helpers.order import SOON, in_call
from helpers.recorder import Recorder
from helpers.threads import in_thread

import pynickel
from pynickel import Communicator


def test_revoke(two: tuple[Communicator, Communicator]) -> None:
    """revoke() ends the calls of all ranks; afterwards calls are refused, twice is harmless, and close() is left."""
    first, second = two
    thread, result = in_thread(lambda: second.all_reduce(np.zeros(4)))
    in_call()
    first.revoke()
    first.revoke()
    thread.join(5)
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
    in_call()
    two[0].revoke()
    thread.join(5)
    assert isinstance(result[0], pynickel.NCCLError) and two[0].state == "revoked"


def test_abort_all() -> None:
    """abort_all ends communicators of one process together, also ones that one group is working on."""
    a, b = (Communicator.init_all(2, "host") for _ in range(2))

    def grouped() -> None:
        with pynickel.group():
            a[0].all_reduce(np.zeros(4))
            b[0].all_reduce(np.zeros(4))

    thread, result = in_thread(grouped)
    in_call()
    start = time.monotonic()
    pynickel.abort_all([*a, *b])
    thread.join(5)
    assert time.monotonic() - start < SOON and isinstance(result[0], (pynickel.AbortedError, pynickel.RemoteError))
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
