"""How ranks meet: `init()` finds out who started this process, and brings its ranks together as one communicator.

Nothing is started, and MPI is not touched, before `init` is called.
"""
# SPDX-License-Identifier: Apache-2.0

from .gathering import exchange
from .launcher import Place
from .meeting import init
from .trust import place

__all__ = ["Place", "exchange", "init", "place"]
