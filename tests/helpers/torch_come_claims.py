"""What asynchronous collectives must do where ranks have no core for a second thread: as one rank of a group sees it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from helpers.order import SOON
from helpers.torch_values import Group, has, same
from pynickel.torch.group import create

TURNS = 30


def claim_all_have_come(group: Group, me: int, n: int) -> None:
    with groups(group, me, n, 1) as (one,):
        began, at_once = total(n), 0
        for turn in range(TURNS):
            one.barrier().wait()
            tensor = has(me) + turn
            work = summed(one, tensor)
            at_once += work.is_completed()
            work.wait()
            same(tensor, began + n * turn)
        found = torch.tensor([float(at_once)])
        one.allreduce([found]).wait()
        assert found > TURNS / 2, "the last to come finds the others there, and needs no thread"


def claim_crossed(group: Group, me: int, n: int) -> None:
    with groups(group, me, n, 2) as pair:
        for turn in range(TURNS):
            tensors = [has(me), has(me) + turn]
            order = (0, 1) if (me + turn) % 2 else (1, 0)
            works = [summed(pair[which], tensors[which]) for which in order]
            for work in works:
                assert work.wait(timedelta(seconds=20)), "ranks begin two groups' operations in different orders"
            same(tensors[0], total(n)), same(tensors[1], total(n) + n * turn)


def claim_late_rank(group: Group, me: int, n: int) -> None:
    if n == 1:
        return
    with groups(group, me, n, 2) as (one, other):
        for before in (fails, is_interrupted, exchanges_nothing):  # which is no promise to the others
            before(one, me, n)
            other.barrier().wait()
            tensor = has(me)
            if me == 0:
                other.barrier().wait()  # the others have given theirs
            begun = time.monotonic()
            work = summed(one, tensor)
            if me != 0:
                assert time.monotonic() - begun < SOON and not work.is_completed(), f"it returns: rank 0 {before.__name__}, and is late"
                other.barrier().wait()
            work.wait()
            same(tensor, total(n))


def fails(one: Any, me: int, n: int) -> None:
    """Before the library is called."""
    if me == 0:
        try:
            one.allgather([[torch.zeros(2, dtype=torch.int64) for _ in range(n)]], [torch.zeros(2)]).wait()
        except TypeError:
            return
        raise AssertionError("two types")


def is_interrupted(one: Any, me: int, n: int) -> None:
    """Before its lane has the operation, which others were told of."""
    if me == 0:
        one._patience.all_come = lambda comm: comm._come(0) or interrupt()
        try:
            summed(one, has(me))
        except KeyboardInterrupt:
            del one._patience.all_come
            return
        raise AssertionError("it was interrupted")


def exchanges_nothing(one: Any, me: int, n: int) -> None:
    """An exchange of messages without any message calls nothing, and waits for nobody: others may be at the next collective."""
    one.all_to_all_single(torch.empty(0), torch.empty(0), [0] * n, [0] * n).wait()
    one.alltoall([torch.empty(0)] * n, [torch.empty(0)] * n).wait()


def total(n: int) -> torch.Tensor:
    """The sum of all ranks' values."""
    return sum((has(rank) for rank in range(n)), torch.zeros(6))


def interrupt() -> bool:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def summed(group: Any, tensor: torch.Tensor) -> Any:
    """An asynchronous all-reduce."""
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return group.allreduce([tensor], options)


@contextmanager
def groups(group: Group, me: int, n: int, number: int) -> Iterator[list[Any]]:
    """So many groups of these ranks, which have one core together while their communicators are made."""
    name = f"come {n} {group._meeting.store.add(f'come {me}', 1)}"
    made = [create(dist.PrefixStore(f"{name} {i}", group._meeting.store), me, n, timedelta(seconds=20)) for i in range(number)]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        for one in made:
            one.barrier().wait()
        os.sched_setaffinity(0, allowed)
        yield made
    finally:
        os.sched_setaffinity(0, allowed)
        for one in made:
            one.shutdown()
