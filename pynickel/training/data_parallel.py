"""DataParallel: a torch module whose batch is dealt out to the ranks; every rank runs the same program. Needs torch."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.func import functional_call

from ..communicator import Communicator
from .kinds import check_side, made
from .replicas import broadcast_parameters
from .shares import whole_number
from .torch_arrays import Torch
from .torch_functions import Anchored, Entrance, Joined, all_reduced, share

SCALINGS = ("strong", "weak")


class DataParallel(torch.nn.Module):  # type: ignore[misc]
    """`module`, run by all ranks of `comm` together, each on its share of the batch.

    Every rank runs the same program. Before the first forward all get rank 0's parameters and buffers. `scaling`: "strong",
    every rank passes the same full batch, a tensor or a tuple, list, dict or dataclass of tensors, and takes its share of dimension
    `dim`, the first ranks one more; fewer items than ranks leave some with an empty one. "weak", every rank passes a batch of
    its own, and all of it is its share. Other arguments, numbers say, reach the module as they are.

    The result is that of the share, or, with gather_output, of the whole batch on every rank (strong scaling only). Backward
    leaves the sum of all ranks' gradients on every rank, the same to the bit. So with gather_output the loss is written as
    for one process; without it each rank's loss is the sum over its own items, or a mean times `share`, the part of the batch
    that this rank has had, 0 to 1: then the sum is the gradient of the mean over all items.

    It may wrap a part of a model. What follows it then sees the share, and needs `average_gradients` for itself, or, with
    gather_output, the whole batch, and does the same on every rank. `enabled=False` makes it hand everything to the module.
    state_dict and load_state_dict are those of the module, so a file fits with and without it, on any number of ranks. All
    ranks have to load it, or one before the first forward.
    """

    def __init__(
        self,
        module: Any,
        comm: Communicator | None,
        dim: int = 0,
        gather_output: bool = False,
        *,
        enabled: bool = True,
        scaling: str = "strong",
    ) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
        dim = whole_number("dim", dim)
        if scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, not {scaling!r}")
        if gather_output and scaling == "weak":
            raise ValueError("gather_output is for scaling='strong': with 'weak' every rank has a batch of its own")
        if enabled and not isinstance(comm, Communicator):
            raise TypeError(f"comm must be a Communicator, not {comm!r}; without one give enabled=False")
        if enabled:
            check_inside(module, comm)
        self.module, self.comm = module, comm
        self.dim, self.gather_output, self.enabled, self.scaling = dim, gather_output, enabled, scaling
        self.share = 1.0
        self._in_step = False
        self._loaded_at = ""  # what stands before the module's names in the file that is being loaded
        self.register_state_dict_post_hook(without_prefix)
        self.register_load_state_dict_pre_hook(with_prefix)
        self.register_load_state_dict_post_hook(told_without_prefix)

    def forward(self, *args: Any, **options: Any) -> Any:
        """The module's result for this rank's share, or for the whole batch."""
        if not self.enabled:
            self.share = 1.0
            return self.module(*args, **options)
        if torch.compiler.is_compiling():  # what crosses ranks is not for the compiler; a compiled module inside stays compiled
            return torch.compiler.disable(self._run)(args, options)
        return self._run(args, options)

    def _run(self, args: Any, options: Any) -> Any:
        """The same, enabled."""
        if not self._in_step:
            self.synchronize()
        given, total = (args, options), batch_size((args, options), self.dim)
        trained, crossing = self._trained(), []
        if self.scaling == "strong" and torch.is_grad_enabled():
            on_tensors(given, lambda tensor: crossing.append(tensor) if tensor.requires_grad else None)
        entered = Entrance.apply(self.comm, self.dim, len(crossing), *crossing, *trained.values()) if crossing or trained else ()
        if self.scaling == "strong":
            given = self._shares(given, iter(entered[: len(crossing)]))
        own = batch_size(given, self.dim)
        self._note_share(own, total)
        if trained:
            replicas = dict(zip(trained, entered[len(crossing) :], strict=True))
            result = functional_call(self.module, replicas, *given)
        else:
            result = self.module(*given[0], **given[1])
        return on_tensors(result, lambda tensor: self._output(tensor, entered[0] if entered else None, own, total))

    def _shares(self, given: Any, crossing: Iterator[Any]) -> Any:
        """This rank's shares of the arguments; those through which gradients go back are ready."""
        graph = torch.is_grad_enabled()
        return on_tensors(
            given, lambda tensor: next(crossing) if graph and tensor.requires_grad else share(tensor, self._communicator(), self.dim)
        )

    def _output(self, tensor: Any, entrance: Any, own: int, total: int) -> Any:
        """An output for the caller: the whole batch, or the share."""
        anchor = entrance if tensor.is_floating_point() or tensor.is_complex() else None
        if self.gather_output:
            return Joined.apply(checked_output(tensor, own, self.dim), anchor, self.comm, self.dim, total)
        return tensor if anchor is None else Anchored.apply(tensor, anchor)

    def synchronize(self) -> None:
        """Give all ranks rank 0's parameters and buffers; all ranks call it. The first forward does so by itself."""
        broadcast_parameters(self._communicator(), self.module)
        self._in_step = True

    def apply(self, function: Any) -> Any:
        """As of any module; since the function may draw random numbers, the next forward gives all ranks rank 0's."""
        self._in_step = False
        return super().apply(function)

    def _trained(self) -> dict[str, Any]:
        """The parameters whose gradients are wanted, by name."""
        if not torch.is_grad_enabled():
            return {}
        trained = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
        for parameter in trained.values():
            check_side(self._communicator(), made(Torch), parameter)
        return trained

    def _note_share(self, own: int, total: int) -> None:
        """What part of the batch is this rank's."""
        if self.scaling == "weak":
            device = next(iter(self.module.parameters()), torch.empty(0)).device
            total = int(all_reduced(self._communicator(), torch.tensor([own], device=device)))
        self.share = own / total if total else 0.0

    def _communicator(self) -> Communicator:
        """The ranks, or why there are none."""
        if self.comm is None:
            raise RuntimeError("a loaded DataParallel has no communicator yet: set its comm attribute, or enabled to False")
        return self.comm

    def __getstate__(self) -> dict[str, Any]:
        """To be pickled: the module and what it is set to; a communicator stays in its process."""
        return {**self.__dict__, "comm": None, "_in_step": False}

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        """A copy of the module on the same ranks."""
        module = copy.deepcopy(self.module, memo)
        return DataParallel(module, self.comm, self.dim, self.gather_output, enabled=self.enabled, scaling=self.scaling)

    def extra_repr(self) -> str:
        """What it is set to."""
        return f"comm={self.comm!r}, dim={self.dim}, gather_output={self.gather_output}, enabled={self.enabled}, scaling={self.scaling!r}"


