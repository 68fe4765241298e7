"""Train the odd-or-even net with several workers, of which the parent is one: `python examples/odd_even/train.py`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import arrays
import worker
from datasets import VALIDATION, Numbers
from meeting import Meeting, telling_others
from model import initial_parameters
from network import Network
from output import Log, Output, draw
from saved import Progress, Saved, load
from settings import Settings, Unfit, arguments_parser, fresh, going_on, shaping
from training import Training

import pynickel
from pynickel import parallel

NAME = "ExampleModel"


def train(arguments: argparse.Namespace) -> None:
    """The parent: set up, train, save, draw."""
    library = pynickel.load(arguments.library)
    saved = load(arguments.resume) if arguments.resume else None
    settings = chosen(arguments, saved, library)
    progress = saved.progress if saved else Progress()
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    output = Output(arguments.quiet, arguments.debug, progress.updates, arguments.epochs * settings.updates_per_epoch)
    try:
        output.say(introduction(settings, library))
        with telling_others():
            network, meeting = start(settings, library, saved, arguments.debug)
        output.say(f"{network.parameters.size} parameters, {'from ' + arguments.resume if saved else 'fresh'}")
        validation = Numbers(settings.seed, VALIDATION)
        if saved:
            validation.state = saved.validation
        training = Training(network, meeting, output, Log(folder / f"{NAME}.log", progress), progress, validation)
        with network.comm, telling_others():
            training.run(arguments.epochs, arguments.save_every, folder / (NAME + "_epoch_{}.npz"))
            training.save(folder / f"{NAME}.npz")
            meeting.meet(worker.BREAK)
    finally:
        output.close()
    conclude(training, folder)


def chosen(arguments: argparse.Namespace, saved: Saved | None, library: pynickel.Library) -> Settings:
    """The settings: those of a saved run, or new ones."""
    if saved:
        return going_on(saved.settings, shaping(arguments), arguments.resume)
    return fresh(shaping(arguments), "float64" if library.kind == "host" else "float32")


def introduction(settings: Settings, library: pynickel.Library) -> str:
    """What the run is, in a line."""
    shared = settings.share if settings.every == 1 else f"{settings.share} every {settings.every} updates"
    return (
        f"{library.kind} library, {settings.workers} workers share {shared}; {settings.optimizer}, {settings.dtype}, "
        f"{sum(settings.shares)} samples per update, {settings.updates_per_epoch} updates per epoch, seed {settings.seed}"
    )


def start(settings: Settings, library: pynickel.Library, saved: Saved | None, debug: bool) -> tuple[Network, Meeting]:
    """Make the parent's net, fork the children, and give them all they need; worker.take_place is the other side."""
    devices = arrays.assignments(settings.workers, library)
    network = Network(arrays.make(library, settings.dtype, devices[0]), settings)
    network.take_part(settings.shares, parallel.id)
    network.arrays.write(network.parameters, initial_parameters(settings.seed))
    states = saved.states if saved else [network.state] * settings.workers
    network.state = states[0]

    meeting = Meeting(debug)
    parallel.nfork(settings.workers - 1).exec(worker.main, library.path, debug)
    meeting.give("assignments", devices)
    meeting.give("model configuration", settings)
    meeting.give("samples per update", settings.shares)
    meeting.give("parameters", *states[1:])
    unique_id = pynickel.UniqueId.create(library=library)
    if debug:
        parallel.print(f"made the unique id {bytes(unique_id).rstrip(bytes(1)).hex()}")
    meeting.give("unique id", bytes(unique_id), answered=False)
    network.connect(unique_id, parallel.id)
    return network, meeting


def conclude(training: Training, folder: Path) -> None:
    """The last line of the log and of the screen, and the picture."""
    progress = training.progress
    loss, error = (progress.losses[-1], progress.errors[-1]) if progress.losses else (float("nan"), progress.error)
    training.log.add(loss, error)
    how = f"{'stopped early' if training.finished else 'ended'} after {progress.updates} updates, {progress.epoch} epochs"
    print(f"{how}: average loss per sample {loss:.1e}, validation error {error:.0%}")
    files = f"{NAME}.npz (the model), {NAME}.log"
    try:
        draw(folder / f"{NAME}.png", progress.losses, progress.errors)
        files += f", {NAME}.png (the curves)"
    except ImportError:
        files += "; no picture, since matplotlib is not installed"
    print(f"saved in {folder}: {files}", flush=True)


def main() -> int:
    """Read the command line; the exit status is 1 if a worker was lost, 2 if the options do not fit."""
    parser = arguments_parser()
    arguments = parser.parse_args()
    try:
        try:
            train(arguments)
        finally:
            parallel.close()  # whatever happens, no child stays behind
    except (pynickel.NCCLError, parallel.ChildError, FloatingPointError, OSError) as error:
        print(f"train.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except Unfit as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
