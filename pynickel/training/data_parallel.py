"""DataParallel: a torch module whose batch is dealt out to the ranks; every rank runs the same program. Needs torch."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

from .kinds import check_side, made
from .replicas import broadcast_parameters
from .torch_arrays import Torch
from .torch_functions import Joined, Replicas, Share, all_reduced

if TYPE_CHECKING:
    from ..communicator import Communicator

SCALINGS = ("strong", "weak")


class DataParallel(torch.nn.Module):  # type: ignore[misc]
    """`module`, run by all ranks of `comm` together, each on its share of the batch.

    Every rank runs the same program. Before the first forward all get rank 0's parameters and buffers. `scaling`: "strong",
    every rank passes the same full batch, a tensor or a tuple, list or dict of tensors, and takes its share of dimension
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
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dim must be an int, not {dim!r}")
        if scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, not {scaling!r}")
        if gather_output and scaling == "weak":
            raise ValueError("gather_output is for scaling='strong': with 'weak' every rank has a batch of its own")
        if comm is None and enabled:
            raise TypeError("comm must be a Communicator; without one give enabled=False")
        self.module, self.comm = module, comm
        self.dim, self.gather_output, self.enabled, self.scaling = dim, gather_output, enabled, scaling
        self.share = 1.0
        self._in_step = False
        self.register_state_dict_post_hook(without_prefix)
        self.register_load_state_dict_pre_hook(with_prefix)

    def forward(self, *args: Any, **options: Any) -> Any:
        """The module's result for this rank's share, or for the whole batch."""
        if not self.enabled:
            self.share = 1.0
            return self.module(*args, **options)
        if not self._in_step:
            self.synchronize()
        total = batch_size((args, options), self.dim)
        if self.scaling == "strong":
            args, options = on_tensors((args, options), lambda tensor: Share.apply(tensor, self.comm, self.dim))
        self._note_share(batch_size((args, options), self.dim), total)
        result = self._run(args, options)
        if not self.gather_output:
            return result
        own = batch_size((args, options), self.dim)
        return on_tensors(result, lambda tensor: Joined.apply(checked_output(tensor, own, self.dim), self.comm, self.dim, total))

    def synchronize(self) -> None:
        """Give all ranks rank 0's parameters and buffers; all ranks call it. The first forward does so by itself."""
        broadcast_parameters(self._communicator(), self.module)
        self._in_step = True

    def _run(self, args: Any, options: Any) -> Any:
        """The module with parameters whose gradients come back summed."""
        trained = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
        if not trained or not torch.is_grad_enabled():
            return self.module(*args, **options)
        for parameter in trained.values():
            check_side(self._communicator(), made(Torch), parameter)
        replicas = Replicas.apply(self.comm, *trained.values())
        return functional_call(self.module, dict(zip(trained, replicas, strict=True)), args, options)

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
    if isinstance(thing, Mapping):
        return {name: on_tensors(one, change) for name, one in thing.items()}
    return thing


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
