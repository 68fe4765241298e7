"""Our distribution of tests over processes: a test that ends its process is named, and all others run."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

CONFTEST = """
def pytest_xdist_make_scheduler(config, log):
    from helpers.sharing import Sharing

    return Sharing(config, log)
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("i", range(12))
def test_one(i):
    if i in (0, 5, 10, 11):
        os._exit(3)
"""


pytestmark = pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")


class Process:
    """A process as xdist has it: it begins a test when it knows the next one, or that none comes; once gone it cannot be sent any."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.tests: list[int] = []
        self.gone = self.shutting_down = False
        self.events: list[tuple[str, int]] = [("collected", 0)]  # which xdist has not read yet

    def send_runtest_some(self, indices: list[int]) -> None:
        if self.gone:
            raise OSError("cannot send (already closed?)")
        self.tests += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def step(self, fatal: set[int]) -> bool:
        """It runs a test, or ends; False if it waits."""
        if self.gone or len(self.tests) < 2 and not self.shutting_down:
            return False
        test = self.tests.pop(0) if self.tests else -1
        self.gone = test in fatal or test < 0
        self.events.append(("ended" if test < 0 else "crashed" if self.gone else "over", test))
        return True


@pytest.mark.parametrize("seed", range(40))
def test_any_order(seed: int) -> None:
    """Whatever is read late, and whoever ends when: a test is over once, or named once if it ends its process, and the run ends.

    xdist may send a test to a process that is gone before it reads of that.
    """
    from helpers.sharing import SHARING, Sharing

    random = Random(seed)
    tests = [f"test_apart.py::test_one[{i}]" for i in range(random.randint(2, 9))] + [f"{next(iter(SHARING))}::test[{i}]" for i in range(5)]
    fatal = {index for index in range(len(tests)) if random.random() < 0.3}
    config = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: ["popen", "popen"])
    scheduler = Sharing(config, None)
    active: list[Process] = []
    over: list[int] = []
    named: list[str] = []

    def begins() -> None:
        active.append(Process(f"gw{len(named) + len(active)}"))
        scheduler.add_node(active[-1])

    def reads(process: Process) -> None:
        event, test = process.events.pop(0)
        if event == "collected":
            scheduler.add_node_collection(process, tests)
            if scheduler.collection_is_completed:
                scheduler.schedule()
        elif event == "over":
            over.append(test)
            scheduler.mark_test_complete(process, test)
        else:
            crashed = scheduler.remove_node(process) if process in scheduler.nodes else None
            active.remove(process)
            assert crashed == (tests[test] if event == "crashed" else None)
            if crashed is not None:
                named.append(crashed)
                begins()
        if scheduler.tests_finished:
            for other in active:
                other.shutdown()

    begins()
    begins()
    lag = random.choice([0.1, 0.5, 0.9])
    for _ in range(10_000):
        if not active:
            break
        process = random.choice(active)
        if random.random() < lag or not process.events:
            process.step(fatal)
        else:
            reads(process)
    assert not active, (scheduler.workqueue, scheduler.assigned_work)
    assert sorted(over) == [index for index in range(len(tests)) if index not in fatal]
    assert sorted(named) == sorted(tests[index] for index in fatal)


def test_crashes(tmp_path: Path) -> None:
    """The first test, two in the middle, of which one is in a shared file, and the last ones end their processes: no other test is lost."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    from helpers.sharing import SHARING

    shared = next(iter(SHARING))
    for name in ("test_apart.py", shared):
        (tmp_path / name).write_text(TESTS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONFAULTHANDLER": ""}
    for name in [name for name in env if name.startswith("PYTEST_")]:
        del env[name]  # this test is in such a process itself
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=40, check=False)
    assert "8 failed, 16 passed" in ended.stdout, ended.stdout
    crashed = sorted(re.findall(r"^FAILED (\S+)::test_one\[(\d+)\]", ended.stdout, re.MULTILINE))
    assert crashed == sorted((name, number) for name in ("test_apart.py", shared) for number in ("0", "5", "10", "11"))
