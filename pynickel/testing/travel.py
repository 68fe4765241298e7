"""A function and its arguments as bytes: what stands in test files travels by value, with the names of its source files."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import functools
import io
import marshal
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

sending = threading.Lock()  # cloudpickle's register of modules that go by value is one for the whole process


def sent(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments; ranks import neither the test modules that they come from nor what those need."""
    with sending, contextlib.ExitStack() as stack:
        for module in test_modules(function, *args):
            stack.enter_context(by_value(module))
        try:
            data = io.BytesIO()
            pickler()(data).dump((function, args))
        except Exception as error:
            raise TypeError(
                f"{function!r} or its arguments cannot be sent to the ranks ({type(error).__name__}: {error}); make what "
                "cannot be pickled inside the function"
            ) from error
    return data.getvalue()


@functools.cache
def pickler() -> Any:
    """cloudpickle's class, but for one point: it leaves out the source file, which tracebacks and coverage need."""
    import cloudpickle  # type: ignore[import-untyped]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ChainMap({CodeType: whole_code}, cloudpickle.Pickler.dispatch_table)

    return Pickler


def whole_code(code: CodeType) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """All of a code object; both sides are the same interpreter."""
    return marshal.loads, (marshal.dumps(code),)


def test_modules(*objects: Any) -> Iterator[ModuleType]:
    """The modules of these functions and values, as far as they are test files."""
    for name in {getattr(thing, "__module__", None) or type(thing).__module__ for thing in objects}:
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and is_test(module):
            yield module


def is_test(module: ModuleType) -> bool:
    """Whether pytest has loaded it, or it is called as test files are."""
    loader = type(getattr(module, "__loader__", None)).__module__
    name = module.__name__.rpartition(".")[2]
    return loader.startswith("_pytest.") or name.startswith("test_") or name.endswith("_test") or name == "conftest"


@contextlib.contextmanager
def by_value(module: ModuleType) -> Iterator[None]:
    """While in the body, functions and classes of the module are pickled whole and not by name."""
    import cloudpickle

    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
