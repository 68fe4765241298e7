"""The sum of sparse tensors, which gradients of embeddings are: all ranks' entries are gathered and added up."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch

from ..communicator import Communicator
from .elements import Kind, kind_of, movable, name_of


def all_reduce(comm: Communicator, tensor: torch.Tensor, op: Any) -> None:
    """Every rank ends up with the sum; ranks may have entries at different places, and different numbers of them."""
    if tensor.layout is not torch.sparse_coo or kind_of(op) != Kind.SUM:
        raise TypeError(f"{name_of(op)} of a tensor of {tensor.layout} cannot be done; dense tensors can, and SUM of torch.sparse_coo")
    mine = tensor.detach().coalesce()
    places, values = mine.indices().t().contiguous(), mine.values().contiguous()
    counts = torch.empty(comm.nranks, dtype=torch.int64, device=tensor.device)
    comm.all_gather(torch.tensor([len(values)], device=tensor.device), counts)
    numbers = [int(count) for count in counts]
    all_places, all_values = (gathered(comm, part, numbers) for part in (places, values))
    total = torch.sparse_coo_tensor(all_places.t(), all_values, tensor.shape, check_invariants=False)
    with torch.no_grad():
        tensor.copy_(total.coalesce())  # a detached one would have entries of its own


def gathered(comm: Communicator, part: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """All ranks' rows, one behind the other."""
    everybody = part.new_empty((sum(counts), *part.shape[1:]))
    row = movable(part.new_empty((1, *part.shape[1:]))).numel()
    comm.all_gather_v(movable(part), movable(everybody), [count * row for count in counts])
    return everybody
