"""torch tensors as the training helpers need them; imported when the first tensor or module comes in."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from .kinds import Kind

if TYPE_CHECKING:
    from ..memory import Memory


class Torch(Kind):
    """Tensors, on the CPU or, not yet run, on a GPU."""

    name = "torch"

    def __init__(self) -> None:
        self.xp = torch

    def dtype(self, array: Any) -> str:
        """The name of the element type."""
        return str(array.dtype).removeprefix("torch.")

    def place(self, array: Any) -> Any:
        """The device."""
        return array.device

    def on_gpu(self, place: Any) -> bool:
        """Whether the device is a GPU."""
        return bool(place.type == "cuda")

    def size(self, array: Any) -> int:
        """How many elements."""
        return int(array.numel())

    def is_dense(self, array: Any) -> bool:
        """Whether the library can work on it where it is."""
        return bool(array.is_contiguous()) and not array.is_conj() and not array.is_neg()

    def is_writable(self, array: Any) -> bool:
        """Whether each element has a place of its own."""
        return array.is_contiguous() or all(stride or size < 2 for size, stride in zip(array.shape, array.stride(), strict=True))

    def plain(self, array: Any) -> Any:
        """The tensor without autograd."""
        return array.detach()

    def lasting(self) -> AbstractContextManager[Any]:
        """In which tensors are made that any later call may change; those of inference mode could not be."""
        mode: AbstractContextManager[Any] = torch.inference_mode(False)
        return mode

    def address(self, flat: Any, memory: Memory) -> int:
        """Where the vector is by now: share_memory() of a module moves its gradients, and with them all of the vector."""
        return int(flat.data_ptr())

    def flat(self, memory: Memory, dtype: str, place: Any) -> Any:
        """The whole memory as a vector."""
        if self.on_gpu(place):
            return torch.as_tensor(memory, device=place).view(getattr(torch, dtype))
        import numpy

        return torch.from_numpy(numpy.asarray(memory)).view(getattr(torch, dtype))

    def as_complex(self, vector: Any) -> Any:
        """Pairs as complex numbers."""
        return torch.view_as_complex(vector.view(-1, 2))

    def own_or_apart(self, arrays: Sequence[Any], pieces: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
        """The tensors; one that lies in the vectors, but not as its own piece does, is copied before another one gets its place."""
        spans = [(vector.data_ptr(), vector.data_ptr() + vector.nbytes) for vector in vectors]

        def apart(array: Any, piece: Any) -> Any:
            inside = array is not None and any(start <= array.data_ptr() < stop for start, stop in spans)
            return self.dense_copy(array) if inside and not is_same(array, piece) else array

        return [apart(array, piece) for array, piece in zip(arrays, pieces, strict=True)]

    def pack(self, flat: Any, pieces: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Copy the tensors in; None is zeros. What is there already stays, and if nothing is, one call copies all."""
        pairs = zip(pieces, arrays, strict=True)
        todo = [(piece, array) for piece, array in pairs if array is None or not is_same(array, piece)]
        if len(todo) == len(arrays) and all(array is not None and array.dtype is flat.dtype for array in arrays):
            parts = [array.reshape(-1) for array in arrays]
            if any(part.requires_grad for part in parts):
                parts = [part.detach() for part in parts]
            torch.cat(parts, out=flat)
            return
        for piece, array in todo:
            if array is None:
                piece.zero_()
            else:
                piece.copy_(array.detach().resolve_neg())  # from a negative view of float16 to float32 torch loses the sign

    def usual(self, values: Any, pieces: Sequence[Any], notes: Any, own_notes: Any, likes: Sequence[Any]) -> Usual | None:
        """For tensors of the CPU that are summed in one bucket and in their own type."""
        if len(pieces) < len(likes) or self.on_gpu(notes.device) or any(like.dtype is not notes.dtype for like in likes):
            return None
        return Usual(values, pieces, notes, own_notes)

    def copy(self, target: Any, source: Any) -> None:
        """Overwrite a tensor."""
        target.detach().copy_(source.to(target.dtype))  # and the other way round

    def numbers(self, values: Sequence[float], vector: Any) -> None:
        """Write numbers of the host."""
        vector.copy_(torch.tensor(values, dtype=vector.dtype))

    def as_bytes(self, array: Any) -> Any:
        """A dense tensor as a vector of bytes, in the same memory."""
        return array.detach().reshape(-1).view(torch.uint8)

    def dense_copy(self, array: Any) -> Any:
        """A copy in C order."""
        return array.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()

    def doubles(self, arrays: Sequence[Any]) -> Any:
        """All tensors behind each other as a new vector of float64; a complex number is two."""
        parts = [array.detach() for array in arrays]
        parts = [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in parts]
        return torch.cat([part.reshape(-1).to(torch.float64) for part in parts] or [torch.zeros(0, dtype=torch.float64)])

    def stream(self, place: Any) -> Any:
        """The stream on which the tensors are used."""
        return torch.cuda.current_stream(place) if self.on_gpu(place) else None


