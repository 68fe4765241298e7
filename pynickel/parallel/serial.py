"""Objects to message parts and back: pickle protocol 5, large buffers beside the pickle instead of inside it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import io
import linecache
import marshal
import pickle
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from pynickel.parallel import gpu

_INLINE = 4096  # bytes; below this a part of its own costs more than the copy it saves
_FEW = 16  # items of a collection that are looked at, each of which costs something
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})


def dump(value: object) -> list[bytes | memoryview]:
    """Return the parts of an object. The buffers among them are the object's own memory, not copies.

    Functions and classes of the main program travel by value, those of other modules by name.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _INLINE:
            return True
        buffers.append(view)
        return False

    pickled = io.BytesIO()
    kind = pickle.Pickler if _is_plain(value) else _pickler()
    kind(pickled, protocol=5, buffer_callback=keep).dump(value)
    # Not getbuffer(): collected as garbage, a BytesIO with a view of it complains on stderr.
    return [memoryview(pickled.getvalue()), *buffers]


def _is_plain(value: Any, depth: int = 3) -> bool:
    """Whether pickle itself does, which is several times faster: numbers, texts, NumPy arrays, and small collections of these."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is list or kind is tuple:
        return depth > 0 and len(value) <= _FEW and all(_is_plain(item, depth - 1) for item in value)
    if kind is dict:
        return depth > 0 and len(value) <= _FEW and all(type(key) in _SCALARS and _is_plain(item, depth - 1) for key, item in value.items())
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy" and not value.dtype.hasobject


@functools.cache
def _pickler() -> Any:
    """Return cloudpickle's class, changed in two points; loaded when first needed."""
    import cloudpickle  # type: ignore[import-untyped]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ChainMap({CodeType: _whole_code}, cloudpickle.Pickler.dispatch_table)

        def reducer_override(self, value: Any) -> Any:
            carrier = gpu.carrier_of(value)
            return super().reducer_override(value) if carrier is None else carrier.reduce(value)

    return Pickler


def _whole_code(code: CodeType) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Keep the name of the source file, which cloudpickle leaves out: a child's traceback shall show the lines."""
    return marshal.loads, (marshal.dumps(code),)


def load(parts: Sequence[bytearray]) -> Any:
    """Return the object; its arrays use the memory of the parts and can be written to."""
    return pickle.loads(parts[0], buffers=parts[1:])


def dump_work(work: Callable[..., object] | str, arguments: tuple[object, ...]) -> list[bytes | memoryview]:
    """Return the parts of a function or of a program text with its arguments; a wrong text is refused here."""
    if isinstance(work, str):
        compile(work, "<source given to exec>", "exec")
    elif not callable(work):
        raise TypeError(f"exec needs a function or a string of Python source, not {type(work).__name__}")
    return dump((work, arguments))


def run_work(parts: Sequence[bytearray]) -> None:
    """Call the function with its arguments, or run the text with them as `args`."""
    work, arguments = load(parts)
    if not isinstance(work, str):
        work(*arguments)
        return
    name = "<source given to exec>"
    linecache.cache[name] = (len(work), None, work.splitlines(keepends=True), name)  # so that tracebacks show the lines
    exec(compile(work, name, "exec"), {"__name__": "__main__", "args": arguments})
