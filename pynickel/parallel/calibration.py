"""How fast the remote machines are, compared with each other: the same work on every core of all of them at once."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import statistics

from pynickel.parallel import tree
from pynickel.parallel.deadline import Deadline
from pynickel.parallel.remote import relative, timed_work


def measure(repetitions: int, timeout: float | None) -> None:
    """Set the speed of each remote machine, by the median over its cores."""
    remotes = tree.here.remotes
    if not remotes:
        raise RuntimeError("calibrate compares remote machines, and none is known; call add_remote first")
    if isinstance(repetitions, bool) or not isinstance(repetitions, int) or repetitions < 1:
        raise ValueError(f"repetitions must be a whole number of 1 or more, not {repetitions!r}")
    until = Deadline(timeout)
    children = tree.nfork([remote for remote in remotes for _ in range(remote.cores)], (), until)
    try:
        children.exec(_work, repetitions, timeout=until.left())
        children.join(timeout=until.left())  # all begin at once, so that a machine's cores share what they share in use
        seconds = children.receive(timeout=until.left())
        children.sync(timeout=until.left())
    except BaseException:
        tree.end(children)
        raise
    medians = [statistics.median(seconds[child.id] for child in children if child.remote is remote) for remote in remotes]
    for remote, speed in zip(remotes, relative(medians), strict=True):
        remote.speed = speed


def _work(repetitions: int) -> None:
    tree.here.parent.yield_()
    tree.here.parent.send(timed_work(repetitions))
