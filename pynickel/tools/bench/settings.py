"""What the command line asks for, checked."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...enums import DataType

# nccl-tests' names of the types, in its order.
TYPES = {
    "int8": DataType.int8, "uint8": DataType.uint8, "int32": DataType.int32, "uint32": DataType.uint32, "int64": DataType.int64,
    "uint64": DataType.uint64, "half": DataType.float16, "float": DataType.float32, "double": DataType.float64,
    "bfloat16": DataType.bfloat16, "f8e4m3": DataType.float8e4m3, "f8e5m2": DataType.float8e5m2,
}  # fmt: skip
OPS = ("sum", "prod", "max", "min", "avg", "mulsum")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".webp", ".eps", ".ps")


@dataclass(frozen=True)
class Settings:
    """The options under their long names; times in seconds, sizes in bytes."""

    collective: str
    threads: int
    min_bytes: int
    max_bytes: int
    step_bytes: int
    step_factor: float  # 1: step_bytes is used
    iterations: int
    warmup: int
    aggregated: int
    cycles: int  # 0: for ever
    checks: int
    ops: tuple[str, ...]
    types: tuple[str, ...]
    root: int  # -1: all
    average: int
    blocking: int
    register: int
    timeout: float | None
    output: Path | None

    def sizes(self) -> Iterator[int]:
        """All sizes of a sweep."""
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            following = size * self.step_factor if self.step_factor > 1 else size + self.step_bytes
            size = max(int(min(following, self.max_bytes + 1)), size + 1)

    def rows(self, nranks: int) -> int:
        """Lines of the table, for one cycle; -1 as root counts for every rank."""
        from .collectives import COLLECTIVES

        found = COLLECTIVES[self.collective]
        roots = nranks if found.rooted and self.root == -1 else 1
        return len(self.types) * (len(self.ops) if found.reduces else 1) * roots * sum(1 for _ in self.sizes())


def size_of(text: str) -> int:
    """A number of bytes, with K, M or G for binary multiples; decimals allowed."""
    number, unit = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1)
    value = float(number) * unit
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{text} is no size; give bytes, or a number with K, M or G")
    return int(value)
