"""The records as a timeline that Chrome's tracing page and Perfetto show: a track for each rank of each process."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .records import Record


def events(records: Sequence[Record]) -> dict[str, Any]:
    """The Trace Event Format: complete events, times in microseconds from the first call on."""
    begin = min((record.start for record in records), default=0.0)
    found: list[dict[str, Any]] = []
    tracks: dict[tuple[int, int], set[int]] = {}
    for record in records:
        tracks.setdefault((record.pid, record.tid), set()).add(record.rank)
        arguments = {
            "communicator": record.comm, "rank": record.rank, "call": record.call, "count": record.count, "type": record.type,
            "op": record.op, "root": record.root, "bytes": record.bytes, "path": record.path, "result": record.result,
        }  # fmt: skip
        times = {"ts": (record.start - begin) * 1e6, "dur": (record.end - record.start) * 1e6}
        found.append({"name": record.operation, "cat": "nccl", "ph": "X", **times, "pid": record.pid, "tid": record.tid, "args": arguments})
    for (pid, tid), ranks in tracks.items():
        name = f"rank {', '.join(map(str, sorted(ranks)))}"
        found.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})
    return {"traceEvents": found, "displayTimeUnit": "ns"}
