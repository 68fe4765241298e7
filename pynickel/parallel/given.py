"""What `receive(into=...)` is given: arrays that are there already, checked against what came, then filled."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pynickel.parallel import gpu
from pynickel.parallel.deadline import Deadline


class MisfitError(ValueError):
    """What came does not fit what was given; the message can still be received otherwise."""


class Filling(NamedTuple):
    """One array to be written: with what, and how."""

    write: Callable[[Any, Any], None]
    target: Any
    value: Any


def patience(wait: bool, timeout: float | None) -> Deadline | None:
    """Return the deadline of a receive; None when it does not wait."""
    if wait:
        return Deadline(timeout)
    if timeout is not None:
        raise ValueError(f"receive with wait=False returns at once and takes no timeout, not {timeout!r}")
    return None


def one_per_child(into: Any, ids: Sequence[int]) -> dict[int, Any]:
    """Return what was given by child id; it comes in the children's order, or in a dict by id."""
    if isinstance(into, Mapping):
        targets = dict(into)
        missing = [id for id in ids if id not in targets]
        if missing:
            raise ValueError(f"into has nothing for child {', '.join(map(str, missing))}; its keys are {sorted(targets)}")
    elif isinstance(into, (list, tuple)):
        if len(into) != len(ids):
            raise ValueError(f"into has {len(into)} arrays for {len(ids)} children; one is needed for each, in their order")
        targets = dict(zip(ids, into, strict=True))
    else:
        raise TypeError(f"into must be a list or tuple of arrays, one per child, or a dict by child id, not {type(into).__name__}")
    for target in targets.values():
        check(target)
    return targets


def check(into: Any) -> None:
    """Refuse what cannot be written into, before anything is waited for."""
    if isinstance(into, (list, tuple)):
        for target in into:
            check(target)
    elif gpu.carrier_of(into) is None:
        _host_view(into)


def match(target: Any, value: Any, sender: str) -> list[Filling]:
    """Return what is to be written where, or say what does not fit."""
    if isinstance(target, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(target):
            count = f"{type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
            raise MisfitError(f"{sender} sent a {count}, but into is a {type(target).__name__} of {len(target)}; receive it without into")
        return [filling for pair in zip(target, value, strict=True) for filling in match(*pair, sender)]
    carrier = gpu.carrier_of(target)
    value = _as_array(value, sender)
    here, there = _shape(target if carrier else _host_view(target)), _shape(value)
    if here != there:
        raise MisfitError(f"{sender} sent {_words(there)}, but into has {_words(here)}; receive it without into")
    if carrier is None:
        return [Filling(_copy, target, value)]
    return [Filling(carrier.fill, target, value)]


def fill(fillings: Sequence[Filling]) -> None:
    """Write the values into the arrays."""
    for filling in fillings:
        filling.write(filling.target, filling.value)


def _copy(target: Any, value: Any) -> None:
    import numpy as np

    carrier = gpu.carrier_of(value)
    np.copyto(_host_view(target), value if carrier is None else carrier.to_host(value), casting="no")


def _host_view(target: Any) -> Any:
    """Return a NumPy array on the memory of what was given."""
    import numpy as np

    if isinstance(target, (bytearray, memoryview)) or hasattr(target, "__array__") or hasattr(target, "__array_interface__"):
        view = target if isinstance(target, np.ndarray) else np.asarray(target)
        if not view.flags.writeable:
            raise ValueError(f"into is read-only: {_words(_shape(view))}; give an array that can be written to")
        return view
    raise TypeError(f"into must be an array, a bytearray or a list of them, not {type(target).__name__}")


def _as_array(value: Any, sender: str) -> Any:
    import numpy as np

    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    if gpu.carrier_of(value) is not None or hasattr(value, "__array__"):
        return value
    raise MisfitError(f"{sender} sent a {type(value).__name__}, but into takes arrays; receive it without into")


def _shape(array: Any) -> tuple[str, tuple[int, ...]]:
    return str(array.dtype).removeprefix("torch."), tuple(array.shape)


def _words(shape: tuple[str, tuple[int, ...]]) -> str:
    return f"{shape[0]} of shape {shape[1]}"
