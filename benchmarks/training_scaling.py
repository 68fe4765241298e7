"""Wall time of the experiments of examples/ by the number of processes, for each library that runs here; the updates are the same.

`python benchmarks/training_scaling.py --updates 80 --plot FILE.png` takes eight to nine minutes on 2 cores. With --json FILE figures
are added to those in the file, which are for as many updates, so that a long measurement can be done in pieces; --report only
shows them.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TextIO

from report import machine, write_rows

ROOT = Path(__file__).resolve().parent.parent
UPDATES = 250
LIMIT = 240.0  # seconds for one start of an experiment


class Net(NamedTuple):
    """An experiment, how many samples it trains on, and how often it is started for a figure: the shorter, the more often."""

    script: str
    options: tuple[str, ...]
    samples: int
    title: str
    rounds: int
    runs: int


NETS = {
    "franke": Net("franke.py", (), 10_000, "Franke, 10,501 parameters", 4, 5),
    "vae": Net("digits_vae.py", ("--original",), 1_500, "digits VAE, 1,068,820 parameters", 1, 3),
}
COMMS = ("serial", "mpi", "pynickel", "gloo", "nccl")
Key = tuple[str, int, str, int]  # net, batch of all processes together, comm, processes
Figures = dict[Key, list[float]]


def main() -> None:
    """Measure in turns, then tell."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an interrupt does, so that nothing is left running
    options = parse()
    measured, figures = read(options.json)
    updates = options.updates or measured or UPDATES
    if measured not in (None, updates):
        raise SystemExit(f"--updates {updates}: the figures in {options.json} are for {measured} updates; take as many, or another file")
    if not options.report:
        jobs = [
            (net, batch, comm, processes)
            for net in options.nets
            for batch in options.batches
            for processes in options.processes
            for comm in options.comms
            if (comm == "serial") == (processes == 1)
        ]
        rounds = {name: options.rounds or net.rounds for name, net in NETS.items()}
        for number in range(1, max(rounds.values()) + 1):  # a disturbance of a while meets all libraries
            for job in [job for job in jobs if number <= rounds[job[0]]]:
                seconds = measure(job, updates, options.runs or NETS[job[0]].runs)
                figures.setdefault(job, []).extend(seconds)
                text = ", ".join(f"{second:.3f}" for second in seconds)
                print(f"round {number}/{rounds[job[0]]}, {job[0]}, batch {job[1]}, {job[3]} x {job[2]}: {text} s", file=sys.stderr)
                write(options.json, updates, figures)
    tell(figures, updates, sys.stdout)
    if options.plot:
        import training_picture

        training_picture.draw(figures, {name: net.title for name, net in NETS.items()}, options.plot)


