"""How long collectives take on one machine: pynickel's CPU library beside Open MPI, MPICH, Intel MPI and gloo, in one run.

    python benchmarks/host_collectives.py --make-peers peers            # makes the peers' environments in that folder first
    python benchmarks/host_collectives.py --peer openmpi=PYTHON --json times.json --plot times.png

Every rank writes its whole buffers before each call (not timed), then a barrier, then one timed call whose result is checked. A
call took as long as on its slowest rank; the table has the median of many. The libraries take turns, round by round, so that what
else the machine does hits all of them, and their ranks are bound to the cores alike. A size is that of an operation's largest buffer.
A long run can be cut into several (by --ranks, --operations) with a --json each; --show of these files makes one table and picture."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import peers
import report
from backends import OPERATIONS
from report import Cell
from sessions import Session, SessionError

SIZES = "8,1K,8K,64K,1M,16M,64M"
SHORT = 1 << 16  # bytes up to which it shows by which API a call is made
UNITS = {"K": 1 << 10, "M": 1 << 20}
MOST_CALLS = 3000


def main() -> None:
    """Measure what the command line asks for or take what was measured, print the table, write the files."""
    options = parse()
    cells, machine, busy = report.from_json(options.show) if options.show else measured(options)
    report.write_table(cells, sys.stdout, machine, busy)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(cells, machine, busy), indent=1) + "\n")
    if options.plot:
        import picture

        picture.draw(cells, options.plot, machine)


def measured(options: argparse.Namespace) -> tuple[list[Cell], str, float]:
    """All figures, where they are from, and how many cores were busy before."""
    others = list(options.peer)
    if options.make_peers:
        others += peers.make(options.make_peers, [name for name in options.make if name not in {peer.name for peer in others}])
    libraries = [peers.ours(), *(peers.ours(name, path) for name, path in options.build), *others]
    cells: list[Cell] = []
    busy = round(report.busy(), 1)
    with tempfile.TemporaryDirectory() as folder:
        for nranks in options.ranks:
            cells += measure_all(libraries, nranks, options, Path(folder))
    return cells, report.machine(), busy


def measure_all(libraries: list[peers.Peer], nranks: int, options: argparse.Namespace, folder: Path) -> list[Cell]:
    """All operations and sizes with this number of ranks."""
    cells = []
    with ExitStack() as stack:
        sessions = []
        for peer in libraries:
            try:
                sessions.append(stack.enter_context(Session(peer, nranks, folder, bind=not options.free)))
            except (SessionError, OSError) as error:
                print(f"{peer.title} is left out: {error}", file=sys.stderr)
        for operation in options.operations:
            for size in options.sizes:
                found = measure(sessions, operation, size, options)
                cells += found
                if found:
                    progress(nranks, operation, size, found)
    paths = paths_of(libraries[0], cells, folder)
    for cell in cells:
        if cell.peer == libraries[0].title:
            cell.path = paths.get((cell.operation, cell.size, cell.memory), "")
    return cells


def progress(nranks: int, operation: str, size: int, found: list[Cell]) -> None:
    """A line for who waits."""
    fastest = ", ".join(f"{cell.label} {cell.median:.4g}" for cell in sorted(found, key=lambda cell: cell.median)[:3])
    print(f"{nranks} ranks, {operation}, {report.short(size)}: {fastest} us", file=sys.stderr)


def jobs(session: Session, size: int, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The ways to measure in this session: memory and API."""
    kinds = options.memory if session.peer.kind == "nickel" else ["plain"]
    for memory in kinds:
        for api in session.apis:
            if session.peer.kind != "nickel" or (api in options.apis and (size <= SHORT or api == options.apis[0])):
                yield memory, api


def measure(sessions: list[Session], operation: str, size: int, options: argparse.Namespace) -> list[Cell]:
    """One operation at one size by all libraries, in turns."""
    ways = []
    for session in list(sessions):
        count = elements(operation, size, session.nranks)
        for memory, api in jobs(session, size, options):
            job = {"operation": operation, "count": count, "memory": memory, "api": api}
            ours = session.peer.kind == "nickel"
            cell = Cell(session.nranks, operation, 4 * count, session.peer.title, session.version, memory, api, ours)
            try:
                _, seconds = session.run(**job, calls=3, warm=2)
                calls = int(max(3, min(MOST_CALLS, options.seconds / options.rounds / seconds * 5)))
                if calls > 200:  # so short that the first ones told little
                    _, seconds = session.run(**job, calls=200, warm=2)
                    calls = int(max(200, min(MOST_CALLS, options.seconds / options.rounds / seconds * 202)))
                ways.append((session, job, calls, cell))
            except SessionError as error:
                report_failure(sessions, session, error)
    for _ in range(options.rounds):
        settle(options.calm)
        for session, job, calls, cell in ways:
            if session in sessions:
                try:
                    cell.times += session.run(**job, calls=calls, warm=2)[0]
                except SessionError as error:
                    report_failure(sessions, session, error)
    cells = [cell for *_, cell in ways if cell.times]
    for cell in cells:
        cell.finish()
    return cells


