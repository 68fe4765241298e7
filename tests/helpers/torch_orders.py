"""What messages, works and groups of the backend pynickel must do in any order of calls, seen by one rank, as in torch_process_group.py."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
import time
import warnings
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import ReduceOp

from helpers import torch_lane_claims
from helpers.torch_values import Group, fold, has, same


def claim_messages(group: Group, me: int, n: int) -> None:
    if n == 1:
        for peer, word in ((0, "rank"), (3, "rank")):
            try:
                group.send([torch.ones(1)], peer, 0)
            except ValueError as error:
                assert word in str(error)
        return
    after, before = (me + 1) % n, (me - 1) % n
    for dtype in (torch.float32, torch.bool, torch.complex64):
        into = torch.zeros(6, dtype=dtype)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, has(me, dtype=dtype), group=group, group_peer=after),
            dist.P2POp(dist.irecv, into, group=group, group_peer=before),
        ])  # fmt: skip
        for work in works:
            work.wait()
        same(into, has(before, dtype=dtype))
    big = [torch.full((1 << 18,), float(me)), torch.zeros(1 << 18)]  # all send first: nobody may wait for the other's receive
    sent = dist.isend(big[0], group_dst=after, group=group)
    dist.recv(big[1], group_src=before, group=group)
    sent.wait()
    assert (big[1] == before).all()
    tags = [torch.zeros(2), torch.zeros(2)]
    works = [dist.irecv(tags[tag], group_src=before, group=group, tag=tag) for tag in (1, 0)]
    works += [dist.isend(has(tag, 2), group_dst=after, group=group, tag=tag) for tag in (0, 1)]
    assert works[0].source_rank() in (before, -1)
    for work in works:
        work.wait()
    same(tags[0], has(0, 2)), same(tags[1], has(1, 2))
    wide = torch.zeros(3, 4)
    work = dist.isend(has(me, 3), group_dst=after, group=group)
    dist.recv(wide[:, 1], group_src=before, group=group)
    work.wait()
    same(wide[:, 1].clone(), has(before, 3))
    device = torch.device("cpu")
    total, message = has(me), torch.zeros(6)
    with dist._coalescing_manager(group, device, async_ops=True) as several:
        dist.isend(has(me), group_dst=after, group=group)
        dist.irecv(message, group_src=before, group=group)
        group.broadcast([total], dist.BroadcastOptions())
    several.wait()
    same(message, has(before)), same(total, has(0))


def claim_nobody_waits(group: Group, me: int, n: int) -> None:
    if n == 1:
        return
    after, before = (me + 1) % n, (me - 1) % n
    for number in range(4):  # a lane that was waited for at once, one that was not, and both again
        message = torch.zeros(6)
        works = [dist.irecv(message, group_src=before, group=group), dist.isend(has(me + number), group_dst=after, group=group)]
        deadline = time.monotonic() + 30
        while not all(work.is_completed() for work in works):
            assert time.monotonic() < deadline, "nobody has begun it"
            time.sleep(0.01)
        same(message, has(before + number))
        works = [dist.irecv(message, group_src=before, group=group), dist.isend(has(me), group_dst=after, group=group)]
        total = has(me)
        dist.all_reduce(total, group=group)  # waits for ranks that wait for these messages
        same(total, fold(ReduceOp.SUM, [has(rank) for rank in range(n)]))
        for work in reversed(works):
            assert work.wait(timedelta(seconds=30))
        same(message, has(before))


def poll(work: Any) -> None:
    """Wait as one should not."""
    deadline = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < deadline, "nobody has begun it"
        time.sleep(0.001)


def claim_asynchronous(group: Group, me: int, n: int) -> None:
    tensors = [has(me) + i for i in range(20)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    assert works[-1].wait(timedelta(seconds=30)) and all(work.is_completed() and work.is_success() for work in works)
    for i, tensor in enumerate(tensors):
        same(tensor, fold(ReduceOp.SUM, [has(rank) + i for rank in range(n)]), "in order")
    tensor = has(me)
    doubled = dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: 2 * done.value()[0])
    same(doubled.wait(), 2 * fold(ReduceOp.SUM, [has(rank) for rank in range(n)]))

    def again(_: Any) -> torch.Tensor:
        more = has(me)
        dist.all_reduce(more, group=group)  # from the thread that has just done the operation
        return more

    nested = dist.all_reduce(has(me), group=group, async_op=True).get_future().then(again)
    same(nested.wait(), fold(ReduceOp.SUM, [has(rank) for rank in range(n)]))
    for wait in (lambda work: work.get_future().wait(), lambda work: work.wait(timedelta(seconds=30)), poll):  # as PowerSGD's hook does
        more = has(me)
        later = lambda _, w=wait, m=more: w(dist.all_reduce(m, group=group, async_op=True))  # noqa: E731
        dist.all_reduce(has(me), group=group, async_op=True).get_future().then(later).wait()
        same(more, fold(ReduceOp.SUM, [has(rank) for rank in range(n)]), "a callback waits for what comes later in the same lane")
    if n > 1 and me == 0:
        late = dist.all_reduce(has(me), group=group, async_op=True)
        try:
            late.wait(timedelta(seconds=0.02))
        except dist.DistBackendError as error:
            assert "waited for again" in str(error)
        else:
            raise AssertionError("the others cannot have come")
        assert not late.is_completed()
        group._meeting.store.set("late", "now")
        late.wait()
    elif n > 1:
        group._meeting.store.get("late")
        dist.all_reduce(has(me), group=group)
    mixed = [dist.all_reduce(has(me), group=group, async_op=i % 2 == 0) for i in range(9)]
    dist.barrier(group=group)
    assert all(work is None or work.is_completed() for work in mixed), "a call that waits comes behind all that were given"


def claim_odd_orders(group: Group, me: int, n: int) -> None:
    torch_lane_claims.same_name(group, me, n)
    if n == 1:
        for one in torch_lane_claims.ALONE:
            one()


def claim_coalescing(group: Group, me: int, n: int) -> None:
    for asynchronous in (False, True):
        tensors = [has(me) + i for i in range(3)]
        with dist._coalescing_manager(group, async_ops=asynchronous) as several:
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        if asynchronous:
            several.wait()
        for i, tensor in enumerate(tensors):
            same(tensor, fold(ReduceOp.SUM, [has(rank) + i for rank in range(n)]))
        into = [torch.zeros(6 * n) for _ in range(2)]
        with dist._coalescing_manager(group, async_ops=asynchronous) as several:
            for tensor in into:
                dist.all_gather_single(tensor, has(me), group=group)
        if asynchronous:
            several.wait()
        same(into[1], torch.cat([has(rank) for rank in range(n)]))
        parts = [torch.zeros(6, dtype=dtype) for dtype in (torch.float32, torch.float32)]
        with dist._coalescing_manager(group, async_ops=asynchronous) as several:
            for tensor in parts:
                dist.reduce_scatter_single(tensor, torch.cat([has(me)] * n), group=group)
        if asynchronous:
            several.wait()
        same(parts[1], fold(ReduceOp.SUM, [has(rank) for rank in range(n)]))
    mixed = [has(me, dtype=torch.int16), has(me, dtype=torch.bool), has(me)[::2]]
    group.allreduce_coalesced(mixed).get_future().wait()
    same(mixed[0], fold(ReduceOp.SUM, [has(rank, dtype=torch.int16) for rank in range(n)]))
    same(mixed[1], fold(ReduceOp.SUM, [has(rank, dtype=torch.bool) for rank in range(n)]))
    lists = [[torch.zeros(6), torch.zeros(6)] for _ in range(n)]
    group.allgather_coalesced(lists, [has(me), has(me) * 2]).wait()
    for rank in range(n):
        same(lists[rank][1], has(rank) * 2)
    with dist._coalescing_manager(group, torch.device("cpu")):
        pass


def claim_sparse(group: Group, me: int, n: int) -> None:
    def mine(rank: int) -> torch.Tensor:
        values = torch.full((3, 2), float(rank + 1))
        return torch.sparse_coo_tensor([[rank, rank + 1, rank]], values, (8, 2), check_invariants=False)

    tensor = mine(me)
    torch.set_warn_always(True)  # torch's own warnings come once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dist.all_reduce(tensor, group=group)
    finally:
        torch.set_warn_always(False)
    same(tensor.to_dense(), sum(mine(rank).to_dense() for rank in range(n)))


def claim_functional(group: Group, me: int, n: int) -> None:
    from torch.distributed import _functional_collectives as f

    total = fold(ReduceOp.SUM, [has(rank) for rank in range(n)])
    same(f.all_reduce(has(me), "sum", group) + 0, total)
    same(f.all_reduce_coalesced([has(me), has(me)], "sum", group)[1] + 0, total)
    same(f.all_gather_tensor(has(me), 0, group) + 0, torch.cat([has(rank) for rank in range(n)]))
    same(f.all_gather_into_tensor_coalesced([has(me), has(me)], group)[1] + 0, torch.cat([has(rank) for rank in range(n)]))
    same(f.reduce_scatter_tensor(torch.cat([has(me)] * n), "sum", 0, group) + 0, total)
    same(f.reduce_scatter_tensor_coalesced([torch.cat([has(me)] * n)] * 2, "sum", [0, 0], group)[1] + 0, total)
    same(f.broadcast(has(me), 0, group) + 0, has(0))
    same(f.all_to_all_single(torch.cat([has(me)] * n), None, None, group) + 0, torch.cat([has(rank) for rank in range(n)]))
    assert group.group_name and group._device_types is not None


def claim_threads(group: Group, me: int, n: int, groups: list[Group]) -> None:
    troubles: list[BaseException] = []

    def body(one: Group) -> None:
        try:
            for i in range(30):
                tensor = has(me) + i
                dist.all_reduce(tensor, group=one, async_op=i % 3 == 0) and dist.barrier(group=one)
                same(tensor, fold(ReduceOp.SUM, [has(rank) + i for rank in range(n)]))
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=body, args=(one,)) for one in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not troubles and not any(thread.is_alive() for thread in threads), troubles


def claim_mismatch(group: Group, me: int, n: int) -> None:
    if n == 1:
        return
    for asynchronous in (False, True):
        try:
            work = dist.all_reduce(has(me, 4 + (me == 1)), group=group, async_op=asynchronous)
            if asynchronous:
                work.wait()
        except dist.DistBackendError as error:
            assert "all_reduce" in str(error) and "rank" in str(error) and error.__cause__ is not None, error
        else:
            raise AssertionError("the sizes differ")
    tensor = has(me)
    dist.all_reduce(tensor, group=group)
    same(tensor, fold(ReduceOp.SUM, [has(rank) for rank in range(n)]), "the group works as before")
    failed = dist.all_reduce(has(me, 4 + (me == 1)), group=group, async_op=True).get_future().then(lambda done: done.value())
    try:
        failed.wait()
    except RuntimeError as error:
        assert "all_reduce" in str(error), error
    else:
        raise AssertionError("the sizes differ")
