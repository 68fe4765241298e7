"""What the training helpers do with torch's tensors and modules, as one of several ranks sees it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import pynickel
from pynickel import training

from .torch_claims import everywhere_equal, parts, refused

BATCH, STEPS = 10, 20


def net(seed: int, dtype: torch.dtype = torch.float64) -> Any:
    """Three layers."""
    generator = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return made


def samples(dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """40 points and a function of them."""
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    return x.to(dtype), (x[:, :1] * x[:, 1:]).to(dtype)


def train(comm: pynickel.Communicator, dtype: torch.dtype) -> list[float]:
    """The losses of a run that has the same batches whatever the number of ranks; all ranks have equal bits after each step."""
    model = net(100 + comm.rank, dtype)
    training.broadcast_parameters(comm, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-6)
    x, y = samples(dtype)
    losses = []
    for step in range(STEPS):
        batch = training.shard(40, 0, 1, [3, step])[:BATCH]
        mine = training.shard(batch, comm.rank, comm.nranks, shuffle=False, remainder="uneven")
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        training.average_gradients(comm, model, weights=len(mine))
        optimizer.step()
        everywhere_equal(comm, list(model.parameters()))
        total = loss.detach() * len(mine)
        comm.all_reduce(total)
        losses.append(float(total) / BATCH)
    assert training.parameter_error(comm, model) == 0.0
    return losses


def claim_same_curve(comm: pynickel.Communicator) -> None:
    """1 to 4 ranks with 10 samples together."""
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-3)):
        curves = [train(part, dtype) for part in parts(comm)]
        for curve in curves[1:]:
            torch.testing.assert_close(torch.tensor(curve), torch.tensor(curves[0]), rtol=tolerance, atol=0)


def claim_module_is_parameters(comm: pynickel.Communicator) -> None:
    """A module, its parameters and its gradients as tensors are three ways to the same averages."""
    whole = net(1)
    x, y = samples()
    nn.functional.mse_loss(whole(x), y).backward()
    wanted = [parameter.grad for parameter in whole.parameters()]
    mine = training.shard(40, comm.rank, comm.nranks, shuffle=False, remainder="uneven")[comm.rank :]  # of different lengths
    rest = torch.tensor([i for rank in range(comm.nranks) for i in range(40)[rank * 10 + rank : rank * 10 + 10]])
    whole.zero_grad()
    nn.functional.mse_loss(whole(x[rest]), y[rest]).backward()
    wanted = [parameter.grad for parameter in whole.parameters()]
    for form in ("module", "parameters", "tensors"):
        model = net(1)
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        held = [parameter.grad for parameter in model.parameters()]
        arrays = {"module": model, "parameters": model.parameters(), "tensors": held}[form]
        training.average_gradients(comm, arrays, weights=len(mine))
        found = [parameter.grad for parameter in model.parameters()]
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)
        assert all(a is b for a, b in zip(found, held, strict=True)) is (form != "module")


def claim_no_copy_next_time(comm: pynickel.Communicator) -> None:
    """A module's gradients stay where they are when the optimizer only sets them to zero."""
    model = net(2)
    where = []
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        model(samples()[0]).sum().backward()
        training.average_gradients(comm, model)
        where.append([parameter.grad.data_ptr() for parameter in model.parameters()])
    assert where[0] == where[1] == where[2]
    alone = net(2)
    alone(samples()[0]).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def claim_missing_gradients(comm: pynickel.Communicator) -> None:
    """None counts as zeros where another rank has a gradient, else it stays None; frozen parameters are left alone."""
    for as_module in (True, False):
        layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])
        layers[3].requires_grad_(False)
        used = layers[1](layers[0](torch.ones(1, 2))) if comm.rank == 2 else layers[0](torch.ones(1, 2))
        used.sum().backward()
        had = layers[1].weight.grad.clone() if comm.rank == 2 else torch.zeros(2, 2)
        comm.broadcast(had, root=2)
        training.average_gradients(comm, layers if as_module else layers.parameters())
        torch.testing.assert_close(layers[1].weight.grad, had / comm.nranks)
        assert layers[2].weight.grad is None and layers[3].weight.grad is None


