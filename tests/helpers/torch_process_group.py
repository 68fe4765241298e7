"""What collectives of the backend pynickel must do, seen by one rank; each claim is tried with the first 1, 2, 3 and 4 ranks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import ReduceOp

from helpers.torch_values import COMPLEX, FLOATS, FOLDS, INTEGERS, Group, fold, has, same


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
    try:
        dist.reduce_scatter(torch.ones(2), [torch.ones(3)] * n, group=group)
    except ValueError as error:
        assert f"that of rank {me} 2" in str(error), error
    else:
        raise AssertionError("the sizes differ")
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
