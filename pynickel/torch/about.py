"""What torch asks a process group about itself: its names, its devices, and what it does not do."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import distributed as dist


class About(dist.ProcessGroup):
    """A process group that is its own backend for every device."""

    _name = _desc = "undefined"
    supports_splitting = supports_shrinking = supports_time_estimate = supports_coalescing = False

    def getBackendName(self) -> str:
        """The name in torch's messages."""
        return "pynickel"

    def setGroupName(self, name: str) -> None:
        """Torch gives the group its name."""
        self._name = name

    def getGroupName(self) -> str:
        """The name that torch gave it."""
        return self._name

    @property
    def group_name(self) -> str:
        """The name that torch gave it."""
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        """Torch gives the group a description."""
        self._desc = desc

    def getGroupDesc(self) -> str:
        """That description."""
        return self._desc

    @property
    def group_desc(self) -> str:
        """That description."""
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        """The kinds of devices whose tensors it takes: torch asks where it chooses a device itself, CPU first."""
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> About:
        """What serves a device."""
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether torch may ask it for memory."""
        return False
