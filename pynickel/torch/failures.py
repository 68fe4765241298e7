"""Errors on their way to callers of torch.distributed: torch's exception types, our text."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed as dist

from ..errors import NCCLError


@contextmanager
def as_torch(what: str) -> Iterator[None]:
    """Errors of the library become DistBackendError, with the original one as its cause."""
    try:
        yield
    except NCCLError as error:
        raise dist.DistBackendError(f"{what}: {error}") from error
