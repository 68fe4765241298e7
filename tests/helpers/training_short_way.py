"""The short way that a module's gradients usually take, and whatever makes them take the long one, as one of several ranks sees it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import pynickel
from pynickel import training
from pynickel.training import buckets, torch_arrays

from .torch_claims import everywhere_equal, refused
from .training_claims import net, samples


def given(model: Any, factor: float) -> list[Any]:
    """Let each parameter have a gradient of its own, times a factor; the gradients for factor 1."""
    ones = [torch.arange(1, p.numel() + 1, dtype=p.dtype).reshape(p.shape) / 7 + i for i, p in enumerate(model.parameters())]
    for parameter, one in zip(model.parameters(), ones, strict=True):
        parameter.grad = one * factor
    return ones


def check(comm: pynickel.Communicator, model: Any, expected: list[Any]) -> None:
    """The gradients are these, up to rounding, with the same bits everywhere."""
    found = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found, expected)
    everywhere_equal(comm, found)


def is_short(comm: pynickel.Communicator, model: Any) -> bool:
    """Whether the next call would take the short way."""
    parameters = torch_arrays.trained(model)
    known = buckets.known_buckets(comm, model, parameters)
    return known is not None and known.usual is not None and known.usual.fits([p.grad for p in parameters])


def oddities(model: Any, which: str) -> None:
    """Change the gradients so that they are not as usual, and yet the same values."""
    for parameter in model.parameters():
        grad = parameter.grad
        if which == "with gaps":
            parameter.grad = torch.stack([grad, grad], -1)[..., 0]
        elif which == "with a past":
            parameter.grad = grad.clone().requires_grad_() * 1
        elif which == "negative":  # torch only notes that it is
            parameter.grad = torch._neg_view(-grad)
        elif which == "a parameter":
            parameter.grad = nn.Parameter(grad)


def claim_ranks_take_different_ways(comm: pynickel.Communicator) -> None:
    """A rank with unusual gradients and those with usual ones have the same averages to the bit."""
    r, n = comm.rank, comm.nranks
    for dtype in (torch.float32, torch.float64):
        model = net(5, dtype)
        for step, odd in enumerate(("", "with gaps", "with a past", "negative", "a parameter", "none", "")):
            base = given(model, r + 1.0)
            if r == 1:
                oddities(model, odd)
            assert is_short(comm, model) is (step > 0 and (r != 1 or odd in ("negative", "none", "")))
            if odd == "none" and r == 1:
                model[0].bias.grad = None
            training.average_gradients(comm, model, weights=r + 2)
            sums = [sum((rank + 1.0) * (rank + 2) for rank in range(n)) / sum(rank + 2 for rank in range(n)) * one for one in base]
            if odd == "none":
                sums[1] = sums[1] - base[1] * 2 * 3 / sum(rank + 2 for rank in range(n))
            check(comm, model, sums)
            assert model[0].weight.grad.data_ptr() == buckets.by_module[comm][model].buckets.buckets[0].memory.address


def claim_weights_of_all_kinds(comm: pynickel.Communicator) -> None:
    """Weights that change from call to call; NaN with weight 0; lists; sums; none at all; all zero."""
    r, n = comm.rank, comm.nranks
    model = net(6)
    for _ in range(2):
        for weights, factor in ((None, 1.0), (3, 1.0), (2.5, 1.0), ([1.0] * n, 1.0), (r + 1, 1.0), (None, 1.0), (7, 1.0), (1, 1.0)):
            base = given(model, factor)
            training.average_gradients(comm, model, weights)
            check(comm, model, base)
        base = given(model, r + 1.0)
        training.average_gradients(comm, model, r + 1, reduction="sum")
        check(comm, model, base)
        base = given(model, float("nan") if r else 5.0)
        training.average_gradients(comm, model, 0 if r else 4)
        check(comm, model, [5 * one for one in base])
        base = given(model, float("nan") if r else 5.0)
        training.average_gradients(comm, model, [2] + [0] * (n - 1))
        check(comm, model, [5 * one for one in base])
    given(model, 1.0)
    refused(ValueError, "0 on every rank", training.average_gradients, comm, model, 0)
    base = given(model, 2.0)
    training.average_gradients(comm, model, 1)
    check(comm, model, [2 * one for one in base])


def claim_module_changes(comm: pynickel.Communicator) -> None:
    """Between two calls: another type, shapes in the same memory, another parameter, a frozen one, another layer."""
    model = net(7, torch.float32)

    def averaged() -> None:
        base = given(model, comm.rank + 1.0)
        training.average_gradients(comm, model, 2)
        check(comm, model, [one * (comm.nranks + 1) / 2 for one in base])

    averaged()
    averaged()
    model.double()
    averaged()
    assert model[0].weight.grad.dtype == torch.float64
    weight = model[0].weight
    weight.grad, weight.data = None, weight.data.reshape(2, 16)
    averaged()
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    averaged()
    model.append(nn.Linear(1, 3).double())
    averaged()
    model[2].bias.requires_grad_(False)
    base, before = given(model, comm.rank + 1.0), model[2].bias.grad
    training.average_gradients(comm, model)
    assert model[2].bias.grad is before
    torch.testing.assert_close(model[4].weight.grad, base[4] * (comm.nranks + 1) / 2)
    before = model[2].bias.requires_grad_().grad
    averaged()
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.Linear(2, 1).to(torch.bfloat16))
    for _ in range(2):
        base = given(mixed, comm.rank + 1.0)
        training.average_gradients(comm, mixed)
        torch.testing.assert_close([p.grad for p in mixed.parameters()], [one * (comm.nranks + 1) / 2 for one in base], rtol=1e-2, atol=0)


class Chosen(nn.Module):  # type: ignore[misc]
    """A module that says itself what its parameters are."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    def parameters(self, recurse: bool = True) -> Any:
        """One of the two layers'."""
        return self.used.parameters(recurse)


