"""The exceptions: one class per result of NCCL, and finer ones where the CPU library or Python knows more."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any


class NCCLError(Exception):
    """A call of the library failed. The text tells everything that is known; the attributes hold the parts.

    `code` is NCCL's number (None where the library was not entered), `function` the C function, `library_text` the
    library's text for the code, `last_error` its last warning, `rank`, `nranks` and `device` those of the
    communicator, `library_path` and `library_version` the library, `causes` what is often the reason, `operation` the
    index of the operation in its group or plan.
    """

    code: int | None = None
    function: str = ""
    library_text: str = ""
    last_error: str = ""
    rank: int | None = None
    nranks: int | None = None
    device: int | None = None
    library_path: str = ""
    library_version: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()
    operation: int | None = None

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[NCCLError], args: tuple[Any, ...], details: dict[str, Any]) -> NCCLError:
    """The same error in another process: the built-in bases would drop the details."""
    return kind(*args, **details)


class CudaError(NCCLError):
    """NCCL's result 1: a CUDA call inside the library failed."""


class NCCLSystemError(NCCLError, OSError):
    """NCCL's result 2: a call of the operating system failed."""


class InternalError(NCCLError):
    """NCCL's result 3: a fault inside the library, or damaged memory."""


class InvalidArgumentError(NCCLError, ValueError):
    """NCCL's result 4: the library refused an argument."""


class InvalidUsageError(NCCLError, RuntimeError):
    """NCCL's result 5: the call is not allowed now."""


class RemoteError(NCCLError, ConnectionError):
    """NCCL's result 6: a peer died or left; `rank` is the peer, `pid` its process."""

    pid: int | None = None


class WaitTimeoutError(NCCLError, TimeoutError):
    """A deadline passed (NCCL's result 8); `missing` lists the ranks that did not come, where they are known."""

    missing: tuple[int, ...] = ()


class CollectiveMismatchError(InvalidUsageError):
    """The ranks' calls do not fit together; the text has a table of them, and the communicator can be used again."""


class DeadlockError(InvalidUsageError):
    """Ranks wait for each other; the text names the cycle."""


class CommunicatorClosedError(InvalidUsageError):
    """The communicator has been closed, finalized or aborted, or has failed before."""


class AbortedError(InvalidUsageError):
    """The call was ended by abort() from another thread."""


class ForkedError(InvalidUsageError):
    """The communicator belongs to the parent of this forked process."""


class BusyError(InvalidUsageError):
    """Another thread is using the communicator, or it is not ready yet."""


class RendezvousError(NCCLError, ConnectionError):
    """The ranks did not come together as one communicator; the text says who said what."""


class LauncherMismatchError(RendezvousError):
    """The launcher that started the processes and the one that was asked disagree about their number."""


class NotAvailableError(NCCLError, NotImplementedError):
    """The loaded library does not have this function or option; the text says which version has it."""


class LibraryNotFoundError(NCCLError, ImportError):
    """No usable library; the text lists every place that was tried with the loader's own words."""


class UnevenBatchesError(NCCLError, ValueError):
    """The ranks have different numbers of batches; `batches` lists them by rank."""

    batches: tuple[int, ...] | list[int] = ()


class NonContiguousError(NCCLError, ValueError):
    """The elements of an array do not lie side by side in memory; nothing is copied behind your back."""


class OverlapError(NCCLError, ValueError):
    """Send and receive buffers overlap in a way that is not the in-place form."""
