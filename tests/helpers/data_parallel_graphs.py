"""What DataParallel does to autograd's graphs, and with graphs that are not the same on all ranks, as one of four ranks sees it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import pynickel
from pynickel.training import DataParallel, average_gradients, parameter_error

from .data_parallel_claims import filled, gradients, net, numbers, same
from .torch_claims import parts, refused


@dataclass(frozen=True)
class Pair:
    """A container that is none of Python's own."""

    x: Any
    y: Any


class Cautious(nn.Module):
    """Uses its net only where there are samples, and the spare one only on rank 0."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net, self.spare, self.rank = net(1), net(2), rank

    def forward(self, x: Any) -> Any:
        if len(x) == 0:
            return x.new_zeros((0, 1))
        return self.net(x) + (self.spare(x) if self.rank == 0 else 0)


def claim_second_derivatives(comm: pynickel.Communicator) -> None:
    """A penalty on gradients, of parameters or of the input, has the gradients of one process, alone and beside a loss."""
    for part in parts(comm):
        for kind in ("parameters", "input"):
            found = []
            for model in (net(1), DataParallel(net(1), part, gather_output=True)):
                x = numbers(3, 6, 10).requires_grad_()
                loss = model(x).pow(2).sum()
                slopes = torch.autograd.grad(loss, list(model.parameters()) if kind == "parameters" else [x], create_graph=True)
                (loss + sum(slope.pow(2).sum() for slope in slopes)).backward()
                found.append([x.grad, *gradients(model)])
            same(found[1], found[0])


def claim_second_derivatives_of_shares(comm: pynickel.Communicator) -> None:
    """The same where each rank has the loss of its own share."""
    x, alone, model = numbers(3, 6, 10), net(1), DataParallel(net(1), comm)
    for each in (alone, model):
        slopes = torch.autograd.grad(each(x).pow(2).sum(), list(each.parameters()), create_graph=True)
        sum(slope.pow(2).sum() for slope in slopes).backward()
    same(gradients(model), gradients(alone))


def claim_kept_graphs(comm: pynickel.Communicator) -> None:
    """Going back twice through a kept graph adds up, as do checkpointed layers and shared parameters."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = filled(nn.Linear(10, 10), 1), nn.Linear(10, 10).double()
            self.other.weight = self.one.weight

        def forward(self, x: Any) -> Any:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(lambda y: self.one(torch.tanh(y)), self.one(x), use_reentrant=False) + torch.tanh(x) @ self.other.weight

    alone, model = Twice(), DataParallel(Twice(), comm, gather_output=True)
    assert len(list(model.parameters())) == 3
    for each in (alone, model):
        loss = each(numbers(1, 7, 10)).pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    same(gradients(model), gradients(alone))


def claim_ranks_differ(comm: pynickel.Communicator) -> None:
    """A rank with an empty share may leave out all of the module, and others a part of it; the sums are right all the same."""
    for part in parts(comm):
        for wanted in (False, True):
            x = numbers(1, 1, 10).requires_grad_(wanted)  # the only sample is rank 0's
            alone = Cautious(0)
            alone(x).sum().backward()
            slope, x.grad = x.grad, None
            for gather in (True, False):
                model = DataParallel(Cautious(part.rank), part, gather_output=gather)
                model(x).sum().backward()
                same(gradients(model), gradients(alone))
                same(x.grad, slope)
                x.grad = None


def claim_in_place(comm: pynickel.Communicator) -> None:
    """What is wrapped may change its input in place, and what follows may change the output."""

    def model(wrap: Any) -> Any:
        inner = wrap(nn.Sequential(nn.ReLU(inplace=True), filled(nn.Linear(10, 5), 2)))
        return nn.Sequential(filled(nn.Linear(10, 10), 1), inner, nn.ReLU(inplace=True))

    alone = model(lambda part: part)
    x = numbers(1, 7, 10)
    alone(x).sum().backward()
    for gather in (True, False):
        split = model(lambda part, gather=gather: DataParallel(part, comm, gather_output=gather))
        split(x).sum().backward()
        same(gradients(split), gradients(alone))


