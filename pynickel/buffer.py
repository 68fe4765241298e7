"""From the objects of a call to addresses, a count and a type: the shortcuts for the usual objects, and the way for all others.

`count` is NCCL's: elements that one rank contributes, or receives. A buffer of `times` ranks holds times * count of them.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import driver
from ._nccl import lib
from ._pointer import LIMIT
from .arguments import as_int
from .enums import DTYPES, ITEMSIZE, DataType, Pairs, as_dtype, dtype_name, unsupported, width
from .errors import OverlapError
from .layout import BOTH, DEVICE, HOST, Gpu, View
from .protocols import is_a, speak
from .stream import as_stream

MOST = (1 << 60) - 1  # of a count: with eight bytes per element the bytes still have 63 bits
TYPES = tuple(DataType)  # in NCCL's order
numpy_dtypes: dict[Any, DataType] = {}  # numpy.dtype: DataType, as they are met
numpy_arrays: set[Any] = set()  # numpy.ndarray, once the caller has brought NumPy
tensors: set[Any] = set()  # torch.Tensor and torch.nn.Parameter, once the caller has brought torch
torch_dtypes: dict[Any, DataType] = {}  # without complex ones, so that among dense tensors only one of one element can be lazy
written_in_c: dict[str, Any] = {}

if lib.pn_put_reader(id(written_in_c), id(TYPES)):
    raise MemoryError("no memory for a function")

# Address, count and type of a usual array in host memory, that may be written if so asked: cdef/tensor.h.
facts: Callable[[Any, bool], tuple[int, int, DataType] | None] = written_in_c["facts"]

Element = DataType | Pairs
ELEMENTS: dict[str, Element] = {**DTYPES, **Pairs.__members__}
Located = tuple[int, int, Element, Any]
Pair = tuple[int, int, int, Element, Any]


def single(memory: str, buffer: Any, count: Any, dtype: Any, writable: bool, name: str, stream: Any = None) -> Located:
    """Address, count, type, and what keeps the memory alive. `memory` is what the library works on: HOST, DEVICE, or BOTH.

    `stream` is the caller's, which will wait for the producer of the memory where that names a stream of its own.
    """
    if count is None and dtype is None:
        if (found := usual(memory, buffer, writable)) is not None:
            return (*found, kept(buffer))
    elif type(buffer) is int and type(count) is int and type(dtype) is DataType:
        if 0 < buffer < LIMIT and 0 <= count <= MOST:
            return buffer, count, dtype, None
    view = look(buffer, name, writable, memory, stream)
    element = element_of(dtype, [(name, view)])
    number = count_of(count, element, [(name, view, 1)])
    return view.address, number, element, view.keep


def alike(memory: str, send: Any, recv: Any, count: Any, dtype: Any, stream: Any = None) -> Pair:
    """Both addresses, count, type, and what keeps the memory alive, for two buffers of one size; in place they are one."""
    return pair(memory, send, recv, count, dtype, 1, 1, 0, stream)


def pair(
    memory: str, send: Any, recv: Any, count: Any, dtype: Any, a: int, b: int, shift: int | None, stream: Any = None
) -> Pair:
    """The same for a send buffer that holds `a` ranks' parts and a receive buffer that holds `b`.

    The in-place form is that recv starts `shift` parts after send (None: there is none); any other overlap is refused.
    """
    if count is None and dtype is None:
        if (sent := usual(memory, send, False)) is not None and (received := usual(memory, recv, True)) is not None:
            s, size, element = sent
            r, other, same = received
            if same is element and size * b == other * a and size % a == 0:
                check_apart(s, r, size // a * ITEMSIZE[element], a, b, shift)
                return s, r, size // a, element, (kept(send), kept(recv))
    elif type(send) is int and type(recv) is int and type(count) is int and type(dtype) is DataType:
        if 0 < send < LIMIT and 0 < recv < LIMIT and 0 <= count <= MOST:
            check_apart(send, recv, count * ITEMSIZE[dtype], a, b, shift)
            return send, recv, count, dtype, None
    return described(memory, send, recv, count, dtype, a, b, shift, stream)


def usual(memory: str, buffer: Any, writable: bool) -> tuple[int, int, DataType] | None:
    """Address, count and type of a dense array of NumPy or tensor of torch that the library can work on, if it is a usual one."""
    if (memory is HOST or memory is BOTH) and (found := facts(buffer, writable)) is not None:
        return found
    if type(buffer) not in tensors:
        return None
    try:
        size = buffer.numel()
        if (
            (buffer.is_cpu and (memory is HOST or memory is BOTH) or on_gpu(memory, buffer))
            and buffer.is_contiguous() and (not writable or buffer.is_leaf) and (size > 1 or not buffer.is_neg())
            and (address := buffer.data_ptr())
        ):  # fmt: skip
            return address, size, torch_dtypes[buffer.dtype]
    except (RuntimeError, KeyError):  # no plain memory, another type: the long way says which
        pass
    return None


def kept(buffer: Any) -> Any:
    """What keeps the memory of a usual array: of a tensor its storage, for it may be given another."""
    return buffer.untyped_storage() if type(buffer) in tensors else buffer


def described(
    memory: str, send: Any, recv: Any, count: Any, dtype: Any, a: int, b: int, shift: int | None, stream: Any = None
) -> Pair:
    """The same for any objects, with every refusal in words."""
    sent = look(send, "send", False, memory, stream)
    received = look(recv, "recv", True, memory, stream)
    element = element_of(dtype, [("send", sent), ("recv", received)])
    number = count_of(count, element, [("send", sent, a), ("recv", received, b)])
    check_apart(sent.address, received.address, number * element.itemsize, a, b, shift)
    return sent.address, received.address, number, element, (sent.keep, received.keep)


def look(obj: Any, name: str, writable: bool, memory: str, stream: Any = None) -> View:
    """The memory of an object, by the first protocol that it speaks, of a kind that the library works on, ready for `stream`."""
    view = speak(obj, name, writable, None if memory == HOST else as_stream(stream))
    remember(obj, view)
    if not view.where:
        raise ValueError(f"{name} ({type(obj).__name__}) is {view.place}, which NCCL does not reach; pass host or CUDA memory")
    if memory == HOST and view.where == DEVICE:
        raise ValueError(
            f"{name} ({type(obj).__name__}) is {view.place}, and the loaded library works on host memory. Copy it to a NumPy "
            "array, or load NVIDIA's or AMD's library"
        )
    if memory == DEVICE and view.where == HOST and view.dtype is not None:
        driver.refuse_plain_memory(view.address, f"{name} ({type(obj).__name__})")
    if isinstance(memory, Gpu) and view.where == DEVICE and view.nbytes:
        refuse_other_gpu(view, memory, f"{name} ({type(obj).__name__})")
    if view.after is not None:
        driver.order(view.after, as_stream(stream))
    return view


def on_gpu(memory: str, tensor: Any) -> bool:
    """Whether a tensor is on the GPU that the library works on."""
    return memory is not HOST and tensor.is_cuda and (type(memory) is not Gpu or tensor.get_device() == memory.number)


def refuse_other_gpu(view: View, memory: Gpu, name: str) -> None:
    """Raise for memory of a GPU that is not the communicator's."""
    found = driver.ordinal(view.address) if view.gpu is None else view.gpu
    if found is not None and found != memory.number:
        raise ValueError(
            f"{name} is on GPU {found}, and this communicator works on GPU {memory.number}; move the buffer there, "
            "or make the communicator with device="
        )


