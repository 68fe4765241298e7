"""Ranks of one library that stay up between jobs, asleep while the other libraries have their turn, and are killed at deadlines."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from peers import Peer

RANK = Path(__file__).with_name("rank.py")
START, JOB, END = 60.0, 100.0, 5.0  # seconds


class SessionError(Exception):
    """The ranks of a library did not do what they were told; the text has their output. Not fatal: they all said that they cannot."""

    def __init__(self, text: str, fatal: bool = True) -> None:
        super().__init__(text)
        self.fatal = fatal


class Session:
    """n ranks of a library; `bind` keeps each on one core."""

    def __init__(self, peer: Peer, nranks: int, folder: Path, env: dict[str, str] | None = None, bind: bool = False) -> None:
        self.peer, self.nranks = peer, nranks
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lines: list[Any] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{peer.name}-{nranks}.log"
        path = folder / f"{peer.name}-{nranks}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(nranks)
        listener.settimeout(0.1)
        environment = {**peer.environment(), "BENCHMARK_STORE": f"{path}.store", **(env or {})}
        try:
            with self.log.open("wb") as log:
                for command in peer.commands(nranks, [str(RANK), peer.kind, str(path), "bind" if bind else "free"]):
                    # Not in a session of its own: Linux hands a core over within a session (autogroup), so ranks of several would be
                    # worse off than those of a launcher.
                    self.processes.append(
                        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, preexec_fn=os.setpgrp)
                    )
            self.meet(listener)
        except BaseException:
            self.kill()
            raise
        finally:
            listener.close()
            path.unlink()

    def meet(self, listener: socket.socket) -> None:
        """Take in every rank, hand rank 0's unique id around, and put the ranks in order."""
        until = time.monotonic() + START
        while len(self.lines) < self.nranks:
            ended = [process.returncode for process in self.processes if process.poll() is not None]
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if ended or time.monotonic() > until:
                    why = f"ended with status {ended[0]}" if ended else f"not there within {START:g} s"
                    raise self.failure(f"{self.nranks - len(self.lines)} ranks are missing, {why}") from None
                continue
            connection.settimeout(JOB)
            self.lines.append(connection.makefile("rw"))
        answers = self.hear()
        if self.peer.kind == "nickel":
            self.tell(unique_id=next(answer["unique_id"] for answer in answers if answer["unique_id"]))
            answers = self.hear()
        self.version, self.apis = answers[0]["version"], answers[0]["apis"]
        order = sorted(range(self.nranks), key=lambda i: answers[i]["rank"])
        self.lines = [self.lines[i] for i in order]

    def tell(self, **words: Any) -> None:
        """The same to all ranks."""
        for line in self.lines:
            try:
                line.write(json.dumps(words) + "\n")
                line.flush()
            except OSError as error:
                raise self.failure(f"a rank does not listen ({error})") from None

    def hear(self) -> list[dict[str, Any]]:
        """One answer from each rank."""
        answers = []
        for line in self.lines:
            try:
                text = line.readline()
            except OSError as error:
                raise self.failure(f"a rank has not answered within {JOB:g} s ({error})") from None
            if not text:
                raise self.failure("a rank has ended")
            answers.append(json.loads(text))
        return answers

    def run(self, **job: Any) -> tuple[list[int], float]:
        """Nanoseconds of each call, as the slowest rank had it, and the seconds of the whole job."""
        self.tell(**job)
        answers = self.hear()
        errors = dict.fromkeys(answer["error"] for answer in answers if "error" in answer)
        if errors:
            raise SessionError(f"{self.peer.title}, {self.nranks} ranks: {'; '.join(errors)}", fatal=False)
        return [max(times) for times in zip(*(answer["times"] for answer in answers), strict=True)], max(
            answer["seconds"] for answer in answers
        )

    def failure(self, what: str) -> SessionError:
        """The error, with the end of what the ranks wrote."""
        output = self.log.read_text(errors="replace").strip()[-2000:]
        return SessionError(f"{self.peer.title}, {self.nranks} ranks: {what}" + (f"\n{output}" if output else ""))

    def close(self) -> None:
        """Let the ranks end by themselves, then kill what is left."""
        try:
            self.tell(operation="close")
            until = time.monotonic() + END
            for process in self.processes:
                process.wait(max(0.0, until - time.monotonic()))
        except (SessionError, subprocess.TimeoutExpired):
            pass  # they are killed below
        finally:
            self.kill()

    def kill(self) -> None:
        """End every process of the session. Ranks that a launcher has put elsewhere see their socket closed."""
        for line in self.lines:
            line.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    os.killpg(process.pid, number)
            until = time.monotonic() + 2
            while any(process.poll() is None for process in self.processes) and time.monotonic() < until:
                time.sleep(0.02)
        self.processes.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close() if kind is None else self.kill()