def claim_narrow_and_complex(comm: pynickel.Communicator) -> None:
    """16-bit gradients are summed in 32 bits; complex ones have both parts averaged."""
    r, n = comm.rank, comm.nranks
    grads = [torch.full((3,), 60000.0, dtype=torch.float16), torch.full((2,), 256.0 if r else 258.0 + 2 * n, dtype=torch.bfloat16)]
    training.average_gradients(comm, [*grads, turned := torch.full((2, 2), 1j * r)])
    assert grads[0].tolist() == [60000.0] * 3 and turned[0, 0] == 1j * (n - 1) / 2
    assert grads[1][0] == torch.tensor(256 + 2 + 2 / n).to(torch.bfloat16)
    module = nn.Linear(2, 1).to(torch.bfloat16)
    module(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    training.average_gradients(comm, module)
    assert module.weight.grad.dtype == torch.bfloat16 and module.weight.grad.tolist() == [[1.0, 1.0]]
    refused(TypeError, "not int64", training.average_gradients, comm, [torch.ones(2, dtype=torch.int64)])
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    refused(TypeError, "only dense gradients", training.average_gradients, comm, sparse)
    for odd in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        for call in (training.average_gradients, training.broadcast_parameters, training.parameter_error):
            refused(TypeError, "must be dense and hold values", call, comm, [odd])
    refused(ValueError, "elements that share memory", training.average_gradients, comm, torch.ones(1).expand(4))
    turned = torch.full((2,), 1j + r).conj()  # torch only notes that it is conjugate
    training.average_gradients(comm, [turned, torch.ones(1)])
    assert turned.tolist() == [(n - 1) / 2 - 1j] * 2
    refused(TypeError, "by themselves", training.average_gradients, comm, [torch.ones(1), module.weight])


def claim_in_step(comm: pynickel.Communicator) -> None:
    """Parameters and buffers become the root's, tensors with gaps too; the error tells how far parameters are apart."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            value.fill_(comm.rank)
    # 0 to 3 are 1.25 apart from their mean in the square
    assert abs(training.parameter_error(comm, model) - 1.25) < 1e-12
    striped = torch.full((4, 4), float(comm.rank))[:, ::2]
    conjugate = torch.full((2,), 1j + comm.rank).conj()
    training.broadcast_parameters(comm, model, root=1)
    training.broadcast_parameters(comm, {"striped": striped, "conjugate": conjugate, "negative": conjugate.imag}, root=3)
    assert conjugate.tolist() == [3 - 1j] * 2
    assert training.parameter_error(comm, model) == 0.0
    assert all((value == 1).all() for value in [*model.parameters(), *model.buffers()])
    assert model[1].num_batches_tracked.dtype == torch.int64 and (striped == 3).all()


def claim_batch_statistics(comm: pynickel.Communicator) -> None:
    """Batch normalization by hand on uneven shares, one of them empty: values and gradients are those of the whole batch."""
    x = torch.rand(7, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    target = torch.rand(7, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = nn.BatchNorm1d(3, affine=False).double()
    everything = x.clone().requires_grad_()
    ((whole(everything) - target) ** 2).sum().backward()
    mine = [slice(0, 3), slice(3, 4), slice(4, 4), slice(4, 7)][comm.rank]
    own = x[mine].clone().requires_grad_()
    mean, variance, number = training.batch_statistics(comm, own, axis=(0, 2))
    normal = (own - mean[:, None]) / torch.sqrt(variance[:, None] + whole.eps)
    ((normal - target[mine]) ** 2).sum().backward()
    assert number == 14
    torch.testing.assert_close(own.grad, everything.grad[mine], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(normal, whole(x)[mine])
    # Gradients of gradients, too: d/dx of the sum of squares of d(v * v)/dx, v the variance.
    own, everything = (values.detach().clone().requires_grad_() for values in (own, everything))
    for values, variance in ((own, training.batch_statistics(comm, own)[1]), (everything, everything.var(0, unbiased=False))):
        share = 1 if values is everything else 1 / comm.nranks  # each rank's part of the loss; all parts together are one loss
        (slope,) = torch.autograd.grad((variance * variance).sum() * share, values, create_graph=True)
        (slope * slope).sum().backward()
    torch.testing.assert_close(own.grad, everything.grad[mine], rtol=1e-9, atol=1e-15)


def claim_shards(comm: pynickel.Communicator) -> None:
    """A tensor's share is a tensor; a data set of torch's is a data set that a loader takes."""
    x, y = samples()
    mine = training.shard(40, comm.rank, comm.nranks, 9)
    assert torch.equal(training.shard(x, comm.rank, comm.nranks, 9), x[mine])
    data = training.shard(torch.utils.data.TensorDataset(x, y), comm.rank, comm.nranks, 9)
    batches = list(torch.utils.data.DataLoader(data, batch_size=4))
    assert torch.equal(torch.cat([batch[1] for batch in batches]), y[mine])


def claim_deep_copies_have_their_own(comm: pynickel.Communicator) -> None:
    """Two modules of one shape do not share buckets: averaging the one leaves the other's gradients."""
    one, other = net(4), copy.deepcopy(net(4))
    for number, model in enumerate((one, other)):
        (model(samples()[0]).sum() * (number + 1)).backward()
        training.average_gradients(comm, model)
    torch.testing.assert_close([2 * p.grad for p in one.parameters()], [p.grad for p in other.parameters()])
