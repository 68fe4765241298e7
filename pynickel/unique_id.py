"""The 128 bytes that one rank makes and all ranks need to come together."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._nccl import ffi, lib
from .library import get_library, load

if TYPE_CHECKING:
    from .library import Library

SIZE: int = lib.NCCL_UNIQUE_ID_BYTES


class UniqueId:
    """NCCL's unique id: made once by one rank, carried to the others by any means, good for one communicator.

    It goes through bytes(), pickle and text (`hex`, `fromhex`) unchanged. `data`: exactly 128 bytes, else ValueError.
    """

    __slots__ = ("_bytes",)

    def __init__(self, data: bytes | bytearray | memoryview | UniqueId) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview, UniqueId)):
            raise TypeError(f"a unique id is made from {SIZE} bytes, not {type(data).__name__} {data!r:.60}")
        self._bytes = bytes(data)
        if len(self._bytes) != SIZE:
            raise ValueError(f"a unique id has {SIZE} bytes, not {len(self._bytes)}")

    @classmethod
    def create(cls, library: str | os.PathLike[str] | Library | None = None) -> UniqueId:
        """A new id from the library, by default the default one; its maker must live until all ranks have joined. (ncclGetUniqueId)"""
        found = get_library() if library is None else load(library)
        made = ffi.new("ncclUniqueId *")
        found.check(lib.ncclGetUniqueId(found.table, made), "ncclGetUniqueId")
        return cls(bytes(ffi.buffer(made)))

    @classmethod
    def fromhex(cls, text: str) -> UniqueId:
        """The id that `hex` has written."""
        try:
            return cls(bytes.fromhex(text))
        except (TypeError, ValueError) as error:
            raise type(error)(f"text must be the {2 * SIZE} hexadecimal digits of a unique id, not {text!r:.60}") from None

    def hex(self) -> str:
        """The id as 256 hexadecimal digits, for an environment variable or a file."""
        return self._bytes.hex()

    def struct(self) -> Any:
        """The id as the C struct that init calls take by value."""
        made = ffi.new("ncclUniqueId *")
        ffi.memmove(made, self._bytes, SIZE)
        return made

    def __bytes__(self) -> bytes:
        return self._bytes

    def __len__(self) -> int:
        return SIZE

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, UniqueId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> tuple[type[UniqueId], tuple[bytes]]:
        return UniqueId, (self._bytes,)

    def __repr__(self) -> str:
        return f"<UniqueId {self._bytes[:8].hex()}...>"
