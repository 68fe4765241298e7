"""What belongs to a communicator in the library and ends with it, or before by close()."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from .batch import refuse_in_group
from .errors import CommunicatorClosedError, ForkedError

if TYPE_CHECKING:
    from .lifetime import Lifetime


class Owned(ABC):
    """A registration, a window or a reduction operator of `comm`; a context manager that closes it."""

    __slots__ = ("comm", "is_open")

    def __init__(self, comm: Lifetime) -> None:
        self.comm = comm
        self.is_open = True
        comm._things[id(self)] = self

    @abstractmethod
    def _release(self, comm: Any) -> tuple[int, str]:
        """Give it back to the library: the result and the function's name."""

    def close(self) -> None:
        """Give it back to the library; twice, after the communicator has ended, or in a forked child it is harmless."""
        if not self.is_open:
            return
        what = f"closing a {type(self).__name__}"
        refuse_in_group(what)
        try:
            code, function = self.comm._inside(what, self._released)
        except (CommunicatorClosedError, ForkedError):
            self._forget()
            return
        if code != 0:
            raise self.comm._error(code, function)

    def _released(self, handle: Any) -> tuple[int, str]:
        """Give it back and forget it, before the communicator may end in another thread."""
        found = self._release(handle)
        self._forget()
        return found

    def _forget(self) -> None:
        """It is gone, by its own close or with its communicator."""
        self.is_open = False
        self.comm._things.pop(id(self), None)

    def _require_open(self, what: str) -> None:
        if not self.is_open:
            raise CommunicatorClosedError(f"{what} was closed, or its communicator has ended; make a new one")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to a communicator of this process and cannot be pickled; make one on each side")

    def __enter__(self: Any) -> Any:
        self._require_open(f"this {type(self).__name__}")
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