def claim_mixed_types(comm: pynickel.Communicator) -> None:
    """Each parameter has a gradient of its own type; in 16 bits the sum over ranks is rounded once."""
    types = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(filled(nn.Linear(3, 3), 1).to(kind) for kind in types)

        def forward(self, x: Any) -> Any:
            return sum(layer(x.to(kind)).double() for layer, kind in zip(self.layers, types, strict=True))

    alone, model = Mixed(), DataParallel(Mixed(), comm, gather_output=True)
    x = (numbers(1, 8, 3) * 8).round() / 8  # sums of these are exact
    for each in (alone, model):
        each(x).sum().backward()
    assert [grad.dtype for grad in gradients(model)] == [kind for kind in types for _ in range(2)]
    torch.testing.assert_close(gradients(model), gradients(alone), rtol=0, atol=0)


def claim_other_containers(comm: pynickel.Communicator) -> None:
    """Dictionaries stay what they are, and the fields of a data class are tensors like others."""

    class Names(nn.Module):
        def forward(self, batch: Any, pair: Any) -> Any:
            assert len(pair.x) == len(batch["x"]) < 8
            return type(batch)(x=batch["x"] * 2), Pair(pair.x, {"y": pair.y + 1})

    x, y = numbers(1, 8, 2), numbers(2, 8, 3)
    found, pair = DataParallel(Names(), comm, gather_output=True)(OrderedDict(x=x), Pair(x, y))
    assert isinstance(found, OrderedDict) and isinstance(pair, Pair)
    same([found["x"], pair.x, pair.y["y"]], [x * 2, x, y + 1])


def claim_apply_draws(comm: pynickel.Communicator) -> None:
    """After apply, which may draw other numbers on each rank, the next forward has the ranks in step again."""
    model = DataParallel(net(1), comm, gather_output=True)
    x = numbers(1, 5, 10)
    model(x)
    nn.Sequential(model).apply(lambda module: filled(module, 10 + comm.rank) if isinstance(module, nn.Linear) else None)
    assert parameter_error(comm, model) > 0
    model(x)
    assert parameter_error(comm, model) == 0.0


def claim_no_gradients(comm: pynickel.Communicator) -> None:
    """Inference first, frozen as a whole, thawed later: right outputs, and gradients only where they are wanted."""
    alone, x = net(1), numbers(1, 6, 10)
    model = DataParallel(net(1 + comm.rank), comm, gather_output=True).eval()
    with torch.inference_mode():
        assert torch.allclose(model(x), alone(x), rtol=1e-12)
    model.requires_grad_(False)
    assert not model(x).requires_grad
    given = [x.clone().requires_grad_() for _ in range(2)]
    for each, inputs in zip((model, alone), given, strict=True):
        each(inputs).sum().backward()
    same(given[0].grad, given[1].grad)
    assert gradients(model) == [None] * 4
    model.requires_grad_(True)
    model(x).sum().backward()
    same(gradients(model), gradients(alone))


def claim_troubles(comm: pynickel.Communicator) -> None:
    """An exception on the way back leaves all usable; sparse gradients and a closed communicator are named."""

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, tensor: Any) -> Any:
            return tensor.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            raise ArithmeticError("in the middle")

    alone, model, x = net(1), DataParallel(net(1), comm, gather_output=True), numbers(1, 6, 10)
    refused(ArithmeticError, "in the middle", Broken.apply(model(x)).sum().backward)
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    alone(x).sum().backward()
    same(gradients(model), gradients(alone))
    rows = DataParallel(nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Flatten()), comm, gather_output=True)
    refused(TypeError, "only dense gradients", rows(torch.tensor([[0], [1], [2], [3]])).sum().backward)
    comm.close()
    for call in (loss.backward, lambda: model(x), lambda: average_gradients(comm, model)):
        refused(pynickel.CommunicatorClosedError, "close", call)
