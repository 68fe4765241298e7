"""One interface for data-parallel training over five libraries, so that an experiment changes nothing but a name.

`open_comm(name)` gives a Comm: its rank and size, barrier, copy_model, average_gradients, comm_error, close, abort.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from importlib import import_module

from .interface import Comm

# The module of each library, imported when it is chosen.
MODULES = {"serial": "serial", "mpi": "by_mpi", "pynickel": "by_pynickel", "gloo": "by_torch", "nccl": "by_torch"}


def open_comm(name: str) -> Comm:
    """The ranks that the launcher has started, over this library."""
    if name not in MODULES:
        raise ValueError(f"comm must be one of {', '.join(MODULES)}, not {name!r}")
    comm: Comm = import_module(f".{MODULES[name]}", __name__).open_comm(name)
    return comm
