"""`pynickel trace FILE`: a timeline for Chrome's tracing page or Perfetto, and a summary."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from . import records, summary, timeline
from .records import Record
from .summary import Line


@click.command("trace")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where the timeline goes. [FILE.timeline.json]")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(file: Path, output: Path | None, as_json: bool) -> None:
    """Turn what NICKEL_TRACE=FILE recorded into a timeline, and say where the time went and where ranks differ.

    Ends with 1 if ranks differ in a call.
    """
    place = output or file.with_name(file.name + ".timeline.json")
    if place.exists() and place.samefile(file):
        raise click.ClickException(f"-o {place} is the trace itself, which would be lost; choose another place")
    found, bad = records.read(file)
    if not found:
        raise click.ClickException(f"{file} holds no record; run the program with NICKEL_TRACE={file} on the CPU library")
    try:
        place.write_text(json.dumps(timeline.events(found)) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"the timeline cannot be written to {place}: {error.strerror}; choose another place with -o") from None
    differences = summary.first_difference(found)
    if as_json:
        click.echo(json.dumps(document(found, bad, differences, place), indent=1))
    else:
        show(found, bad, differences, place)
    if differences:
        raise SystemExit(1)


def show(found: list[Record], bad: list[int], differences: list[Any], place: Path) -> None:
    """Print the summary."""
    processes, comms = len({record.pid for record in found}), len({record.comm for record in found})
    span = max(record.end for record in found) - found[0].start
    click.echo(f"{len(found)} calls in {span:.6f} s, {processes} processes, {comms} communicators; timeline: {place}")
    if bad:
        click.echo(f"left out, because they are no records: lines {', '.join(map(str, bad[:10]))}{' ...' if len(bad) > 10 else ''}")
    click.echo(
        f"{'operation':20} {'calls':>8} {'bytes':>14} {'time (s)':>10} {'longest (us)':>13} {'waiting (s)':>12} {'failed':>7}  slowest rank"
    )
    for line in summary.lines(found):
        click.echo(
            f"{line.operation:20} {line.calls:>8} {line.bytes:>14} {line.seconds:>10.6f} {line.longest * 1e6:>13.1f} {line.waited:>12.6f} "
            f"{line.failed:>7}  {slowest(line)}"
        )
    for comm, call, together, missing in differences:
        click.echo(f"\ncommunicator {comm}: ranks differ first in call {call}:")
        for record in together:
            click.echo(f"  rank {record.rank}: {record.operation} of {record.count} {record.type}, op {record.op}, root {record.root}")
        for rank in missing:
            click.echo(f"  rank {rank}: no such call")


def slowest(line: Line) -> str:
    """On whom the others waited."""
    rank = line.slowest
    return "" if rank is None else f"{rank}, last in {line.late[rank]} of {sum(line.late.values())}, {line.late_seconds[rank]:.6f} s"


def document(found: list[Record], bad: list[int], differences: list[Any], place: Path) -> dict[str, Any]:
    """The summary as JSON."""
    operations = [
        {
            "operation": line.operation, "calls": line.calls, "bytes": line.bytes, "seconds": line.seconds, "longest": line.longest,
            "waiting": line.waited, "failed": line.failed, "slowest_rank": line.slowest,
        }
        for line in summary.lines(found)
    ]  # fmt: skip
    differ = [
        {"communicator": comm, "call": call, "calls": {record.rank: list(record.what) for record in together}, "missing": missing}
        for comm, call, together, missing in differences
    ]
    return {"timeline": str(place), "bad_lines": bad, "operations": operations, "differences": differ}
