"""send and recv: each way between two ranks has a communicator and a lane of its own, so that no order of calls can block another."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading

import torch

from ..communicator import Communicator
from .elements import dense, movable, settle
from .failures import as_torch
from .lane import Lane, Task
from .meeting import Meeting, host_library

SENDER, RECEIVER = 0, 1  # ranks in the communicator of a way


class Way:
    """Messages from one rank to another with one tag, in order."""

    def __init__(self, meeting: Meeting, source: int, target: int, tag: int) -> None:
        self.meeting, self.source, self.target, self.tag = meeting, source, target, tag
        self.lane = Lane(f"pynickel messages {source} to {target}, tag {tag}")
        self._comm: Communicator | None = None

    def comm(self) -> Communicator:
        """The communicator of the two ranks; both make it with their first message."""
        if self._comm is None:
            key = f"messages/{self.source}/{self.target}/{self.tag}"
            self._comm = self.meeting.communicator(key, (self.source, self.target), host_library())
        return self.meeting.in_time(self._comm)


class Messages:
    """All ways of a rank."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self._ways: dict[tuple[int, int, int], Way] = {}
        self._lock = threading.Lock()

    def _way(self, source: int, target: int, tag: int) -> Way:
        check_peer(self.meeting, source, target)
        with self._lock:
            key = (source, target, tag)
            if key not in self._ways:
                self._ways[key] = Way(self.meeting, *key)
            return self._ways[key]

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> Task:
        """Begin to send; the tensor must stay as it is until that is over."""
        way = self._way(self.meeting.rank, target, tag)
        data = movable(dense(tensor))

        def job() -> None:
            with as_torch(f"send to rank {target}"):
                way.comm().send(data, RECEIVER)

        return way.lane.submit(job)

    def recv(self, tensor: torch.Tensor, source: int, tag: int) -> Task:
        """Begin to receive."""
        way = self._way(source, self.meeting.rank, tag)
        into = dense(tensor)

        def job() -> None:
            with as_torch(f"recv from rank {source}"):
                way.comm().recv(movable(into), SENDER)
            settle(tensor, into)

        return way.lane.submit(job)

    def lanes(self) -> list[Lane]:
        """All lanes, to be ended."""
        with self._lock:
            return [way.lane for way in self._ways.values()]


def check_peer(meeting: Meeting, source: int, target: int) -> None:
    """Refuse what no message can be sent or received by."""
    peer = source if target == meeting.rank else target
    if not 0 <= peer < meeting.nranks:
        raise ValueError(f"there is no rank {peer} in this group; it has ranks 0 to {meeting.nranks - 1}")
    if source == target:
        raise ValueError(f"rank {source} cannot send to itself; copy the tensor")