def claim_parameters_of_any_module(comm: pynickel.Communicator) -> None:
    """The parameters are those of `parameters()`, in its order: shared ones once, none where a layer has none, cycles, own ideas."""
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    twice = nn.ModuleList([tied, tied, nn.ModuleDict({"a": tied[2]}), nn.ParameterList([nn.Parameter(torch.ones(2))]), nn.GRU(2, 3)])
    cycle = nn.Module()
    cycle.inner = nn.Linear(2, 2)
    cycle.inner.outer = cycle
    cycle.register_module("nothing", None)
    frozen = copy.deepcopy(tied)
    frozen[2].requires_grad_(False)
    for module in (tied, twice, cycle, frozen, Chosen(), nn.Sequential(Chosen()), nn.ReLU()):
        expected = [parameter for parameter in module.parameters() if parameter.requires_grad]
        assert [id(one) for one in torch_arrays.trained(module)] == [id(one) for one in expected]
    training.average_gradients(comm, nn.ReLU())  # nothing to do


def claim_refused_on_the_way(comm: pynickel.Communicator) -> None:
    """What cannot be averaged is refused also where the short way was taken before; no rank waits, and the next call is right."""
    layer = nn.Linear(3, 3, bias=False)
    for grad, kind, words in (
        (torch.ones(1).expand(3, 3), ValueError, "elements that share memory"),
        (torch.eye(3).to_sparse(), TypeError, "only dense gradients"),
    ):
        for _ in range(2):
            base = given(layer, comm.rank + 1.0)
            training.average_gradients(comm, layer)
            check(comm, layer, [one * (comm.nranks + 1) / 2 for one in base])
        layer.weight.grad = grad
        refused(kind, words, training.average_gradients, comm, layer)
        assert layer.weight.grad is grad
    refused(TypeError, "must be dense and hold values", training.average_gradients, comm, nn.Linear(2, 2, device="meta"))


def claim_graph_or_not(comm: pynickel.Communicator) -> None:
    """The call leaves no trace in autograd, inside no_grad and inference mode too, and gradients of gradients may be averaged."""
    model, (x, _) = net(9), samples()
    alone = copy.deepcopy(model)
    gradients = torch.autograd.grad(alone(x).square().sum(), list(alone.parameters()), create_graph=True)
    for around in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        model.zero_grad()
        model(x).square().sum().backward(create_graph=around is torch.enable_grad)
        with around():
            training.average_gradients(comm, model, 3)
        assert not any(parameter.grad.requires_grad for parameter in model.parameters())
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], [one.detach() for one in gradients])


