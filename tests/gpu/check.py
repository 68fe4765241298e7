"""Run the matrix on one or two ranks, print what became of each check, and tell by the exit status: 0 well, 1 failed, 77 no GPU here.

    bash tests/gpu/run.sh                                # NVIDIA's NCCL; two ranks share a GPU with NCCL 2.30 and later
    python tests/gpu/check.py --library host             # the same checks on the CPU library
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from gpu import matrix  # noqa: E402

import pynickel  # noqa: E402
from pynickel import search, testing  # noqa: E402
from pynickel.device import gpu_count  # noqa: E402

NO_GPU = 77  # what test drivers take for "skipped"
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}  # two ranks' kernels must fit on the GPU at the same time
SHARING_SINCE = (2, 30)


class Row(NamedTuple):
    """One check on one number of ranks."""

    ranks: int
    check: str
    status: str
    seconds: float
    text: str


def main(arguments: list[str] | None = None) -> int:
    """Look what is here, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="nvidia", help="host, nvidia, or the path of a libnccl")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], choices=[1, 2])
    parser.add_argument("--timeout", type=float, default=240, help="seconds for each number of ranks")
    options = parser.parse_args(arguments)
    kind, seen = search.visible_gpu()
    if options.library != "host" and not kind:
        print(f"{seen}; nothing was checked")
        return NO_GPU
    try:
        library = pynickel.load(options.library)
        where = "host memory" if library.kind == "host" else f"{gpu_count()} GPU(s)"
    except (pynickel.LibraryNotFoundError, pynickel.NotAvailableError) as error:
        print(f"nothing was checked: {error}")
        return 1
    print(f"{library.kind} {'.'.join(map(str, library.version))} from {library.path}; {where}; Python {sys.version.split()[0]}")
    rows: list[Row] = []
    for n in options.ranks:
        if n > 1 and library.kind != "host" and library.version < SHARING_SINCE:
            rows.append(Row(n, "all", "left out", 0, "two ranks on one GPU need NCCL 2.30 or later"))
        else:
            rows += measured(n, library.path, options.timeout, SHARED if library.kind != "host" and n > 1 else {})
    return report(rows)


def measured(n: int, library: str, timeout: float, env: dict[str, str]) -> list[Row]:
    """All checks on n ranks; a check is as good as on its worst rank."""
    begun = time.monotonic()
    ends = testing.outcomes(n, matrix.run_all, library, 0, communicator=False, timeout=timeout, library=library, env=env)
    broken = [str(end) for end in ends if not end.ok]
    if broken:
        return [Row(n, "all", "failed", time.monotonic() - begun, "\n".join(broken))]
    rows = []
    for found in zip(*(end.value for end in ends), strict=False):
        status = next((s for s in ("failed", "partly") if any(row[1] == s for row in found)), "passed")
        texts = dict.fromkeys(row[2] for row in found if row[2])
        rows.append(Row(n, found[0][0], status, max(row[3] for row in found), "\n".join(texts)))
    return rows


def report(rows: list[Row]) -> int:
    """The table, what is to say of single rows, the summary; the exit status."""
    print(f"{'ranks':>5}  {'check':<16} {'status':<9} {'s':>6}")
    for row in rows:
        print(f"{row.ranks:5}  {row.check:<16} {row.status:<9} {row.seconds:6.2f}")
    for row in rows:
        if row.text:
            print(f"\n{row.check} on {row.ranks} rank(s), {row.status}:\n{row.text.rstrip()}")
    count = {status: sum(row.status == status for row in rows) for status in ("passed", "partly", "left out", "failed")}
    print(f"\n{len(rows)} checks: " + ", ".join(f"{number} {status}" for status, number in count.items() if number))
    return 1 if count["failed"] or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