class Usual:
    """Gradients as they nearly always are: all there, whole tensors of the CPU without a past, in the type they are summed in."""

    def __init__(self, values: Any, pieces: Sequence[Any], notes: Any, own_notes: Any) -> None:
        self.values, self.pieces, self.dtype = values, pieces, values.dtype
        self.shapes, self.nbytes = [piece.shape for piece in pieces], values.nbytes
        self.places, self.own_notes = [*pieces, notes], own_notes
        # Views, which are quicker than numbers: those would be made tensors of the vector's type at each use.
        self.own_weight, self.weight = own_notes[0], notes[0]

    def fits(self, tensors: Sequence[Any]) -> bool:
        """Whether all of these are so."""
        dtype, strided, plain = self.dtype, torch.strided, torch.Tensor
        start = self.values.data_ptr()
        stop = start + self.nbytes
        for tensor, shape, piece in zip(tensors, self.shapes, self.pieces, strict=True):
            if (
                type(tensor) is not plain or tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu
                or tensor.layout is not strided or tensor.requires_grad or not tensor.is_contiguous()
                or start <= tensor.data_ptr() < stop and not is_same(tensor, piece)
            ):  # fmt: skip
                return False
        return True

    def pack(self, tensors: Sequence[Any]) -> None:
        """Copy them and the notes in; what is there already stays."""
        torch._foreach_copy_(self.places, [*tensors, self.own_notes])

    def scale_by_weight(self) -> None:
        """Times this rank's weight."""
        self.values.mul_(self.own_weight)


def is_same(tensor: Any, piece: Any) -> bool:
    """Whether a tensor is this piece, element by element."""
    return bool(
        tensor.data_ptr() == piece.data_ptr()
        and tensor.stride() == piece.stride()
        and tensor.dtype is piece.dtype
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def trained(module: Any) -> list[Any]:
    """The parameters that have gradients, in the order of `parameters()`, each once."""
    if not walks_as_usual(module.__class__):
        return [parameter for parameter in module.parameters() if parameter.requires_grad]
    found: dict[int, Any] = {}
    walk(module, set(), found)
    return list(found.values())


@lru_cache(64)
def walks_as_usual(kind: type) -> bool:
    """Whether this class of modules finds its parameters as nn.Module does."""
    names = "parameters", "named_parameters", "named_modules", "_named_members"
    return all(getattr(kind, name) is getattr(torch.nn.Module, name) for name in names)


def walk(module: Any, seen: set[Any], found: dict[int, Any]) -> None:
    """What `parameters()` does, by a recursion instead of a chain of generators for each module, which takes thrice as long."""
    seen.add(module)
    for parameter in module._parameters.values():
        if parameter is not None and parameter.requires_grad:
            found[id(parameter)] = parameter
    for child in module._modules.values():
        if child is not None and child not in seen:
            walk(child, seen, found)


def gradients(parameters: Sequence[Any]) -> list[Any]:
    """Their gradients, each of which may be None."""
    return dense([parameter.grad for parameter in parameters])


def dense(tensors: Sequence[Any]) -> list[Any]:
    """The tensors, each of which may be None, or why they cannot be averaged."""
    for tensor in tensors:
        if tensor is not None and tensor.layout is not torch.strided:
            raise TypeError(f"a gradient is {tensor.layout}; only dense gradients can be averaged (Embedding(sparse=False) makes them)")
    return list(tensors)
