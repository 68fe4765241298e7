"""What every operation does with its arguments: the call or its place in a group, stream, rank, operator, configuration."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from . import make
from ._nccl import ffi, lib
from .batch import Operation, name_of, open_groups
from .buffer import Element, held
from .config import CollConfig
from .deadline import host_seconds
from .ending import Ending
from .enums import Pairs, RedOp, as_op
from .errors import NotAvailableError
from .lifetime import ENDED
from .redop import PreMulSum
from .stream import PER_THREAD, as_stream

# By the call of a collective: its form that takes a CollConfig.
CONFIGURED = {
    getattr(lib, name.removesuffix("Config")): getattr(lib, name)
    for name in dir(lib)
    if name.startswith("comm_nccl") and name.endswith("Config") and hasattr(lib, name.removesuffix("Config"))
}


class Calls(Ending):
    """What operations have in common."""

    __slots__ = ()

    def _run(self, call: Callable[..., int], keep: Any, *args: Any, config: CollConfig | None = None) -> None:
        """Make the call, or queue it for this thread's open group."""
        if config is not None:
            call, args, keep = self._configured(call, args, keep, config)
        if open_groups and (queue := open_groups.get(get_ident())) is not None:
            queue.add(Operation(self, call, args, held(keep)))
        elif code := call(self._guard, *args):
            self._after(code, call, args, keep)

    def _configured(self, call: Any, args: tuple[Any, ...], keep: Any, config: CollConfig) -> tuple[Any, tuple[Any, ...], Any]:
        """The form of the call that takes a configuration."""
        if not isinstance(config, CollConfig):
            raise TypeError(f"config must be a CollConfig or None, not {config!r}")
        if call not in CONFIGURED:
            raise NotAvailableError(
                f"NCCL has no form of {name_of(call)} that takes a CollConfig; leave config= out", function=name_of(call)
            )
        configured = CONFIGURED[call]
        struct = config.struct(self.library, name_of(configured))
        return configured, (*args, struct), (held(keep), struct)

    @contextmanager
    def _deadline(self, timeout: float | None) -> Iterator[None]:
        """Another deadline for the calls in the body. A blocking communicator of NCCL has none for the call, but for its stream."""
        if timeout is None:
            yield
            return
        before, self._timeout = self._timeout, timeout
        try:
            self._tell_timeout()
            yield
        finally:
            self._timeout = before
            self._tell_timeout()

    def _tell_timeout(self) -> None:
        """The CPU library keeps deadlines by itself."""
        if self.library.kind == "host" and self._guard.state not in ENDED:
            lib.nickelCommSetTimeout(self.library.table, self._guard.comm, host_seconds(self._timeout))

    def _come(self, wait: int) -> bool:
        """Whether all others have promised to call the next collective, whatever comes, or are in it.

        `wait`: 1, promise it, and wait up to 10 ms for the others; 0, only look; -1, take the promise back. Only the CPU library
        has it, and only where threads of the ranks would share cores.
        """
        if self.library.kind != "host" or self._guard.state in ENDED:
            return False
        all_come = ffi.new("int *")
        return lib.nickelCommCome(self.library.table, self._guard.comm, wait, all_come) == lib.ncclSuccess and bool(all_come[0])

    def _stream(self, stream: Any) -> int:
        """The handle of the caller's stream."""
        if stream is None:
            return 0
        handle = as_stream(stream)
        if handle == PER_THREAD and not self._blocking:
            raise ValueError(
                "stream 2 (per thread) cannot be used with a timeout or blocking=False: a non-blocking communicator works in another thread"
            )
        return handle

    def _one_of(self, rank: Any, name: str) -> int:
        """A rank of this communicator."""
        if type(rank) is int and 0 <= rank < self._nranks:
            return rank
        return make.checked_rank(rank, self._nranks, name)

    def _op(self, op: Any, element: Element) -> int:
        """The number of a reduction for elements of that type."""
        if isinstance(element, Pairs):
            if isinstance(op, PreMulSum) or as_op(op) != RedOp.SUM:
                raise ValueError(f"op {op!r} is not for {element.name}: NCCL takes complex numbers as pairs of reals; only SUM is right so")
            return RedOp.SUM
        return op._number(self, element) if isinstance(op, PreMulSum) else as_op(op)
