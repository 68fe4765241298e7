"""A run as rank 0 shows it: the table or the JSON, the peers beside it, the files."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from .. import outlet
from . import compare, output, start
from .options import INTERNAL, WRONG
from .progress import Bar
from .settings import Settings
from .sweep import Row
from .table import Summary, heading, line

PEER_LIMIT = 300.0  # seconds for all sizes of a peer


class Report:
    """What rank 0 has heard of a run."""

    def __init__(self, asked: Settings, as_json: bool, terminal: str | None) -> None:
        self.asked = self.settings = asked
        self.as_json, self.terminal = as_json, terminal
        self.summary = Summary()
        self.rows: list[Row] = []
        self.devices: list[dict[str, Any]] = []
        self.version, self.nranks = "", 0
        self.began = now()
        self.bar: Bar | None = None

    def say(self, text: str, err: bool = False) -> None:
        """Text for people; where JSON is printed, beside it."""
        click.echo(text, err=err or self.as_json)

    def begin(self, comm: Any, devices: list[dict[str, Any]], settings: Settings) -> Callable[[Row], None]:
        """All ranks are there."""
        self.settings, self.devices, self.nranks = settings, devices, comm.nranks
        self.version = f"{comm.library.kind} library {'.'.join(map(str, comm.library.version))}, {comm.library.path}"
        if not self.as_json:
            click.echo(heading(settings, [start.device_line(device) for device in devices], self.version, self.asked.max_bytes))
        self.bar = Bar(self.terminal, settings.collective, settings.rows(comm.nranks) * settings.cycles)
        return self.take

    def take(self, row: Row) -> None:
        """A row has been measured."""
        self.summary.add(row)
        if self.settings.cycles:
            self.rows.append(row)
        elif outlet.is_left(sys.stdout):
            raise outlet.UnreadError  # for ever means as long as somebody reads it
        if not self.as_json:
            click.echo(line(row))
        if self.bar is not None:
            self.bar.step()

    def close(self) -> None:
        """Nothing of the bar stays."""
        if self.bar is not None:
            self.bar.close()

    def document(self) -> dict[str, Any]:
        """The run as JSON."""
        return output.document(self.settings, self.rows, self.summary, self.devices, self.version, (self.began, now()), "")


def measure(settings: Settings, library: str | None, plot: Path | None, peers: list[str], as_json: bool, terminal: str | None) -> int:
    """This process's ranks; where rank 0 is, the table and the files. Returns the exit status."""
    report = Report(settings, as_json, terminal)
    try:
        here = start.run(settings, library, report.begin)
    finally:
        report.close()
    if not here:
        return 0  # what was wrong on any rank, rank 0 has counted
    if not as_json:
        click.echo(report.summary.footer(settings.collective))
    status = WRONG if report.summary.wrong else 0
    others: dict[str, tuple[str, dict[int, float]]] = {}
    for peer in peers:
        try:
            others[peer] = compare.measure(peer, report.nranks, report.settings, PEER_LIMIT)
        except compare.PeerError as error:
            report.say(f"# {error}", err=True)
            status = status or INTERNAL
    if others:
        report.say(compare.table(settings.collective, report.rows, others))
    if not written(report, plot, {name: times for name, (_, times) in others.items()}):
        status = status or INTERNAL
    return status


def written(report: Report, plot: Path | None, others: dict[str, dict[int, float]]) -> bool:
    """Put the JSON and the picture where they are wanted; False if one cannot be written."""
    content = report.document()
    if report.as_json:
        click.echo(output.text_of(content), nl=False)
    try:
        if report.settings.output:
            report.say(f"# written: {output.write(report.settings.output, content)}")
        if plot:
            from .plot import draw

            draw(plot, f"{report.settings.collective}, {report.nranks} ranks", report.rows, others)
    except OSError as error:
        report.say(f"# {error.filename} cannot be written: {error.strerror}", err=True)
        return False
    return True


def now() -> str:
    """The time, for the file."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
