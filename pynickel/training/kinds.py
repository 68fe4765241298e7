"""The array libraries: which one an array is of, and what gradients need of it. NumPy and CuPy are here, torch in a file of its own."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..layout import is_dense

if TYPE_CHECKING:
    from ..communicator import Communicator
    from ..memory import Memory

WIDE = {"float64": "float64", "complex128": "float64"}  # what these are summed in; all others in float32
NUMBERS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")


class Kind:
    """NumPy's arrays. CuPy's differ in where they are; torch's have other names for the same things."""

    name = "NumPy"

    def __init__(self) -> None:
        import numpy

        self.xp: Any = numpy

    def dtype(self, array: Any) -> str:
        """The name of the element type."""
        return str(array.dtype)

    def place(self, array: Any) -> Any:
        """The device."""
        return None

    def on_gpu(self, place: Any) -> bool:
        """Whether the device is a GPU."""
        return False

    def size(self, array: Any) -> int:
        """How many elements."""
        return int(array.size)

    def is_dense(self, array: Any) -> bool:
        """Whether the library can work on it where it is."""
        return is_dense(array.shape, array.strides, array.itemsize)

    def is_writable(self, array: Any) -> bool:
        """Whether it may be changed."""
        return bool(array.flags.writeable)

    def plain(self, array: Any) -> Any:
        """The array without what follows its uses."""
        return array

    def lasting(self) -> AbstractContextManager[Any]:
        """In which arrays are made that any later call may change."""
        return nullcontext()

    def silent(self) -> AbstractContextManager[Any]:
        """In which infinities and NaN are no reason for warnings, nor for an exception that only one rank would have."""
        import numpy

        return numpy.errstate(all="ignore")

    def flat(self, memory: Memory, dtype: str, place: Any) -> Any:
        """The whole memory as a vector."""
        return self.xp.asarray(memory).view(dtype)

    def address(self, flat: Any, memory: Memory) -> int:
        """Where the vector is that was made of this memory."""
        return memory.address

    def pieces(self, flat: Any, likes: Sequence[Any]) -> list[Any]:
        """Views of a vector, side by side, in the shapes of `likes`; complex numbers where they have complex numbers."""
        found, start = [], 0
        for like in likes:
            count = real_size(self, like)
            piece = flat[start : start + count]
            if self.dtype(like).startswith("complex"):
                piece = self.as_complex(piece)
            found.append(piece.reshape(tuple(like.shape)))
            start += count
        return found

    def as_complex(self, vector: Any) -> Any:
        """Pairs as complex numbers."""
        return vector.view("complex128" if vector.dtype == "float64" else "complex64")

    def own_or_apart(self, arrays: Sequence[Any], pieces: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
        """The arrays, each in its own piece or in memory that is not the vectors'; only gradients of modules can be otherwise."""
        return arrays

    def pack(self, flat: Any, pieces: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Copy the arrays in; None is zeros."""
        for piece, array in zip(pieces, arrays, strict=True):
            piece[...] = 0 if array is None else array

    def usual(self, values: Any, pieces: Sequence[Any], notes: Any, own_notes: Any, likes: Sequence[Any]) -> Any:
        """What works on the first bucket in fewer calls, if there is such a way for all arrays like these."""
        return None

    def copy(self, target: Any, source: Any) -> None:
        """Overwrite an array."""
        target[...] = source

    def numbers(self, values: Sequence[float], vector: Any) -> None:
        """Write numbers of the host."""
        vector[...] = self.xp.asarray(values)

    def as_bytes(self, array: Any) -> Any:
        """A dense array as a vector of bytes, in the same memory."""
        return array.reshape(-1).view("uint8")

    def dense_copy(self, array: Any) -> Any:
        """A copy in C order."""
        return array.copy(order="C")

    def doubles(self, arrays: Sequence[Any]) -> Any:
        """All arrays behind each other as a new vector of float64; a complex number is two."""
        parts = [array.reshape(-1) for array in arrays]
        parts = [part.view(part.real.dtype) if part.dtype.kind == "c" else part for part in parts]
        return self.xp.concatenate([part.astype("float64") for part in parts] or [self.xp.zeros(0)])

    def stream(self, place: Any) -> Any:
        """The stream on which the arrays are used."""
        return None


class CuPy(Kind):
    """CuPy's arrays. Not yet run on a GPU."""

    name = "CuPy"

    def __init__(self) -> None:
        import cupy

        self.xp = cupy

    def place(self, array: Any) -> Any:
        """The device."""
        return array.device.id

    def on_gpu(self, place: Any) -> bool:
        """Whether the device is a GPU."""
        return True

    def is_writable(self, array: Any) -> bool:
        """CuPy has no arrays that may only be read."""
        return True

    def stream(self, place: Any) -> Any:
        """The stream on which the arrays are used."""
        return self.xp.cuda.get_current_stream()


def of(arrays: Sequence[Any]) -> Kind:
    """What all these arrays are."""
    if not arrays:
        return Kind()
    found = [kind_of(array) for array in arrays]
    if any(kind is not found[0] for kind in found):
        raise TypeError(f"arrays must be of one library, not of {' and '.join(sorted({kind.name for kind in found}))}")
    return found[0]


def kind_of(array: Any) -> Kind:
    """What an array is. An object of a library that has not been imported cannot exist, so none is imported here."""
    if is_torch(array, "Tensor"):
        from .torch_arrays import Torch

        if str(array.layout) != "torch.strided" or array.device.type == "meta":
            raise TypeError(f"arrays must be dense and hold values, not a tensor of {array.layout} on {array.device}")
        return made(Torch)
    for module, kind in (("cupy", CuPy), ("numpy", Kind)):
        library = sys.modules.get(module)
        if library is not None and isinstance(array, library.ndarray):
            return made(kind)
    raise TypeError(f"arrays must be arrays of NumPy or CuPy, tensors of torch, or a torch module, not {type(array).__name__}")


instances: dict[type[Kind], Kind] = {}


def made(kind: type[Kind]) -> Kind:
    """The one object of a kind."""
    if kind not in instances:
        instances[kind] = kind()
    return instances[kind]


def is_torch(thing: Any, name: str) -> bool:
    """Whether a thing is a torch "Tensor", "Module" or "Parameter"."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor if name == "Tensor" else getattr(torch.nn, name))


def listed(arrays: Any) -> list[Any]:
    """One array, a list, a dict or an iterator of arrays, as a list."""
    if hasattr(arrays, "shape"):
        return [arrays]
    if isinstance(arrays, Mapping):
        return list(arrays.values())
    if isinstance(arrays, Iterable) and not isinstance(arrays, (str, bytes)):
        return list(arrays)
    raise TypeError(f"arrays must be a torch module, an array, or a list or dict of arrays, not {type(arrays).__name__}")


def real_size(kind: Kind, array: Any) -> int:
    """How many real numbers are in it."""
    return kind.size(array) * (2 if kind.dtype(array).startswith("complex") else 1)


def summed_in(name: str) -> str:
    """The type in which gradients of a type are added: 16-bit sums would overflow or lose what is small."""
    if name not in NUMBERS:
        raise TypeError(f"gradients must be floating point numbers, not {name}; an average of integers would not fit")
    return WIDE.get(name, "float32")


def check_side(comm: Communicator, kind: Kind, array: Any) -> None:
    """Refuse arrays that are not where the library works."""
    on_gpu = kind.on_gpu(kind.place(array))
    if on_gpu is (comm.library.kind == "host"):
        here, there = ("a GPU", "the CPU") if on_gpu else ("the CPU", "a GPU")
        raise ValueError(f"the {kind.name} arrays are on {here}, and the {comm.library.kind} library works on {there}: copy them there")


def check_writable(kind: Kind, arrays: Sequence[Any]) -> None:
    """Refuse arrays that cannot be changed in place, before any rank waits for another."""
    for number, array in enumerate(arrays):
        if not kind.is_writable(array):
            raise ValueError(
                f"arrays[{number}] of shape {tuple(array.shape)} would be changed in place, but is read-only or has elements "
                "that share memory; pass a copy"
            )