def measure(job: Key, updates: int, runs: int) -> list[float]:
    """Start the experiment with its launcher; the seconds of its runs, scaled to exactly so many updates."""
    name, batch, comm, processes = job
    net = NETS[name]
    epochs = max(1, round(updates / (net.samples // batch)))
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, str(ROOT / "examples" / net.script), *net.options, "--comm", comm, "--batch", str(batch)]
        program += ["--epochs", str(epochs), "--runs", str(runs), "--no-pictures", "--output", folder]
        run([*launcher(comm, processes), *program])
        (found,) = Path(folder).rglob("result.json")
        result = json.loads(found.read_text())
    if result["comm_error"] != 0.0 or result["processes"] != processes:
        raise SystemExit(f"{job}: comm_error {result['comm_error']}, {result['processes']} processes; the figures would mean nothing")
    return [second / result["updates"] * updates for second in result["seconds"]]


def launcher(comm: str, processes: int) -> list[str]:
    """What starts the processes: mpiexec for MPI, pynickel run for the others."""
    if processes == 1:
        return []
    if comm == "mpi":
        return [str(Path(sys.executable).with_name("mpiexec")), "--oversubscribe", "--bind-to", "none", "-n", str(processes)]
    return [sys.executable, "-m", "pynickel", "run", "-n", str(processes)]


def run(command: Sequence[str]) -> None:
    """A command with a deadline; nothing of it stays."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):  # launchers end their ranks when they are asked
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(5)
        if code != 0:
            log.seek(0)
            how = "did not end in time" if code is None else f"ended with status {code}"
            raise SystemExit(f"{' '.join(command)} {how}:\n{log.read().decode(errors='replace')}")


def tell(figures: Figures, updates: int, out: TextIO) -> None:
    """The table: median, mean and standard deviation, and how many times as fast as one process."""
    rows = [["net", "batch", "processes", "library", "median s", "mean +- sd", "runs", "against 1 process", "against pynickel"]]
    for net, batch, comm, processes in sorted(figures, key=lambda key: (key[0], key[1], key[3], key[2])):
        seconds = figures[net, batch, comm, processes]
        middle = statistics.median(seconds)
        spread = statistics.stdev(seconds) if len(seconds) > 1 else 0.0
        alone, ours = (figures.get(key) for key in ((net, batch, "serial", 1), (net, batch, "pynickel", processes)))
        rows.append([
            net, str(batch), str(processes), comm, f"{middle:.3f}", f"{statistics.mean(seconds):.3f} +- {spread:.3f}", str(len(seconds)),
            f"x {statistics.median(alone) / middle:.2f}" if alone else "-",
            f"x {middle / statistics.median(ours):.2f}" if ours and comm != "pynickel" else "-",
        ])  # fmt: skip
    write_rows(rows, out)
    out.write(f"\nseconds for {updates} updates; " + "; ".join(f"{name}: {net.title}" for name, net in NETS.items()) + f"\n{machine()}\n")
    for line in judged(figures):
        out.write(line + "\n")


def judged(figures: Figures) -> list[str]:
    """Who is the fastest with several processes; and whether several are worth while at all."""
    middle = {key: statistics.median(seconds) for key, seconds in figures.items()}
    lines = []
    for net, batch, processes in sorted({(net, batch, processes) for net, batch, _, processes in middle if processes > 1}):
        first, *others = sorted((middle[key], comm) for comm in COMMS if (key := (net, batch, comm, processes)) in middle)
        rest = ", ".join(f"{comm} takes x {seconds / first[0]:.2f}" for seconds, comm in others)
        lines.append(f"{net}, batch {batch}, {processes} processes: {first[1]} is the fastest{': ' if rest else ''}{rest}")
    for net, batch in sorted({key[:2] for key in middle if key[3] > 1 and (key[0], key[1], "serial", 1) in middle}):
        seconds, processes, comm = min((middle[key], key[3], key[2]) for key in middle if key[:2] == (net, batch) and key[3] > 1)
        gain = middle[net, batch, "serial", 1] / seconds
        verdict = f"more processes {'win' if gain > 1 else 'lose'}"
        lines.append(f"{net}, batch {batch}: {verdict}, at best x {gain:.2f} with {processes} over {comm} against one process")
    return lines


def read(path: Path | None) -> tuple[int | None, Figures]:
    """What was measured before, and for how many updates; None: nothing."""
    if path is None or not path.exists():
        return None, {}
    kept = json.loads(path.read_text())
    return kept["updates"], {(net, batch, comm, processes): seconds for net, batch, comm, processes, seconds in kept["figures"]}


def write(path: Path | None, updates: int, figures: Figures) -> None:
    """Keep what there is so far."""
    if path is not None:
        kept = {"updates": updates, "figures": [[*key, seconds] for key, seconds in figures.items()]}
        path.write_text(json.dumps(kept, indent=0) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    here = [comm for comm in COMMS if comm != "nccl" and (comm != "mpi" or find_spec("mpi4py"))]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nets", type=words(NETS), default=list(NETS), help="which experiments (all)")
    parser.add_argument("--comms", type=words(COMMS), default=here, help=f"which libraries ({','.join(here)})")
    parser.add_argument("--processes", type=numbers, default=[1, 2, 4], help="how many (1,2,4)")
    parser.add_argument("--batches", type=numbers, default=[32, 128], help="samples of all processes together in an update (32,128)")
    parser.add_argument("--updates", type=positive, help=f"to which all times are scaled (those of --json FILE, else {UPDATES})")
    parser.add_argument("--runs", type=positive, help=f"timed runs of each start ({each('runs')})")
    parser.add_argument("--rounds", type=positive, help=f"starts of each ({each('rounds')})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add all figures to these")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them")
    parser.add_argument("--report", action="store_true", help="measure nothing; show what is in --json FILE")
    options = parser.parse_args()
    most = min(NETS[name].samples for name in options.nets)
    if max(options.batches) > most or min(options.batches) < max(options.processes):
        parser.error(f"--batches must be from {max(options.processes)}, the processes, to {most}, the samples")
    return options


def each(field: str) -> str:
    """What the nets have there, for the help."""
    return ", ".join(f"{getattr(net, field)} for {name}" for name, net in NETS.items())


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive number")
    return int(text)


def numbers(text: str) -> list[int]:
    """Positive numbers."""
    return [positive(word) for word in text.split(",")]


def words(allowed: Collection[str]) -> type:
    """A parser of words out of a list."""

    def parse_words(text: str) -> list[str]:
        found = text.split(",")
        if wrong := [word for word in found if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be one of {', '.join(allowed)}")
        return found

    return parse_words  # type: ignore[return-value]


if __name__ == "__main__":
    main()
