"""`pynickel mps start|stop|status|check|env|run|control`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from . import control, daemon, places, status, use
from .places import Group, MpsError


@click.group("mps")
def command() -> None:
    """Run NVIDIA's Multi-Process Service, by which several processes share a GPU.

    Without --gpus a command means all GPUs and CUDA's default directories, or those of CUDA_MPS_PIPE_DIRECTORY and
    CUDA_MPS_LOG_DIRECTORY; a group of GPUs has a daemon and directories of its own.
    """


def with_group(function: Callable[..., None]) -> Callable[..., None]:
    """The options that choose a group; errors become one sentence and exit status 1."""

    @click.option("--gpus", help="Numbers or UUIDs, comma separated. [all]")
    @click.option("--pipes", help="Directory for the daemon's pipes.")
    @click.option("--logs", help="Directory for its logs.")
    @wraps(function)
    def wrapped(gpus: str | None, pipes: str | None, logs: str | None, **given: Any) -> None:
        try:
            asked = bool(gpus or pipes or os.environ.get(places.PIPE_VARIABLE))
            function(group=places.group(gpus, pipes, logs), asked=asked, **given)
        except MpsError as error:
            raise click.ClickException(str(error)) from None
        except use.SignalledError as error:
            click.echo(f"Error: {error}; all is as before", err=True)
            raise SystemExit(error.status) from None

    return wrapped


@command.command("start")
@with_group
@click.option("--exclusive/--no-exclusive", default=True, help="Set exclusive-process compute mode, as NVIDIA advises (needs root). [yes]")
@click.option("--cpu", type=click.IntRange(0), help="Pin the daemon to this core. [not pinned]")
@click.option("--shared", is_flag=True, help="Let other users reach the daemon; they are served one user at a time.")
def start(group: Group, asked: bool, exclusive: bool, cpu: int | None, shared: bool) -> None:
    """Start the daemon of a group, unless it runs."""
    with use.Signals():
        said = daemon.start(group, exclusive=exclusive, cpu=cpu, shared=shared)
    for line in said:
        click.echo(line)


@command.command("stop")
@with_group
@click.option("--force", is_flag=True, help="End a daemon that does not answer, and servers that hold memory without clients.")
@click.option("--keep-logs", is_flag=True, help="Leave the logs where they are.")
def stop(group: Group, asked: bool, force: bool, keep_logs: bool) -> None:
    """End the daemon and put back the compute modes of before; harmless when nothing runs."""
    for line in daemon.stop(group, force=force, keep_logs=keep_logs):
        click.echo(line)


@command.command("status")
@with_group
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(group: Group, asked: bool, as_json: bool) -> None:
    """Show servers, clients, users, states and the end of both logs, of one group or of all that run.

    Ends with 1 if none runs, or one does not answer.
    """
    groups = [group] if asked else places.running() or [group]
    found = [status.look(one) for one in groups]
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        for one in found:
            click.echo("\n".join(status.lines(one)))
    if all(one["daemon"] is None for one in found) or any(one["problem"] for one in found):
        raise SystemExit(1)


@command.command("check")
@with_group
def check(group: Group, asked: bool) -> None:
    """Open, count and select each device as a client would. Ends with 1 if that fails."""
    fine, text = use.check(use.running(asked, group))
    click.echo(text)
    if not fine:
        raise SystemExit(1)


@command.command("env")
@with_group
def environment(group: Group, asked: bool) -> None:
    """Print export lines for clients: eval "$(pynickel mps env)"."""
    click.echo(use.for_shell(use.running(asked, group)))


@command.command("run", context_settings={"ignore_unknown_options": True})
@with_group
@click.option("--exclusive/--no-exclusive", default=True, help="As for start. [yes]")
@click.option("--cpu", type=click.IntRange(0), help="As for start.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def run(group: Group, asked: bool, exclusive: bool, cpu: int | None, words: tuple[str, ...]) -> None:
    """Start the daemon, run a command as its client, and stop the daemon whatever happens; one that ran before goes on running."""
    ran = places.daemon(group.pipes) is not None
    with use.Signals() as signals:
        for line in daemon.start(group, exclusive=exclusive, cpu=cpu, shared=False):
            click.echo(line, err=True)
        try:
            code = use.run(group, words, signals)
        finally:
            for line in [] if ran else daemon.stop(group, force=True, keep_logs=False):
                click.echo(line, err=True)
    raise SystemExit(code)


@command.command("control", context_settings={"ignore_unknown_options": True})
@with_group
@click.option("--deadline", type=click.FloatRange(0, min_open=True), default=control.DEADLINE, help="Seconds to wait for the answer. [10]")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- WORDS...")
def pass_on(group: Group, asked: bool, deadline: float, words: tuple[str, ...]) -> None:
    """Give a command of the control program to the daemon, and print its answer."""
    chosen = use.running(asked, group)
    if places.daemon(chosen.pipes) is None:
        raise MpsError(f"no daemon of {chosen.title} runs in {chosen.pipes}; pynickel mps start begins one")
    if any("\n" in word for word in words):
        raise MpsError("a control command is one line")
    click.echo(control.ask(chosen, " ".join(words), deadline))
