"""Errors on their way to callers of torch.distributed: torch's exception types, our text."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from types import TracebackType

from torch import distributed as dist

from ..errors import NCCLError


class as_torch:  # read as a statement; a class, because a generator would cost more than a small operation
    """Errors of the library become DistBackendError, with the original one as its cause."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, NCCLError):
            raise dist.DistBackendError(f"{self.what}: {error}") from error
