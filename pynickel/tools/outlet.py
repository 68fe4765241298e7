"""Standard output and error that take no offence when their reader leaves early, as `head` does: what a command does goes on."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import io
import os
import sys
from typing import Any


class OutputError(Exception):
    """The output cannot be written, for another reason than that nobody reads it."""


class UnreadError(Exception):
    """Raised by a command that runs only as long as somebody reads its output."""


class Outlet(io.FileIO):
    """A descriptor; once nobody reads it any more, what is written there is left out. Another failure is raised once."""

    is_left = False

    def write(self, data: Any, /) -> int:
        """Write; all of it counts as written when the reader is gone."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            self.is_left = True
            self.leave_out()
            return memoryview(data).nbytes
        except OSError as error:
            self.leave_out()
            raise OutputError(f"the output cannot be written: {error.strerror}") from None

    def leave_out(self) -> None:
        """From now on all goes nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def is_left(stream: Any) -> bool:
    """Whether the reader of such a stream has left."""
    return bool(getattr(getattr(getattr(stream, "buffer", None), "raw", None), "is_left", False))


def forgiving() -> None:
    """Make sys.stdout and sys.stderr such outlets, if they are this process's own pipes or files."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw, through = io.BufferedWriter(Outlet(descriptor, "w", closefd=False)), stream.write_through
            fresh = io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=through)
            setattr(sys, name, fresh)
            setattr(sys, f"__{name}__", fresh)
