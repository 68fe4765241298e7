"""Arrays of GPU libraries travel as such, by way of host memory; PyTorch's on the CPU go the same way, for its own makes copies."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
from typing import Any


class Carrier:
    """How the arrays of one library get to the host and back; here as CuPy does it."""

    module = "cupy"

    def takes(self, array: Any) -> bool:
        """Whether the object is one of the arrays in question."""
        return hasattr(type(array), "__cuda_array_interface__")

    def to_host(self, array: Any) -> Any:
        """Return a NumPy array with the values; waits for the GPU."""
        return array.get()

    def from_host(self, host: Any) -> Any:
        """Return an array on the current device."""
        return self.library().asarray(host)

    def fill(self, target: Any, value: Any) -> None:
        """Write a value, from the host or a GPU, into an array on the GPU."""
        target.set(self.on_host(value))

    def on_host(self, value: Any) -> Any:
        """Return the value as a NumPy array, wherever it is."""
        carrier = carrier_of(value)
        return value if carrier is None else carrier.to_host(value)

    def library(self) -> Any:
        """The library, loaded where an array arrives."""
        return importlib.import_module(self.module)

    def reduce(self, array: Any) -> tuple[Any, ...]:
        """How pickle shall take the array apart: into a host array, whose memory goes beside the pickle."""
        return _arrive, (self.module, self.to_host(array))


class Numba(Carrier):
    """Numba's device arrays."""

    module = "numba"

    def to_host(self, array: Any) -> Any:
        """Return a NumPy array with the values."""
        return array.copy_to_host()

    def from_host(self, host: Any) -> Any:
        """Return an array on the current device."""
        return importlib.import_module("numba.cuda").to_device(host)

    def fill(self, target: Any, value: Any) -> None:
        """Write a value into an array on the GPU."""
        target.copy_to_device(self.on_host(value))


class Torch(Carrier):
    """PyTorch's dense tensors, with the types that NumPy lacks."""

    module = "torch"

    def takes(self, array: Any) -> bool:
        """Plain tensors; parameters and subclasses come apart into these by themselves."""
        torch = self.library()
        plain = type(array) is torch.Tensor and array.layout is torch.strided and not array.is_quantized
        return plain and array.device.type in ("cpu", "cuda") and (array.is_leaf or not array.requires_grad)

    def to_host(self, array: Any) -> Any:
        """Return a NumPy array with the values."""
        return array.detach().cpu().numpy()

    def fill(self, target: Any, value: Any) -> None:
        """Write a value into a tensor."""
        torch = self.library()
        with torch.no_grad():
            target.copy_(value if isinstance(value, torch.Tensor) else torch.from_numpy(self.on_host(value)))

    def reduce(self, array: Any) -> tuple[Any, ...]:
        """Bytes, since NumPy does not know every type; the shape and type are put back by the receiver."""
        torch = self.library()
        host = array.detach().resolve_conj().resolve_neg().cpu().contiguous()
        data = host.reshape(-1).view(torch.uint8).numpy()
        return _tensor_arrives, (data, array.dtype, tuple(array.shape), array.device.type, array.requires_grad)


_CARRIERS: dict[str, Carrier] = {carrier.module: carrier for carrier in (Carrier(), Numba(), Torch())}


def carrier_of(array: Any) -> Carrier | None:
    """Return how an array travels; None for anything that pickle knows by itself."""
    carrier = _CARRIERS.get(type(array).__module__.partition(".")[0])
    return carrier if carrier is not None and carrier.takes(array) else None


def _arrive(module: str, host: Any) -> Any:
    return _CARRIERS[module].from_host(host)


def _tensor_arrives(data: Any, dtype: Any, shape: tuple[int, ...], device: str, requires_grad: bool) -> Any:
    torch: Any = importlib.import_module("torch")
    tensor = torch.from_numpy(data).view(dtype).reshape(shape).to(device)
    return tensor.requires_grad_() if requires_grad else tensor