def held(keep: Any) -> Any:
    """What a call that goes on after its return keeps: of tensors the memory, too, for they may be given another."""
    if not tensors or not isinstance(keep, tuple):
        return keep
    return keep, [obj.untyped_storage() for obj in keep if type(obj) in tensors]


def remember(obj: Any, view: View) -> None:
    """From the next time on NumPy's arrays and torch's tensors of this type take the shortcuts."""
    known = DTYPES.get(dtype_name(view.dtype))
    if is_a(obj, "numpy", "ndarray"):
        if known is not None:
            numpy_dtypes[obj.dtype] = known
        if not numpy_arrays:
            from . import _numpy

            numpy_arrays.add(_numpy.show(obj, numpy_dtypes))
    elif is_a(obj, "torch", "Tensor"):
        if not tensors:
            from . import _torch

            tensors.update(_torch.show())
        if known is not None:
            torch_dtypes[obj.dtype] = known


def element_of(dtype: Any, views: list[tuple[str, View]]) -> Element:
    """The one type that the caller and the buffers agree on."""
    given: Element | None = None
    if dtype is not None:
        given = ELEMENTS.get(dtype_name(dtype)) or as_dtype(dtype)
    known = [(name, view) for name, view in views if view.dtype is not None]
    for name, view in known:
        if given is None or view.raw not in (1, width(given)):
            own = ELEMENTS.get(dtype_name(view.dtype))
            if own is None:
                raise unsupported(dtype_name(view.dtype) or str(view.dtype), f"{name}'s dtype")
            if given is not None and own is not given:
                where = "dtype=" if name == known[0][0] else f"{known[0][0]} or dtype="
                raise ValueError(f"{name} holds {own.name}, but {where} says {given.name}; view one of them as the other's type")
            given = own
    if given is None:
        raise TypeError(f"dtype= is needed with bare addresses: one of {', '.join(DataType.__members__)}")
    return given


