"""torch.distributed on pynickel: importing this registers the backend "pynickel" for cpu and cuda devices.

    import pynickel.torch
    torch.distributed.init_process_group("pynickel")

CPU tensors travel by the CPU library, CUDA tensors by NVIDIA's NCCL. Torch is imported here and nowhere else in pynickel.
"""
# SPDX-License-Identifier: Apache-2.0

from torch import distributed as _dist

from .barrier import monitored_barrier
from .group import PynickelProcessGroup, create

__all__ = ["PynickelProcessGroup", "monitored_barrier"]

if "PYNICKEL" not in _dist.Backend._plugins:
    _dist.Backend.register_backend("pynickel", create, devices=["cpu", "cuda"])