def on_tensors(thing: Any, change: Callable[[Any], Any]) -> Any:
    """A container with every tensor in it changed, however deep; what is no tensor stays."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*(on_tensors(one, change) for one in thing))
    if isinstance(thing, (list, tuple)):
        return type(thing)(on_tensors(one, change) for one in thing)
    if isinstance(thing, (dict, UserDict)):  # of its own class, which may have more than a dict has
        changed = copy.copy(thing)
        for name, one in thing.items():
            changed[name] = on_tensors(one, change)
        return changed
    if isinstance(thing, Mapping):
        return {name: on_tensors(one, change) for name, one in thing.items()}
    if is_dataclass(thing) and not isinstance(thing, type):
        other = copy.copy(thing)
        for field in fields(thing):
            object.__setattr__(other, field.name, on_tensors(getattr(thing, field.name), change))  # a frozen one too
        return other
    return thing


def check_inside(module: Any, comm: Any) -> None:
    """Refuse a module whose share cannot be run."""
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("module is scripted, and torch runs it with its own parameters only: give what it was made of, or script its parts")
    if any(isinstance(one, DataParallel) and one.enabled and one.comm is comm for one in module.modules()):
        raise ValueError(
            "module holds a DataParallel of the same ranks, which would take shares of shares: wrap one of the two, or give enabled=False"
        )


def batch_size(thing: Any, dim: int) -> int:
    """How many items all tensors in a container have."""
    shapes: list[tuple[int, ...]] = []
    on_tensors(thing, lambda tensor: shapes.append(tuple(tensor.shape)))
    if not shapes:
        raise TypeError("DataParallel was called without a tensor, so there is no batch to share")
    for shape in shapes:
        if not -len(shape) <= dim < len(shape):
            raise ValueError(f"a tensor of shape {shape} has no dimension {dim} to share; pass numbers as numbers")
    sizes = {shape[dim] for shape in shapes}
    if len(sizes) > 1:
        raise ValueError(f"the tensors have different numbers of items along dimension {dim}: shapes {', '.join(map(str, shapes))}")
    return sizes.pop()


def checked_output(tensor: Any, own: int, dim: int) -> Any:
    """An output that can be joined with the other ranks'."""
    if not -tensor.ndim <= dim < tensor.ndim or tensor.shape[dim] != own:
        raise ValueError(
            f"gather_output needs outputs with the batch's {own} items along dimension {dim}, and this one has shape {tuple(tensor.shape)}"
        )
    return tensor


def without_prefix(wrapper: DataParallel, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A saved state has the names that the module has by itself."""
    inner = prefix + "module."
    for name in [name for name in state if name.startswith(inner)]:
        state[prefix + name.removeprefix(inner)] = state.pop(name)


def with_prefix(wrapper: DataParallel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """And is loaded by them; what is loaded may be known to one rank alone."""
    wrapper._in_step = False
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)
    wrapper._loaded_at = prefix


def told_without_prefix(wrapper: DataParallel, told: Any) -> None:
    """What did not fit is told by the names that are in the file."""
    prefix, inner = wrapper._loaded_at, wrapper._loaded_at + "module."
    for names in (told.missing_keys, told.unexpected_keys):
        names[:] = [prefix + name.removeprefix(inner) if name.startswith(inner) else name for name in names]