def set_all(comm: pynickel.Communicator, model: Any) -> list[Any]:
    """Each parameter of rank r has the gradient (r + 1) times its number from 1 on; the averages."""
    found = []
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, (comm.rank + 1.0) * (number + 1))
        found.append(torch.full_like(parameter, (comm.nranks + 1) / 2 * (number + 1)))
    return found


def claim_gradients_change_places(comm: pynickel.Communicator) -> None:
    """What lies in the kept vector, but not where its parameter's place is, is not overwritten before it is read."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        model = nn.ParameterList([nn.Parameter(torch.zeros(2, 2, dtype=dtype)) for _ in range(3)])
        one, two, three = model
        for change in ("exchanged", "moved", "turned", "negative", "negative, one missing", "one for all"):
            for number, parameter in enumerate(model):
                parameter.grad = torch.arange(4, dtype=dtype).reshape(2, 2) + number
            training.average_gradients(comm, model)
            a, b, c = (parameter.grad for parameter in model)
            minus = torch._neg_view(a) if comm.rank else -a  # torch only notes the sign, and not on all ranks
            one.grad, two.grad, three.grad = {
                "exchanged": (b, a, c), "moved": (None, a, b), "turned": (a.T, b, c), "negative": (minus, b, c),
                "negative, one missing": (minus, None, c), "one for all": (c, c, c),
            }[change]  # fmt: skip
            wanted = [None if p.grad is None else p.grad.clone() for p in model]
            training.average_gradients(comm, model)
            assert all(p.grad is want is None or torch.equal(p.grad, want) for p, want in zip(model, wanted, strict=True)), change


def claim_gradients_are_replaced(comm: pynickel.Communicator) -> None:
    """The tensors that `.grad` are belong to the user; the kept vector's own are others."""

    def replace(model: Any) -> None:
        for parameter in model.parameters():
            parameter.grad.data = parameter.grad.data * 1

    def reshape(model: Any) -> None:
        for parameter in model.parameters():
            parameter.grad.requires_grad_()
            parameter.grad = parameter.grad.detach()
            parameter.grad.unsqueeze_(0).t_() if parameter.ndim == 1 else parameter.grad.transpose_(0, 1)

    for change in (
        replace, reshape, lambda model: model.to(memory_format=torch.channels_last), lambda model: model.share_memory(),
        lambda model: model.to_empty(device="cpu"), lambda model: model.double().float(),
    ):  # fmt: skip
        model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Linear(2, 2))
        for fresh in (True, False):  # the gradients that were changed are kept or dropped
            set_all(comm, model)
            training.average_gradients(comm, model)
            wanted = [parameter.grad.clone() * (comm.nranks + 1) / 2 for parameter in model.parameters()]
            for parameter in model.parameters():
                parameter.grad.mul_(comm.rank + 1)
            change(model)
            if fresh or change is reshape or "to_empty" in change.__code__.co_names:
                wanted = set_all(comm, model)
            training.average_gradients(comm, model)
            check(comm, model, wanted)


def claim_inference_mode_first(comm: pynickel.Communicator) -> None:
    """Gradients stay such that they can be changed, as do the memory of a list of tensors and that of 16-bit gradients."""
    for dtype in (torch.float32, torch.bfloat16):
        model = net(8, dtype)
        set_all(comm, model)
        model[0].bias.grad = None if comm.rank else model[0].bias.grad
        with torch.inference_mode():
            training.average_gradients(comm, model, 2)
            training.average_gradients(comm, [torch.ones(2), torch.ones(7)])
        model.zero_grad(set_to_none=False)
        model(samples(dtype)[0]).sum().backward()
        training.average_gradients(comm, model, 2)
        training.average_gradients(comm, two := [torch.ones(2), torch.ones(7) * comm.rank])
        assert two[1].tolist() == [(comm.nranks - 1) / 2] * 7


def claim_weights_of_many_digits(comm: pynickel.Communicator) -> None:
    """The sum of the weights is not rounded to float32, in whatever order the types come."""
    for types in ((torch.float32, torch.float64), (torch.bfloat16, torch.complex128), (torch.float64, torch.float32)):
        model = nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in types])
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        training.average_gradients(comm, model, weights=1 / (comm.rank + 3))
        for parameter in model:
            assert parameter.element_size() < 8 or abs(parameter.grad - 1).max() < 1e-15
