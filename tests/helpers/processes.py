"""Run a Python script as a process of its own, with a deadline, and tell which processes it leaves behind."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

import pynickel
from pynickel import parallel

_MARK = "PYNICKEL_TEST_RUN"  # an environment variable that all processes of one run inherit, whoever their parent is
_HERE = Path(pynickel.__file__).resolve().parents[1]


class Result(NamedTuple):
    """How a run ended. `left` names the processes that were still there three seconds later, and were then killed."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    left: list[str]


class Script:
    """A running script, in a session of its own. Leaving the `with` block kills all that is left of it."""

    def __init__(self, source: str | Path, *args: str, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pynickel-test-")
        self.folder = Path(self._folder.name)
        if isinstance(source, Path):
            path = source
        else:
            path = self.folder / "script.py"
            path.write_text(textwrap.dedent(source))
        self._mark = uuid.uuid4().hex
        paths = [str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        given = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {}), _MARK: self._mark}
        # Files, not pipes: a process that outlives the script must not make us wait for its output.
        with open(self.folder / "stdout", "wb") as out, open(self.folder / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(path), *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=given,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        self._begun = time.monotonic()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill_all()
        self._folder.cleanup()

    @property
    def stdout(self) -> str:
        """What was written so far."""
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What was written so far."""
        return (self.folder / "stderr").read_text(errors="replace")

    def wait_for(self, text: str, deadline: float = 20) -> None:
        """Wait until the text stands on the script's stdout."""
        end = time.monotonic() + deadline
        while True:
            over = time.monotonic() > end or self.process.poll() is not None
            if text in self.stdout:  # looked at after that: the last words of a script come before its end
                return
            if over:
                raise TimeoutError(f"no {text!r} from the script\nstdout: {self.stdout}\nstderr: {self.stderr}")
            time.sleep(0.01)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the script, or to its whole process group as a terminal does."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def finish(self, deadline: float = 20, patience: float = 3) -> Result:
        """Wait for the script's end, then up to `patience` seconds for that of its other processes; kill the rest."""
        try:
            returncode = self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise TimeoutError(f"not finished after {deadline} s\nstdout: {self.stdout}\nstderr: {self.stderr}") from None
        seconds = time.monotonic() - self._begun
        end = time.monotonic() + patience
        while True:
            over = time.monotonic() >= end
            left = self.left()  # looked at after that: we may not have had a turn since the end of the patience
            if over or not left:
                break
            time.sleep(0.02)
        self.kill_all()
        return Result(returncode, self.stdout, self.stderr, seconds, left)

    def left(self) -> list[str]:
        """Name the processes of this run that live."""
        return [str(process) for process in self._living()]

    def kill_all(self) -> None:
        """Kill every process of this run, and collect the script."""
        for process in self._living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(5)

    def _living(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue  # it ended while we looked, or is another user's
        return found


def run(source: str | Path, *args: str, deadline: float = 20, env: Mapping[str, str] | None = None) -> Result:
    """Run a script to its end."""
    with Script(source, *args, env=env) as script:
        return script.finish(deadline)


@contextlib.contextmanager
def no_child_left() -> Iterator[None]:
    """End the children that the body forked through pynickel.parallel, and find no process of theirs afterwards."""
    before = set(psutil.Process().children(recursive=True))
    parallel.timeout = 20
    yield
    try:
        parallel.close()
    finally:
        parallel.timeout = 60
        left = [process for process in set(psutil.Process().children(recursive=True)) - before if process.is_running()]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if left:
            raise RuntimeError(f"processes were left: {left}")
