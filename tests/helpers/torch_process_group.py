"""What a process group of the backend pynickel must do, seen by one rank; each claim is tried with the first 1, 2, 3 and 4 ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import operator
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import ReduceOp

from helpers import torch_lane_claims

Group = Any
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FOLDS: dict[Any, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: operator.add, ReduceOp.PRODUCT: operator.mul, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: operator.and_, ReduceOp.BOR: operator.or_, ReduceOp.BXOR: operator.xor,
}  # fmt: skip


def has(rank: int, count: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank has: small whole numbers, different on each rank."""
    numbers = torch.arange(count) % 5 + rank + 1
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double() - 1).to(dtype)
    return numbers % 2 == 0 if dtype is torch.bool else numbers.to(dtype)


def fold(kind: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """The reduction in the elements' own type, by torch."""
    if parts[0].dtype is torch.uint16:  # torch cannot add these
        return fold(kind, [part.to(torch.int32) for part in parts]).to(torch.uint16)
    if parts[0].dtype is torch.bool and kind in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        return functools.reduce(operator.or_ if kind in (ReduceOp.SUM, ReduceOp.MAX) else operator.and_, parts)
    return functools.reduce(FOLDS[kind], parts)


def same(found: torch.Tensor, wanted: torch.Tensor, what: Any = "") -> None:
    """Equal in every bit, type and shape."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(found, wanted), (what, found, wanted)


def claim_all_reduce(group: Group, me: int, n: int) -> None:
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX, torch.bool]:
        for kind in FOLDS:
            bits = kind in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
            if (bits and dtype in FLOATS) or (dtype.is_complex and kind is not ReduceOp.SUM):
                continue
            tensor = has(me, dtype=dtype)
            dist.all_reduce(tensor, op=kind, group=group)
            same(tensor, fold(kind, [has(rank, dtype=dtype) for rank in range(n)]), (dtype, kind))
    for dtype in (torch.float32, torch.complex64):
        tensor = has(me, dtype=dtype)
        dist.all_reduce(tensor, op=ReduceOp.AVG, group=group)
        assert torch.allclose(tensor, sum(has(rank, dtype=dtype) for rank in range(n)) / n)
    for factor in (2.0, torch.tensor([2.0])):
        tensor = has(me)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor), group=group)
        same(tensor, 2 * fold(ReduceOp.SUM, [has(rank) for rank in range(n)]))
    whole = has(me, dtype=torch.int64)
    dist.all_reduce(whole, op=dist._make_nccl_premul_sum(3.0), group=group)
    same(whole, 3 * fold(ReduceOp.SUM, [has(rank, dtype=torch.int64) for rank in range(n)]))


def claim_refused_types(group: Group, me: int, n: int) -> None:
    for tensor, kind, word in [
        (torch.ones(3, dtype=torch.bool), ReduceOp.AVG, "torch.bool"),
        (torch.ones(3), ReduceOp.BOR, "BOR of torch.float32"),
        (torch.ones(3, dtype=torch.int32), dist._make_nccl_premul_sum(0.5), "whole number"),
        (torch.ones(3, dtype=torch.float8_e4m3fnuz), ReduceOp.SUM, "float8_e4m3fnuz"),
        (torch.ones(3, 3).to_sparse_csr(), ReduceOp.SUM, "sparse_csr"),
        (torch.ones(3, 3).to_sparse(), ReduceOp.MAX, "MAX of a tensor of torch.sparse_coo"),
        (torch.ones(3, device="meta"), ReduceOp.SUM, "meta"),
    ]:
        try:
            dist.all_reduce(tensor, op=kind, group=group)
        except TypeError as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"{word} was not refused")
    for call in (lambda: dist.recv(torch.ones(1), None, group=group), lambda: group.all_gather_single(torch.ones(n), torch.ones(1).int())):
        try:
            call()
        except (TypeError, ValueError) as error:
            assert "source rank" in str(error) or "one type" in str(error) or n == 1, error


def claim_layouts(group: Group, me: int, n: int) -> None:
    every = torch.zeros(4, 6)
    every[:, ::2].copy_(has(me, 12).view(4, 3))
    part = every[:, ::2]
    dist.all_reduce(part, group=group)
    total = fold(ReduceOp.SUM, [has(rank, 12) for rank in range(n)]).view(4, 3)
    same(every[:, ::2].clone(), total)
    same(every[:, 1::2].clone(), torch.zeros(4, 3), "what lies between is not touched")
    turned = has(me, 12).view(3, 4).t()
    dist.broadcast(turned, group_src=n - 1, group=group)
    same(turned.clone(), has(n - 1, 12).view(3, 4).t().clone())
    last = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    last += me + 1
    dist.all_reduce(last, group=group)
    assert (last == n * (n + 1) / 2).all() and last.is_contiguous(memory_format=torch.channels_last)
    conjugate = has(me, dtype=torch.complex64).conj()
    options = dist.BroadcastOptions()
    options.rootRank = n - 1
    group.broadcast([conjugate], options).wait()  # torch's own function refuses these
    same(conjugate.clone().resolve_conj(), has(n - 1, dtype=torch.complex64).conj().resolve_conj())
    negative = has(me, dtype=torch.complex64).conj().imag
    dist.all_reduce(negative, group=group)
    same(negative.clone().resolve_neg(), -fold(ReduceOp.SUM, [has(rank, dtype=torch.complex64) for rank in range(n)]).imag.clone())
    leaf = torch.nn.Parameter(has(me))
    dist.all_reduce(leaf, group=group)
    same(leaf.detach(), fold(ReduceOp.SUM, [has(rank) for rank in range(n)]))
    point = torch.tensor(True)
    dist.all_reduce(point, op=ReduceOp.MIN, group=group)
    assert point.dim() == 0 and point
    empty = torch.zeros(0)
    for call in (dist.all_reduce, lambda t, group: dist.broadcast(t, group_src=0, group=group)):
        call(empty, group=group)
    dist.all_gather([torch.zeros(0) for _ in range(n)], empty, group=group)
    dist.all_gather_single(torch.zeros(0), empty, group=group)
    dist.all_to_all_single(torch.zeros(0), empty, group=group)
    dist.reduce_scatter(torch.zeros(2, 0), [torch.zeros(2, 0) for _ in range(n)], group=group)
    ones, into = torch.ones(n * (n - 1) // 2), torch.zeros(me * n)  # rank r gets r elements of each, the first one none
    dist.all_to_all(list(into.chunk(n)) if me else [torch.zeros(0)] * n, list(ones.split(list(range(n)))), group=group)
    assert into.sum() == me * n


def claim_one_root(group: Group, me: int, n: int) -> None:
    for root in range(n):
        for dtype in (torch.float32, torch.int16, torch.bool, torch.complex128, torch.float8_e5m2):
            tensor = has(me, dtype=dtype) if dtype is not torch.float8_e5m2 else has(me).to(dtype)
            dist.broadcast(tensor, group_src=root, group=group)
            wanted = has(root, dtype=dtype) if dtype is not torch.float8_e5m2 else has(root).to(dtype)
            same(tensor.float() if dtype is torch.float8_e5m2 else tensor, wanted.float() if dtype is torch.float8_e5m2 else wanted)
        for kind, dtype in ((ReduceOp.SUM, torch.int16), (ReduceOp.MAX, torch.float64), (ReduceOp.BXOR, torch.int32)):
            tensor = has(me, dtype=dtype)
            dist.reduce(tensor, group_dst=root, op=kind, group=group)
            mine = fold(kind, [has(rank, dtype=dtype) for rank in range(n)]) if me == root else has(me, dtype=dtype)
            same(tensor, mine, "the others' tensors stay")
        into = [torch.zeros(2, 3) for _ in range(n)] if me == root else None
        dist.gather(has(me).view(2, 3), into, group_dst=root, group=group)
        for rank, tensor in enumerate(into or []):
            same(tensor, has(rank).view(2, 3))
        mine = torch.zeros(6, dtype=torch.int16)
        dist.scatter(mine, [has(rank, dtype=torch.int16) for rank in range(n)] if me == root else None, group_src=root, group=group)
        same(mine, has(me, dtype=torch.int16))


def claim_all_gather(group: Group, me: int, n: int) -> None:
    for dtype in (torch.float32, torch.bool, torch.int16, torch.complex64):
        into = [torch.zeros(6, dtype=dtype) for _ in range(n)]
        dist.all_gather(into, has(me, dtype=dtype), group=group)
        flat = torch.zeros(6 * n, dtype=dtype)
        dist.all_gather_single(flat, has(me, dtype=dtype), group=group)
        same(flat, torch.cat(into))
        for rank, tensor in enumerate(into):
            same(tensor, has(rank, dtype=dtype))
    flat = torch.zeros(6 * n)
    dist.all_gather(list(flat.chunk(n)), has(me), group=group)  # parts of one tensor are filled where they lie
    same(flat, torch.cat([has(rank) for rank in range(n)]))
    flat = torch.cat([has(me) if rank == me else torch.zeros(6) for rank in range(n)])
    dist.all_gather_single(flat, flat[6 * me : 6 * (me + 1)], group=group)
    same(flat, torch.cat([has(rank) for rank in range(n)]), "in place")
    large = [torch.zeros(1 << 18, 2) for _ in range(n)]  # beyond the size up to which memory between is used
    large[0] = torch.zeros(2, 1 << 18).t()
    dist.all_gather(large, torch.full((1 << 18, 2), float(me)), group=group)
    assert all(bool((tensor == rank).all()) for rank, tensor in enumerate(large))
    uneven = [torch.zeros(rank + 1) for rank in range(n)]
    dist.all_gather(uneven, has(me, me + 1), group=group)
    for rank, tensor in enumerate(uneven):
        same(tensor, has(rank, rank + 1))
    objects: list[Any] = [None] * n
    dist.all_gather_object(objects, {"rank": me, "words": "x" * me}, group=group)
    assert objects == [{"rank": rank, "words": "x" * rank} for rank in range(n)]
    named = [f"from {me}", me]
    dist.broadcast_object_list(named, group_src=n - 1, group=group)
    assert named == [f"from {n - 1}", n - 1]


def claim_reduce_scatter(group: Group, me: int, n: int) -> None:
    for dtype, kind in zip(
        (torch.float32, torch.int16, torch.int32, torch.complex64), (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BXOR, ReduceOp.SUM), strict=True
    ):
        mine, into = [has(me + rank, dtype=dtype) for rank in range(n)], torch.zeros(6, dtype=dtype)
        wanted = fold(kind, [has(rank + me, dtype=dtype) for rank in range(n)])
        dist.reduce_scatter(into, mine, op=kind, group=group)
        same(into, wanted, (dtype, kind))
        into.zero_()
        dist.reduce_scatter_single(into, torch.cat(mine), op=kind, group=group)
        same(into, wanted, (dtype, kind))
    average = torch.zeros(6)
    dist.reduce_scatter_single(average, torch.cat([has(me)] * n), op=ReduceOp.AVG, group=group)
    assert torch.allclose(average, sum(has(rank) for rank in range(n)) / n)
    uneven = torch.zeros(me + 1)
    dist.reduce_scatter(uneven, [has(me, rank + 1) for rank in range(n)], group=group)
    same(uneven, fold(ReduceOp.SUM, [has(rank, me + 1) for rank in range(n)]))


def claim_all_to_all(group: Group, me: int, n: int) -> None:
    for dtype in (torch.float32, torch.bool, torch.complex64):
        into = torch.zeros(6 * n, dtype=dtype)
        dist.all_to_all_single(into, torch.cat([has(me + rank, dtype=dtype) for rank in range(n)]), group=group)
        same(into, torch.cat([has(rank + me, dtype=dtype) for rank in range(n)]))
        rows = [me + rank for rank in range(n)]  # what goes between two ranks is their sum, and nothing from 0 to 0
        into = torch.zeros(sum(rows), 2, dtype=dtype)
        dist.all_to_all_single(into, torch.cat([has(me, 2 * r, dtype).view(r, 2) for r in rows]), rows, rows, group=group)
        same(into, torch.cat([has(rank, 2 * r, dtype).view(r, 2) for rank, r in enumerate(rows)]))
        parts = [torch.zeros(rank + me + 1, dtype=dtype) for rank in range(n)]
        dist.all_to_all(parts, [has(me, rank + me + 1, dtype) for rank in range(n)], group=group)
        for rank, tensor in enumerate(parts):
            same(tensor, has(rank, rank + me + 1, dtype))


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
        for one in ("signal_handlers", "callbacks", "idle_threads", "no_threads", "the_end", "one_deadline", "the_store", "the_living"):
            getattr(torch_lane_claims, one)()


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
        return torch.sparse_coo_tensor([[rank, rank + 1, rank]], torch.full((3, 2), float(rank + 1)), (8, 2))

    tensor = mine(me)
    dist.all_reduce(tensor, group=group)
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
