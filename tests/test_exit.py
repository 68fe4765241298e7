"""The end of a process and of its objects without close(): forks, the collector, the interpreter's exit."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import subprocess
import sys
import time
import warnings

import pytest
from helpers.recorder import Recorder

from pynickel import Communicator


def test_forked_child(comm: Communicator) -> None:
    """Scenario 50: In a forked child the parent's communicator is dead and says so, closing it is harmless, a new one works, and the
    parent's goes on."""
    code = """
import os, sys, numpy as np, pynickel as p
c = p.Communicator(1, p.UniqueId.create('host'), 0, library='host')
pid = os.fork()
if pid == 0:
    try:
        c.all_reduce(np.ones(1))
    except p.ForkedError as error:
        assert 'make a new one in the child' in str(error) and c.state == 'forked'
        c.close(); c.abort(); del c
        with p.Communicator(1, p.UniqueId.create('host'), 0, library='host', timeout=5) as d:
            os._exit(int(d.all_reduce(np.full(1, 42))[0]))
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
assert c.all_reduce(np.ones(1))[0] == 1
c.close()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_never_closed(recording: Recorder) -> None:
    """Scenario 42: A communicator that is dropped without an end gives one ResourceWarning, and the library is not entered."""
    made = Communicator(4, bytes(range(128)), 1, library=recording.path)
    recording.forget()
    with pytest.warns(ResourceWarning, match="rank 1 of 4.* was never closed"):
        del made
        gc.collect()
    assert not {"ncclCommDestroy", "ncclCommAbort"} & set(recording.names)


def test_closed_ones_do_not_warn(recording: Recorder) -> None:
    """Closed, aborted and borrowed communicators are dropped in silence."""
    one, two = (Communicator(4, bytes(range(128)), 1, library=recording.path) for _ in range(2))
    three = Communicator.from_handle(one.handle, recording.path)
    one.close()
    two.abort()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del one, two, three
        gc.collect()


KEEP = {
    "global": "keep = c",
    "cycle": "keep = [c]; keep.append(keep); del c",
    "thread-local": "import threading; keep = threading.local(); keep.c = c",
    "daemon thread": "import threading, time; threading.Thread(target=lambda k=c: time.sleep(60), daemon=True).start()",
    "atexit": "import atexit; atexit.register(lambda: c.all_reduce(bytearray(4)))",
    "atexit from before the import": "held.append(c)",
    "atexit close": "import atexit; atexit.register(c.close)",
    "running": "import threading; threading.Thread(target=lambda: d.all_reduce(bytearray(4)), daemon=True).start()",
}


@pytest.mark.parametrize("where", KEEP)
def test_interpreter_exit(where: str) -> None:
    """Scenario 42: A process that never closes its communicator ends at once and well, with at most a ResourceWarning."""
    code = (
        "import atexit; held = []; atexit.register(lambda: held and held[0].all_reduce(bytearray(4)))\n"
        "import pynickel as p; c = p.Communicator(1, p.UniqueId.create('host'), 0, library='host')\n"
        "d, e = p.Communicator.init_all(2, 'host'); c.barrier()\n" + KEEP[where]
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0 and time.monotonic() - start < 15
    for line in done.stderr.split("\n"):
        assert not line or "never closed" in line or line.startswith(" ") or "ResourceWarning" in line, done.stderr
