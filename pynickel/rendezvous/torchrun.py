"""torchrun, and whatever else sets RANK and WORLD_SIZE: `pynickel run`, Kubernetes, a shell; torchrun's own store carries the rows."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib.util
import time
from datetime import timedelta
from typing import Any

from ..errors import RendezvousError
from .launcher import Environment, Launcher

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
RESTARTS, RUN = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"
_VARIABLES = (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), (ADDRESS, PORT, RESTARTS, RUN))
TORCHRUN = Launcher("torchrun", *_VARIABLES)
ENV = Launcher("env", *_VARIABLES)
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_WAIT = 0.001, 0.02, 3600.0


def started_here(env: Environment) -> bool:
    """Whether torchrun itself has set the variables."""
    return RUN in env


def agent_has_port(env: Environment) -> bool:
    """Whether torchrun's agent listens on MASTER_PORT with a store of its own, so that no rank can."""
    return env.get(AGENT_STORE, "").lower() == "true"


def torch_is_there() -> bool:
    """Whether torch can be imported; it is not imported to find out."""
    return importlib.util.find_spec("torch") is not None


class AgentLog:
    """The rows of one rendezvous in the store of torchrun's agent: a counter gives each its number."""

    silence = "torchrun's store does not answer"
    note = ""

    def __init__(self, env: Environment, turn: int, until: float) -> None:
        host, port = env[ADDRESS], int(env[PORT])
        left = min(max(until - time.monotonic(), 1.0), _LONGEST_WAIT)
        try:
            from torch import distributed

            self._store: Any = distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=left))
        except Exception as error:  # torch raises classes of its own, by version
            raise RendezvousError(f"torchrun's store at {host}:{port} cannot be reached: {error}") from error
        self._prefix = f"pynickel/{env.get(RESTARTS, '0')}/{turn}/"
        self._rows: list[bytes] = []

    def append(self, row: bytes) -> None:
        """Add a row that all ranks will see at the same place."""
        index = self._store.add(self._prefix + "rows", 1)
        self._store.set(f"{self._prefix}{index}", row)

    def wait(self, known: int, until: float) -> list[bytes]:
        """All rows, once there are more than `known`, or at time.monotonic() `until`."""
        pause = _FIRST_PAUSE
        while True:
            while self._store.check([f"{self._prefix}{len(self._rows) + 1}"]):
                self._rows.append(bytes(self._store.get(f"{self._prefix}{len(self._rows) + 1}")))
            if len(self._rows) > known or time.monotonic() >= until:
                return list(self._rows)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self, expected: int, until: float) -> None:
        """Nothing to do: the agent keeps its store for those who come later."""
        del self._store
