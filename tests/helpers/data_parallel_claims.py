"""What DataParallel does, as one of four ranks sees it; the questions are those that a data-parallel table answers on several GPUs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import io
from collections import namedtuple
from typing import Any

import torch
from torch import nn

import pynickel
from pynickel.training import DataParallel, average_gradients, parameter_error

from .torch_claims import everywhere_equal, parts, refused

Point = namedtuple("Point", ["x", "y"])


def numbers(seed: int, *shape: int) -> Any:
    """Random numbers, the same on all ranks that ask with the same seed."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5


def filled(module: Any, seed: int) -> Any:
    """The module in float64 with parameters by a seed."""
    module = module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(seed + number, *parameter.shape))
    return module


def net(seed: int) -> Any:
    """Two layers of 10-5-1."""
    return filled(nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 1)), seed)


def gradients(module: Any) -> list[Any]:
    """All of them."""
    return [parameter.grad for parameter in module.parameters()]


def same(found: Any, wanted: Any) -> None:
    """Assert equality up to float64 rounding."""
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)


def claim_as_one_process(comm: pynickel.Communicator) -> None:
    """Batches of all sizes around the number of ranks, on 1 to 4 ranks, with and without gathered output."""
    for part in parts(comm):
        n = part.nranks
        for size in sorted({1, n - 1, n, n + 1, 2 * n - 1, 2 * n, 9, 15} - {0}):
            x, y = numbers(size, size, 10), numbers(50 + size, size, 1)
            alone = net(1)
            wanted = alone(x)
            nn.functional.mse_loss(wanted, y).backward()
            for gather in (False, True):
                # Only rank 0 has the right parameters before the first forward.
                model = DataParallel(net(1 if part.rank == 0 else 2), part, gather_output=gather)
                output = model(x)
                each, rest = divmod(size, n)
                own = each + (part.rank < rest)
                assert model.share == own / size
                assert len(output) == (size if gather else own)
                start = part.rank * each + min(part.rank, rest)
                same(output, wanted if gather else wanted[start : start + own])
                target = y if gather else y[start : start + own]
                loss = nn.functional.mse_loss(output, target)
                (loss if gather else loss * model.share).backward()
                same(gradients(model.module), gradients(alone))
                everywhere_equal(part, gradients(model.module))


def claim_same_curve(comm: pynickel.Communicator) -> None:
    """30 steps of momentum on 1 to 4 ranks have one curve; parameters stay in step to the bit."""
    curves = []
    for part in parts(comm):
        model = DataParallel(net(3 + part.rank), part, gather_output=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        curve = []
        for step in range(30):
            x = numbers(step, 11, 10)
            loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            everywhere_equal(part, list(model.parameters()))
            curve.append(float(loss))
        curves.append(curve)
        assert parameter_error(part, model) == 0.0
    for curve in curves[1:]:
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(curves[0]), rtol=1e-10, atol=0)