def count_of(count: Any, element: Element, views: list[tuple[str, View, int]]) -> int:
    """The one count that the caller and the buffers agree on; of complex numbers, the count of reals that the library is told."""
    number = None if count is None else checked_count(count)
    exact = number is None
    for name, view, times in views:
        if view.dtype is None:
            continue
        elements, rest = divmod(view.nbytes, width(element))
        if rest:
            raise ValueError(f"{name} has {view.nbytes} bytes, no whole number of {element.name} elements")
        if number is None:
            number = share(elements, times, name)
        elif elements < number * times or (exact and elements != number * times):
            needs = f"{times} ranks times {number} elements" if times > 1 else f"{number} elements"
            raise ValueError(f"{name} has {elements} elements, but {needs} are needed" + ("" if exact else " by count="))
    if number is None:
        raise TypeError("count= is needed with bare addresses: the number of elements of one rank")
    for name, view, _ in views:
        if number > 0 and view.address == 0:
            raise ValueError(f"{name} is 0 (NULL), but {number} elements are to be moved")
    return 2 * number if type(element) is Pairs else number


def share(elements: int, times: int, name: str) -> int:
    """One rank's part of a buffer that holds all ranks' parts."""
    if elements % times:
        padded = -(-elements // times) * times
        raise ValueError(f"{name} has {elements} elements, no multiple of {times} ranks; pad it to {padded}")
    return elements // times


def checked_count(count: Any) -> int:
    """A count that the caller gave."""
    number = as_int(count, "count")
    if not 0 <= number <= MOST:
        raise ValueError(f"count must be at least 0 and below 2**60, not {number}")
    return number


def check_apart(s: int, r: int, nbytes: int, a: int, b: int, shift: int | None) -> None:
    """Refuse an overlap that is not the in-place form; nbytes is one rank's part."""
    apart = r - s
    if not -b * nbytes < apart < a * nbytes or (shift is not None and apart == shift * nbytes):
        return
    form = "this operation has no in-place form" if shift is None else f"in place, recv would be at {s + shift * nbytes:#x}"
    raise OverlapError(
        f"send ({s:#x}, {a * nbytes} bytes) and recv ({r:#x}, {b * nbytes} bytes) overlap; {form}"
        + (f" or send at {r - shift * nbytes:#x}" if shift else "")
    )
