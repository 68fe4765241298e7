"""What every data-parallel training program needs: shares of the data, averaged gradients, equal parameters, agreed steps."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .gradients import average_gradients
from .normalization import batch_statistics
from .replicas import broadcast_parameters, parameter_error
from .shares import shard
from .steps import agree_on_steps

if TYPE_CHECKING:
    from .data_parallel import DataParallel as DataParallel

__all__ = [
    "DataParallel",
    "agree_on_steps",
    "average_gradients",
    "batch_statistics",
    "broadcast_parameters",
    "parameter_error",
    "shard",
]


def __getattr__(name: str) -> Any:
    """DataParallel is a torch module, so only whoever asks for it needs torch."""
    if name == "DataParallel":
        from .data_parallel import DataParallel

        return DataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
