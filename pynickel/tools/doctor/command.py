"""`pynickel doctor`: every finding with its remedy; exit status 1 if one of them is a problem."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import click

from . import cuda, libraries, limits, network, packages, selftest, variables
from .finding import COLOURS, OK, PROBLEM, Finding


def examine(self_test: bool) -> list[Finding]:
    """All checks; one that fails by itself is a finding, too, and hides no other."""
    library, first = libraries.chosen()
    kind = library.kind if library else "host"
    findings = [Finding(OK, "python", f"{sys.version.split()[0]}, {sys.executable}"), first]
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("libraries", lambda: libraries.check(library)),
        ("CUDA", cuda.check),
        ("packages", packages.check),
        ("variables", lambda: variables.check(os.environ, library)),
        ("network", lambda: network.check(os.environ)),
        ("limits", lambda: limits.check(kind)),
    ]
    if self_test and library is not None:
        checks.append(("self-test", lambda: [selftest.check(library)]))
    for topic, check in checks:
        try:
            findings += check()
        except Exception as error:
            text = f"this check failed by itself: {type(error).__name__}: {error}"
            findings.append(Finding(PROBLEM, topic, text, "report it with this output"))
    return findings


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--no-self-test", is_flag=True, help="Leave out the all-reduce of two ranks.")
@click.pass_context
def command(context: click.Context, /, as_json: bool, no_self_test: bool) -> None:
    """Look at everything that decides whether NCCL works here, and say what to mend.

    Under a launcher (mpirun, srun, torchrun, `pynickel run`) all ranks look, and rank 0 prints only what differs. Ends with
    1 if there is a problem.
    """
    from ... import errors, rendezvous

    place = rendezvous.place()
    findings = examine(self_test=not no_self_test and place.nranks == 1)
    if place.nranks == 1:
        show(findings, as_json)
    else:
        by_rank = gathered(findings)
        findings = [finding for one in by_rank for finding in one]
        try:
            if place.rank == 0:
                show_ranks(by_rank, as_json)
        finally:  # together: a launcher ends all ranks soon after the first that fails, and rank 0 may not have printed all by then
            with contextlib.suppress(errors.NCCLError):
                rendezvous.exchange(b"")
    context.exit(1 if any(finding.level == PROBLEM for finding in findings) else 0)


def gathered(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings of all ranks, on every rank; they need no library in common."""
    from ... import rendezvous

    answers = rendezvous.exchange(json.dumps(findings).encode())
    return [[Finding(*map(str, one)) for one in json.loads(answer)] for answer in answers]


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """Print them, colours on a terminal only."""
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings], indent=1))
        return
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        level = click.style(f"{finding.level:7}", fg=COLOURS[finding.level])
        indent = " " * (8 + width + 2)
        click.echo(f"{level} {finding.topic:{width}}  " + finding.text.replace("\n", "\n" + indent))
        if finding.remedy and finding.level != OK:
            click.echo(f"{indent}remedy: {finding.remedy}")
    count = sum(finding.level == PROBLEM for finding in findings)
    click.echo(f"{count} problem{'' if count == 1 else 's'}")


def show_ranks(by_rank: Sequence[Sequence[Finding]], as_json: bool) -> None:
    """Print what differs between ranks."""
    from . import compare

    if as_json:
        differences = dict(compare.differing(by_rank))
        click.echo(json.dumps({"ranks": [[one._asdict() for one in findings] for findings in by_rank], "differs": differences}, indent=1))
        return
    for line in compare.report(by_rank):
        click.echo(line)
