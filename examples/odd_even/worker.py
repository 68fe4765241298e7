"""What a child does: take its place from the parent, piece by piece, then update whenever the parent says so."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

import arrays
from meeting import Meeting, WorkerLost, last_words
from network import Network

import pynickel
from pynickel import parallel

SAVE, CONTINUE, BREAK = "save", "continue", "break"  # what the parent says at the beginning of each round


def main(library_path: str, debug: bool) -> None:
    """Worker k: a fresh process, which ends when the parent says so or when another worker is lost."""
    meeting = Meeting(debug)
    try:
        network = take_place(meeting, pynickel.load(library_path))
        with network.comm:
            work(network, meeting)
    except (WorkerLost, pynickel.RemoteError, ConnectionError) as error:
        last_words(error)
        if not isinstance(error, WorkerLost):
            raise


def take_place(meeting: Meeting, library: pynickel.Library) -> Network:
    """The other side of train.start: one thing after the other, each answered but the last."""
    devices = meeting.take()
    parallel.send(f"process {os.getpid()}, device {devices[parallel.id]}")
    settings = meeting.take()
    network = Network(arrays.make(library, settings.dtype, devices[parallel.id]), settings)
    parallel.send(f"made a net of {network.parameters.size} parameters on {network.arrays.place}")
    network.take_part(meeting.take(), parallel.id)
    parallel.send(f"{network.own} of {network.all} samples in each update")
    network.state = meeting.take()
    parallel.send(f"parameters copied, {network.norms()}")
    network.connect(pynickel.UniqueId(meeting.take()), parallel.id)
    return network


def work(network: Network, meeting: Meeting) -> None:
    """Rounds, until the parent breaks."""
    while (order := meeting.meet("")) != BREAK:
        if order == SAVE:
            parallel.send(network.state)
            continue
        statistics = network.update(meeting.meet)
        if meeting.debug:
            parallel.print(f"update {network.updates}: {network.all_norms()}")
        meeting.meet("")
        parallel.send(statistics)