def claim_containers(comm: pynickel.Communicator) -> None:
    """Tuples, lists, dicts and named tuples of tensors are split and joined however deep; what is no tensor passes."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, inputs: Any, factor: float, *, extra: Any = None) -> Any:
            (a, b), point = inputs["pair"], inputs["point"]
            return {"sum": [(a + b) * self.weight * factor], "point": Point(point.x * 2, (point.y,)), "extra": extra, "word": "as it is"}

    a, b, x, y = (numbers(seed, 6, 2) for seed in range(4))
    inputs = {"pair": [a, b], "point": Point(x, y)}
    found = DataParallel(Mixer(), comm, gather_output=True)(inputs, 3.0, extra=(x, None))
    wanted = Mixer()(inputs, 3.0, extra=(x, None))
    same(found["sum"], wanted["sum"])
    assert isinstance(found["point"], Point)
    same([found["point"].x, found["point"].y[0], found["extra"][0]], [x * 2, y, x])
    assert found["word"] == "as it is" and found["extra"][1] is None
    empty = {"pair": [a[:0], b[:0]], "point": Point(x[:0], y[:0])}
    assert DataParallel(Mixer(), comm, gather_output=True)(empty, 1.0)["sum"][0].shape == (0, 2)


def claim_other_dimensions(comm: pynickel.Communicator) -> None:
    """The batch may be any dimension, from the end too."""
    x = numbers(5, 3, 7, 10)
    for dim in (0, 1, -2):
        layer = filled(nn.Linear(10, 4), 6)
        wanted = layer(x)
        wanted.pow(2).sum().backward()
        model = DataParallel(filled(nn.Linear(10, 4), 6), comm, dim, gather_output=True)
        found = model(x)
        found.pow(2).sum().backward()
        same(found, wanted)
        same(gradients(model), gradients(layer))


def claim_part_of_a_model(comm: pynickel.Communicator) -> None:
    """Wrapped features between other layers: gradients of all three, of the input too, are those of one process."""
    x, y = numbers(7, 9, 2, 8, 8), numbers(8, 9, 3)

    def model(wrap: Any) -> Any:
        before, features = nn.Conv2d(2, 2, 1), nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten())
        return nn.Sequential(filled(before, 1), wrap(filled(features, 2)), filled(nn.Linear(144, 3), 3))

    alone, split = model(lambda part: part), model(lambda part: DataParallel(part, comm, gather_output=True))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for each, given in zip((alone, split), inputs, strict=True):
        nn.functional.mse_loss(each(given), y).backward()
    same(gradients(split), gradients(alone))
    same(inputs[1].grad, inputs[0].grad)
    assert list(split.state_dict()) == list(alone.state_dict())
    shared = model(lambda part: DataParallel(part, comm))
    start = [0, 3, 5, 7, 9]
    mine = slice(start[comm.rank], start[comm.rank + 1])
    (nn.functional.mse_loss(shared(x), y[mine]) * shared[1].share).backward()
    average_gradients(comm, shared[2], reduction="sum")
    same([p.grad * comm.nranks for p in shared[2].parameters()], gradients(alone[2]))
    same(gradients(shared[1]), gradients(alone[1]))


def claim_accumulation(comm: pynickel.Communicator) -> None:
    """Three backward passes before a step add up; so do two uses of the module in one graph."""
    alone, model = net(1), DataParallel(net(1), comm, gather_output=True)
    for each in (alone, model):
        for seed in range(3):
            each(numbers(seed, 6, 10)).sum().backward()
    same(gradients(model), gradients(alone))
    for each in (alone, model):
        (each(numbers(1, 6, 10)) * each(numbers(2, 6, 10))).sum().backward()
    same(gradients(model), gradients(alone))


def claim_frozen_and_unused(comm: pynickel.Communicator) -> None:
    """Frozen parameters get no gradient, unused ones keep None, and evaluation without gradients talks only where it gathers."""
    model = DataParallel(net(1), comm, gather_output=True)
    model.module[0].requires_grad_(False)
    model.module.spare = nn.Linear(2, 2)
    model.module.forward = lambda x: model.module[2](model.module[1](model.module[0](x)))
    model(numbers(1, 5, 10)).sum().backward()
    assert model.module[0].weight.grad is None and model.module.spare.weight.grad is None
    assert model.module[2].weight.grad is not None
    with torch.no_grad():
        assert not model(numbers(1, 5, 10)).requires_grad
    model.eval()
    assert not model.module.training


def claim_state(comm: pynickel.Communicator) -> None:
    """What rank 0 saves loads with and without DataParallel, on any number of ranks; a pickled one needs a communicator again."""
    x = numbers(1, 5, 10)
    model = DataParallel(net(1), comm, gather_output=True)
    wanted = model(x)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert list(model.state_dict()) == list(net(1).state_dict())
    for part in parts(comm):
        other = DataParallel(net(9 + part.rank), part, gather_output=True)
        if part.rank == 0:  # the others get it from there
            file.seek(0)
            other.load_state_dict(torch.load(file))
        same(other(x), wanted)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    file.seek(0)
    model.load_state_dict(torch.load(file))
    same(model(x), wanted)
    plain = net(5)
    plain.load_state_dict(model.state_dict())
    same(plain(x), wanted)
    outer, wrong = nn.Sequential(DataParallel(DataParallel(net(5), None, enabled=False), comm)), {"0.0.weight": plain[0].weight, "0.x": x}
    told = outer.load_state_dict(wrong, strict=False)
    assert set(told.missing_keys) == {"0.0.bias", "0.2.weight", "0.2.bias"} and told.unexpected_keys == ["0.x"]
    refused(RuntimeError, 'Unexpected key(s) in state_dict: "0.x"', outer.load_state_dict, wrong)
    pickled = io.BytesIO()
    torch.save(model, pickled)
    pickled.seek(0)
    loaded = torch.load(pickled, weights_only=False)
    refused(RuntimeError, "has no communicator yet", loaded, x)
    loaded.comm = comm
    same(loaded(x), wanted)


def claim_copies(comm: pynickel.Communicator) -> None:
    """A deep copy has parameters of its own and the same ranks; another type of numbers keeps what is set."""
    model = DataParallel(net(1), comm, gather_output=True)
    other = copy.deepcopy(model).float()
    with torch.no_grad():
        other.module[0].weight.zero_()
    x = numbers(1, 5, 10)
    other(x.float()).sum().backward()
    assert other.module[0].weight.grad.dtype == torch.float32 and gradients(model)[0] is None
    same(model(x), net(1)(x))
    assert sum(parameter.numel() for parameter in DataParallel(nn.Linear(10, 5), comm).parameters()) == 55
    model.apply(lambda module: module.weight.data.fill_(0.5) if isinstance(module, nn.Linear) else None)
    assert parameter_error(comm, model) == 0.0


def claim_weak_scaling(comm: pynickel.Communicator) -> None:
    """With a batch on each rank nothing is split, and gradients times `share` are those of all batches together."""
    model = DataParallel(net(1), comm, scaling="weak")
    batches = [numbers(rank, rank + 1, 10) for rank in range(comm.nranks)]
    (model(batches[comm.rank]).mean() * model.share).backward()
    assert model.share == (comm.rank + 1) / 10
    alone = net(1)
    alone(torch.cat(batches)).mean().backward()
    same(gradients(model), gradients(alone))


def claim_disabled(comm: pynickel.Communicator) -> None:
    """enabled=False hands the whole batch to the module and talks to nobody."""
    model = DataParallel(net(comm.rank), None, enabled=False)
    x = numbers(1, 5, 10)
    same(model(x), net(comm.rank)(x))
    assert model.share == 1.0


def claim_refusals(comm: pynickel.Communicator) -> None:
    """What does not fit is refused by name before anybody waits."""
    model, x = DataParallel(net(1), comm), numbers(1, 5, 10)
    refused(TypeError, "module must be a torch.nn.Module, not int", DataParallel, 3, comm)
    refused(TypeError, "dim must be an int, not 1.0", DataParallel, net(1), comm, 1.0)
    refused(TypeError, "comm must be a Communicator", DataParallel, net(1), None)
    refused(ValueError, "scaling must be one of strong, weak, not 'some'", DataParallel, net(1), comm, scaling="some")
    refused(ValueError, "gather_output is for scaling='strong'", DataParallel, net(1), comm, gather_output=True, scaling="weak")
    refused(ValueError, "holds a DataParallel of the same ranks", DataParallel, nn.Sequential(model), comm)
    off = DataParallel(nn.Sequential(model), comm, enabled=False)
    assert DataParallel(DataParallel(net(1), None, enabled=False), comm).comm is comm and off(x).shape == model(x).shape
    scripted = torch.jit.trace(nn.Flatten(), x)  # made without the compiler of scripts, which threads cannot share
    refused(TypeError, "module is scripted", DataParallel, scripted, comm)
    refused(TypeError, "without a tensor", model, 3)
    refused(ValueError, "different numbers of items along dimension 0: shapes (5, 10), (4, 10)", model, [x, x[:4]])
    refused(ValueError, "shape () has no dimension 0", model, x, torch.tensor(1.0))
    refused(RuntimeError, "dtype", model, x.float())
    total = DataParallel(filled(nn.Sequential(nn.Linear(10, 1), nn.Flatten(0)), 1), comm, gather_output=True)
    total.module.append(nn.Unflatten(0, (1, -1)))
    refused(ValueError, "gather_output needs outputs with the batch's", total, numbers(1, 8, 10))
