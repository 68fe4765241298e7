"""Fixtures for all tests: the CPU library is the default one, whatever the machine has."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import recorder

import pynickel


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With -n, one process has all tests that share something; every other test goes to the process that is free."""
    from helpers.sharing import Sharing

    return Sharing(config, log)


@pytest.fixture(autouse=True, scope="session")
def host_by_default() -> Iterator[None]:
    """Tests and the processes that they start use the CPU library unless they say otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNICKEL_LIBRARY", "host")
        patch.delenv("NCCL_DEBUG", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> Iterator[None]:
    """Tests send SIGINT and SIGQUIT to their processes, also where pytest is in the background of a script, which has both ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}
    before = {number: signal.signal(number, usual[number]) for number in usual if signal.getsignal(number) is signal.SIG_IGN}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def comm() -> Iterator[pynickel.Communicator]:
    """A communicator of one rank on the CPU library."""
    made = pynickel.Communicator(1, pynickel.UniqueId.create("host"), 0, library="host", timeout=5)
    yield made
    made.abort()


@pytest.fixture(scope="session")
def recorder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a library that does nothing but note its calls."""
    return recorder.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def recording(recorder_path: Path) -> recorder.Recorder:
    """That library with empty notes."""
    return recorder.Recorder(recorder_path)


@pytest.fixture
def stub_comm(recording: recorder.Recorder) -> Iterator[pynickel.Communicator]:
    """A communicator of the recording library, with empty notes."""
    made = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    yield made
    made.abort()


@pytest.fixture
def two() -> Iterator[tuple[pynickel.Communicator, pynickel.Communicator]]:
    """Both ranks of a communicator in the test's hands."""
    comms = pynickel.Communicator.init_all(2, "host")
    yield comms[0], comms[1]
    pynickel.abort_all(comms)
