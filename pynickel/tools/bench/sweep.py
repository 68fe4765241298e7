"""What one rank does: for each type, operator, root and size it measures and checks, and rank 0 reports."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...communicator import Communicator
from ...enums import DataType, RedOp
from ...plan import Plan
from . import values
from .block import Block
from .collectives import COLLECTIVES, Call, Collective
from .settings import OPS, TYPES, Settings

PLACES = 256  # that a message moves over at most: each has a plan of its own
POISON = 0x5A  # what receive buffers hold before a checked repetition


@dataclass
class Half:
    """Out-of-place or in-place figures of one size: seconds per operation, GB/s, and wrong elements of all ranks (None: not checked)."""

    seconds: float
    algorithm: float
    bus: float
    wrong: int | None


@dataclass
class Row:
    """One line of the table; `in_place` is None where the collective has no such form."""

    size: int
    count: int
    type: str
    op: str  # "none" if the collective does not reduce
    root: int  # -1 if it has none
    out_of_place: Half
    in_place: Half | None


class Rank:
    """The buffers and the communicator of one rank."""

    def __init__(self, comm: Communicator, settings: Settings, report: Callable[[Row], None] | None) -> None:
        self.comm = comm
        self.settings = settings
        self.report = report
        self.collective: Collective = COLLECTIVES[settings.collective]
        self.stream = None
        most = settings.max_bytes
        self.send = Block(comm.library, most)
        self.recv = Block(comm.library, most)
        self.exchange = Block(comm.library, 8 * (comm.nranks + 1))

    def sweep(self) -> None:
        """All that the settings ask for; every rank goes through the same sizes in the same order."""
        settings, collective = self.settings, self.collective
        with ExitStack() as stack:
            if settings.register:
                form = self.comm.window if settings.register == 2 else self.comm.register
                for block in (self.send, self.recv):
                    stack.enter_context(form(block.memory))
            roots = (range(self.comm.nranks) if settings.root == -1 else [settings.root]) if collective.rooted else [-1]
            self.warm_up(max(roots[0], 0))
            for kind in settings.types:
                for op in settings.ops if collective.reduces else ["none"]:
                    for root in roots:
                        for size in settings.sizes():
                            self.row(size, kind, op, root)

    def warm_up(self, root: int) -> None:
        """Untimed calls of growing size, so that connections and pages are there."""
        kind, op = self.settings.types[0], self.settings.ops[0]
        with self.operator(op, TYPES[kind]) as number:
            size = max(self.settings.min_bytes, 1)
            while size <= self.settings.max_bytes:
                count = self.collective.count(size, TYPES[kind].itemsize, self.comm.nranks)
                plan = self.planned(self.place(count, TYPES[kind], number, root, 0, False))
                for _ in range(self.settings.warmup):
                    plan.launch()
                self.comm.wait(self.stream)
                size *= 2

    def row(self, size: int, kind: str, op: str, root: int) -> None:
        """Measure and check one size, and report it at rank 0."""
        element = TYPES[kind]
        count = self.collective.count(size, element.itemsize, self.comm.nranks)
        nbytes = max(self.collective.elements(count, self.comm.nranks)) * element.itemsize
        with self.operator(op, element) as number:
            forms = [False, True] if self.collective.in_place else [False]
            halves = [self.half(count, nbytes, element, op, number, max(root, 0), in_place) for in_place in forms]
        if self.report is not None:
            self.report(Row(nbytes, count, kind, op, root, halves[0], halves[1] if len(halves) > 1 else None))

    def half(self, count: int, nbytes: int, element: DataType, op: str, number: Any, root: int, in_place: bool) -> Half:
        """One form of the operation."""
        seconds = self.timed(count, nbytes, element, number, root, in_place)
        wrong = None
        for _ in range(self.settings.checks):
            wrong = (wrong or 0) + self.checked(count, element, op, number, root, in_place)
        return Half(seconds, *self.collective.bandwidth(nbytes, self.comm.nranks, seconds), wrong)

    def timed(self, count: int, nbytes: int, element: DataType, number: Any, root: int, in_place: bool) -> float:
        """Seconds per operation, put together from all ranks as -a says."""
        settings = self.settings
        places = max(1, settings.max_bytes // nbytes) if nbytes else 1  # buffers move on, so that the last call's are not in the cache
        together = 1 if settings.blocking in (1, 2) else settings.aggregated
        starts = range(0, nbytes * min(places, settings.iterations, PLACES), nbytes) if nbytes else [0]
        plans = [self.planned(self.place(count, element, number, root, at, in_place), together) for at in starts]
        for warm in range(settings.warmup):
            plans[warm % len(plans)].launch()
        self.comm.wait(self.stream)
        self.comm.barrier()
        untimed = 0.0  # seconds in barriers
        begin = time.perf_counter()
        if settings.blocking:
            for iteration in range(settings.iterations):
                untimed += self.blocking(plans[iteration % len(plans)])
        else:
            for iteration in range(settings.iterations):
                plans[iteration % len(plans)].launch()
        self.comm.wait(self.stream)
        mine = (time.perf_counter() - begin - untimed) / (settings.iterations * settings.aggregated)
        return self.together(mine)

    def blocking(self, plan: Plan) -> float:
        """The operations of one iteration with waits, as -m and -z want them; returns the seconds in barriers, which do not count."""
        untimed = 0.0
        for _ in range(1 if self.settings.blocking == 3 else self.settings.aggregated):
            plan.launch()
            self.comm.wait(self.stream)
            untimed += 0.0 if self.settings.blocking == 2 else self.barrier()
        return untimed

    def barrier(self) -> float:
        """Wait for all ranks; returns how long, in seconds."""
        begin = time.perf_counter()
        self.comm.barrier()
        return time.perf_counter() - begin

    def planned(self, call: Call, times: int = 1) -> Plan:
        """So many operations, ready to be started by one call into C."""
        plan = Plan(self.comm)
        for _ in range(times):
            self.collective.queue(plan, call)
        return plan

    def place(self, count: int, element: DataType, number: Any, root: int, at: int, in_place: bool) -> Call:
        """The call whose buffers begin at byte `at`."""
        if in_place:
            send, recv = (self.recv.address + at + shift * element.itemsize for shift in self.collective.shift(self.comm.rank, count))
        else:
            send, recv = self.send.address + at, self.recv.address + at
        return Call(self.comm.rank, self.comm.nranks, send, recv, count, element, number, root, self.stream)

    def checked(self, count: int, element: DataType, op: str, number: Any, root: int, in_place: bool) -> int:
        """Wrong elements, on all ranks together, of one call with known data."""
        nranks, rank = self.comm.nranks, self.comm.rank
        kind = values.bits_type(element)
        call = self.place(count, element, number, root, 0, in_place)
        source = self.recv if in_place else self.send
        self.recv.fill(POISON)
        has_input = self.collective.name not in ("broadcast", "scatter") or rank == root
        if has_input:
            length = self.collective.elements(count, nranks)[0]
            data = values.spread(values.encode(values.numbers(element, op, rank, nranks), element), 0, min(length, values.PIECE))
            for start, many in values.pieces(length):
                source.write(call.send - source.address + start * element.itemsize, data[:many])
        plan = self.planned(call)
        self.comm.barrier()
        plan.launch()
        self.comm.wait(self.stream)
        wrong = 0
        for piece in self.collective.expected(nranks, rank, root, count):
            got = self.recv.read(call.recv - self.recv.address + piece.place * element.itemsize, piece.count, kind)
            if piece.source is None:
                period, off = values.reduced(element, op, nranks), values.tolerance(element, op, nranks)
            else:
                period, off = values.numbers(element, op, piece.source, nranks), 0.0
            wrong += values.wrong(got, period, piece.start, element, off)
        return int(sum(self.gathered(float(wrong))))

    def together(self, seconds: float) -> float:
        """One time from those of all ranks."""
        times = self.gathered(seconds)
        return float((times[0], sum(times) / len(times), min(times), max(times))[self.settings.average])

    def gathered(self, value: float) -> list[float]:
        """A number of every rank, on every rank."""
        self.exchange.write(0, np.array([value]))
        self.comm.all_gather(self.exchange.address, self.exchange.address + 8, count=1, dtype=DataType.float64, stream=self.stream)
        self.comm.wait(self.stream)
        return [float(one) for one in self.exchange.read(8, self.comm.nranks, np.dtype(np.float64))]

    def operator(self, op: str, element: DataType) -> Any:
        """The reduction for a call, in a context that gives it back."""
        if op == "mulsum":
            return self.comm.pre_mul_sum(int(values.factors(self.comm.nranks)[self.comm.rank]), element)
        return nullcontext(RedOp[op.upper()] if op in OPS else RedOp.SUM)
