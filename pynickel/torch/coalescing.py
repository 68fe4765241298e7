"""What a thread calls between the start and the end of coalescing, as one piece of work."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from .lane import Job, Lane
from .work import PynickelWork, Several


class Together:
    """Collectives that are still to begin, and what has begun."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.works: list[PynickelWork] = []

    def add(self, work: PynickelWork) -> PynickelWork:
        """Something that has begun."""
        self.works.append(work)
        return work

    def end(self, lane: Lane) -> Several:
        """Begin the collectives; over when everything is."""

        def all_of_them() -> None:
            for job in self.jobs:
                job()

        begun = [PynickelWork(lane.submit(all_of_them), [])] if self.jobs else []
        return Several([*begun, *self.works])
