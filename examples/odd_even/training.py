"""The parent's part: epochs of updates, validation, the early stop, interim models."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import isfinite
from pathlib import Path

from datasets import Numbers
from evaluate import error_rate
from meeting import Meeting
from network import Network, Statistics
from output import Log, Output
from saved import Progress, Saved, average, save
from settings import GOOD_ERROR, GOOD_VALIDATIONS, VALIDATE_EVERY, VALIDATION_SAMPLES
from worker import CONTINUE, SAVE

from pynickel import parallel


class Training:
    """A run from where `progress` stands to its end. The parent works along, as worker 0."""

    def __init__(self, network: Network, meeting: Meeting, output: Output, log: Log, progress: Progress, validation: Numbers) -> None:
        self.network, self.meeting, self.output, self.log = network, meeting, output, log
        self.progress, self.validation = progress, validation

    @property
    def finished(self) -> bool:
        """Whether there have been enough good validations."""
        return self.progress.good >= GOOD_VALIDATIONS

    def run(self, epochs: int, save_every: int, interim: Path) -> None:
        """Train to this epoch or to the early stop; `interim` is the name of interim models, with {} for the epoch."""
        while self.progress.epoch < epochs and not self.finished:
            self.epoch()
            if self.progress.epoch % save_every == 0:
                path = interim.with_name(interim.name.format(self.progress.epoch))
                self.save(path)
                self.output.detail(f"saved {path}")

    def epoch(self) -> None:
        """One epoch; the early stop may cut it short."""
        progress, count = self.progress, self.network.settings.updates_per_epoch
        number = progress.epoch + 1
        self.output.detail(f"epoch {number}")
        total = Statistics()
        errors: list[float] = []
        for update in range(1, count + 1):
            statistics = self.update()
            total = total.plus(statistics)
            if progress.updates % VALIDATE_EVERY == 0:
                errors.append(self.validate())
            loss = statistics.loss / statistics.samples
            self.output.detail(f"epoch {number} update {update}/{count} ({progress.updates}): loss {loss:.4e}, {self.network.norms()}")
            self.output.advance(loss, progress.error)
            if self.finished:
                break
        loss, error = total.loss / total.samples, sum(errors) / len(errors) if errors else progress.error
        progress.epoch = number
        progress.losses.append(loss)
        progress.errors.append(error)
        self.log.add(loss, error)
        self.output.detail(
            f"epoch {number}: average loss per sample {loss:.2f}, average validation error {error:.0%}; "
            f"drawing {total.load_seconds:.4f} s, computing {total.compute_seconds:.4f} s"
        )
        if not isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} after {progress.updates} updates; give a smaller --rate")

    def update(self) -> Statistics:
        """One update of all workers; returns what they did together."""
        self.meeting.meet(CONTINUE)
        statistics = self.network.update(self.meeting.meet)
        if self.meeting.debug:
            parallel.print(f"update {self.network.updates}: {self.network.all_norms()}")
        self.meeting.meet("statistics")
        for other in parallel.children.receive().values():
            statistics = statistics.plus(other)
        self.progress.updates += 1
        return statistics

    def validate(self) -> float:
        """The error on fresh numbers; counts the good ones."""
        error = error_rate(self.network.model, self.network.inputs, self.validation.draw(VALIDATION_SAMPLES))
        self.progress.error = error
        self.progress.good += error <= GOOD_ERROR
        return error

    def save(self, path: Path) -> None:
        """Write all workers' states to a file."""
        self.meeting.meet(SAVE)
        states = [self.network.state, *parallel.children.receive().values()]
        settings = self.network.settings
        parameters = average(states, settings.shares)
        save(path, Saved(parameters, settings.as_dict(), self.progress, states, self.validation.state))