def settle(seconds: float) -> None:
    """Wait at most so long until nobody else needs the cores."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and report.busy(0.1) > 0.25:
        pass


def report_failure(sessions: list[Session], session: Session, error: SessionError) -> None:
    """An operation that a library lacks leaves a hole in the table; ranks that are gone leave the run."""
    print(f"left out: {error}", file=sys.stderr)
    if error.fatal and session in sessions:
        sessions.remove(session)
        session.kill()


def elements(operation: str, size: int, nranks: int) -> int:
    """Elements of 4 bytes in the largest buffer: a whole number for each rank, where each has a part."""
    parts = nranks if operation in ("all_gather", "reduce_scatter") else 1
    return max(1, size // 4 // parts) * parts


def paths_of(peer: peers.Peer, cells: list[Cell], folder: Path) -> dict[tuple[str, int, str], str]:
    """How the CPU library moved the data: each call once more, traced."""
    wanted = {(cell.operation, cell.size, cell.memory): cell for cell in cells if cell.peer == peer.title}
    if not wanted:
        return {}
    nranks = cells[0].nranks
    trace = folder / f"trace-{nranks}"
    found = {}
    with Session(peer, nranks, folder, {"NICKEL_TRACE": str(trace)}) as session:
        for key in wanted:
            operation, size, memory = key
            before = os.path.getsize(trace)
            session.run(operation=operation, count=size // 4, memory=memory, api="methods", calls=1, warm=0)
            with trace.open() as lines:
                lines.seek(before)
                calls = [json.loads(line) for line in lines]
            mine = [call["path"] for call in calls if call["rank"] == 0]
            found[key] = mine[1]  # between two barriers
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=numbers, default="2,4", help="how many ranks (2,4)")
    parser.add_argument("--operations", type=words(OPERATIONS), default=",".join(OPERATIONS), help="which operations (all)")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help=f"bytes ({SIZES})")
    parser.add_argument("--memory", type=words(("empty", "plain")), default="empty,plain", help="of pynickel's ranks (both)")
    parser.add_argument("--apis", type=words(("methods", "raw", "plan")), default="methods,raw,plan", help="of pynickel (all)")
    parser.add_argument("--peer", type=peer, action="append", default=[], metavar="NAME=PYTHON", help="a library in its own environment")
    parser.add_argument("--make-peers", type=Path, metavar="DIR", help="make environments there for those not given, and use them")
    parser.add_argument("--make", type=words(tuple(peers.PACKAGES)), default="openmpi,mpich,impi,gloo", help="which ones (all)")
    parser.add_argument("--build", type=build, action="append", default=[], metavar="NAME=FILE", help="another build of the CPU library")
    parser.add_argument("--free", action="store_true", help="let ranks move between cores; else each is bound to one")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each cell of the table (0.2)")
    parser.add_argument("--calm", type=float, default=0, metavar="SECONDS", help="before a turn, wait at most so long for other work (0)")
    parser.add_argument("--rounds", type=int, default=4, help="turns that each library has for a cell (4)")
    parser.add_argument("--show", type=Path, action="append", metavar="FILE", help="measure nothing, take what --json of a run has written")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time against size")
    parser.add_argument("--quick", action="store_true", help="a few sizes, little time: does it work?")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.seconds, options.rounds, options.ranks = [8, 1 << 16, 1 << 20], 0.03, 1, options.ranks[:1]
    return options


def numbers(text: str) -> list[int]:
    """Whole numbers with K for 1,024 and M for 1,048,576."""
    found = []
    for word in text.split(","):
        unit = UNITS.get(word[-1:], 1)
        digits = word[:-1] if unit > 1 else word
        if not digits.isdecimal() or int(digits) < 1:
            raise argparse.ArgumentTypeError(f"{word!r} must be a positive number, with K or M if you like")
        found.append(int(digits) * unit)
    return found


def words(allowed: tuple[str, ...]) -> type:
    """A parser of words out of a list."""

    def parse_words(text: str) -> list[str]:
        found = text.split(",")
        if wrong := [word for word in found if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be one of {', '.join(allowed)}")
        return found

    return parse_words  # type: ignore[return-value]


def peer(text: str) -> peers.Peer:
    """NAME=PYTHON."""
    name, _, python = text.partition("=")
    try:
        return peers.theirs(name, python)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def build(text: str) -> tuple[str, str]:
    """NAME=FILE."""
    name, _, path = text.partition("=")
    if not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=FILE, the file a build of the CPU library")
    return name, os.path.abspath(path)


if __name__ == "__main__":
    main()
