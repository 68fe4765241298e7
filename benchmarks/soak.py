"""Very many collectives of random kind, size, type, operation and root, alone and in groups, each checked on every rank.

    python benchmarks/soak.py --calls 1000000 --seed 7          # four processes, some minutes

All ranks draw the same numbers from the seed. What is sent are pieces of a fixed pattern of small numbers, so what must come out
is a piece of it, or follows from small integers that every type holds exactly. At random a reduction runs on random bits instead
and is compared with the tests' reference, which folds in NumPy."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("PYNICKEL_LIBRARY", "host")
sys.path[1:1] = [str(Path(__file__).resolve().parent.parent / name) for name in ("", "tests")]

from helpers import arithmetic, forks, ranks  # noqa: E402

import pynickel  # noqa: E402

PATTERN = 1 << 18  # elements of the longest piece
EDGES = (32, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18)  # bytes at which the library changes its way
GUARD, STALE = 16, 0xA5
OPS = ("sum", "prod", "max", "min", "avg")
FOLDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "avg": np.add}
# Parts of one rank's count in the send and in the receive buffer (n: one for each rank); whether it has a root; whether it reduces.
KINDS = {
    "all_reduce": ("1", "1", False, True), "reduce": ("1", "1", True, True), "broadcast": ("1", "1", True, False),
    "all_gather": ("1", "n", False, False), "gather": ("1", "n", True, False), "reduce_scatter": ("n", "1", False, True),
    "all_to_all": ("n", "n", False, False), "scatter": ("n", "1", True, False), "ring": ("1", "1", False, False),
}  # fmt: skip
NAMES = tuple(KINDS)
TYPES = tuple(arithmetic.TYPES)
BATCH, DRAWS = 1024, 12


class Soak:
    """One rank: its buffers, the pattern, and the numbers that all ranks draw."""

    def __init__(self, comm: pynickel.Communicator, seed: int, pattern: int = PATTERN) -> None:
        self.comm, self.n, self.me, self.seed, self.pattern = comm, comm.nranks, comm.rank, seed, pattern
        self.random = np.random.default_rng(seed)
        self.drawn: list[list[int]] = []
        self.counts = dict.fromkeys((*NAMES, "group", "full check"), 0)
        # Sums of n and products of n of these are exact in every type.
        self.small = np.random.default_rng(0).integers(0, 8 // self.n + 1, pattern).astype(np.uint8)
        wide = [self.small.astype(np.float32).astype(arithmetic.TYPES[name]) for name in TYPES]
        self.bits = [arithmetic.bits(array) for array in wide]
        # The pattern in both kinds of memory; received data has a room for each operation of a group.
        self.sends = [[array.copy() for array in wide], [self.in_arena(array) for array in wide]]
        self.room = pattern * 8 + 2 * GUARD
        self.recvs = [np.empty(self.room, np.uint8), pynickel.empty(self.room, "uint8")]
        self.rooms = [[np.empty(self.room // 4, np.uint8) for _ in range(4)], [pynickel.empty(self.room // 4, "uint8") for _ in range(4)]]
        numbers = np.arange(9, dtype=np.float32)
        self.values = [arithmetic.bits(numbers.astype(arithmetic.TYPES[name])) for name in TYPES]
        shares = numbers / self.n
        self.exact = self.n & (self.n - 1) == 0  # then 1/n is exact, and so are averages of small numbers
        self.means = [
            arithmetic.bits((shares if name in arithmetic.FLOATS else shares.astype(int)).astype(arithmetic.TYPES[name]))
            for name in TYPES
        ]

    @staticmethod
    def in_arena(array: arithmetic.Array) -> arithmetic.Array:
        """A copy in memory from ncclMemAlloc."""
        made: arithmetic.Array = pynickel.empty(array.nbytes, "uint8").view(array.dtype)
        made[:] = array
        return made

    def draw(self) -> list[int]:
        """The next row of numbers, the same on every rank."""
        if not self.drawn:
            self.drawn = self.random.integers(0, 1 << 40, (BATCH, DRAWS + self.n)).tolist()
        return self.drawn.pop()

    def run(self, calls: int) -> dict[str, int]:
        """So many collectives; how many there were of each kind."""
        done = 0
        while done < calls:
            row = self.draw()
            if row[0] % 50 == 0:
                done += self.group(2 + row[1] % 3)
            elif row[0] % 100 == 1:
                self.full_check(row, done)
                done += 1
            else:
                call = Call(self, row, self.recvs, done, self.pattern)
                call.start()
                call.check()
                done += 1
        for sends in self.sends:
            for array, bits in zip(sends, self.bits, strict=True):
                assert (arithmetic.bits(array) == bits).all(), "a send buffer was written"
        return self.counts

    def group(self, size: int) -> int:
        """Several at once."""
        calls = [Call(self, self.draw(), [rooms[i] for rooms in self.rooms], -1, self.pattern // 4) for i in range(size)]
        with pynickel.group():
            for call in calls:
                call.start()
        for call in calls:
            call.check()
        self.counts["group"] += 1
        return size

    def full_check(self, row: list[int], number: int) -> None:
        """An all-reduce of random bits against the reference."""
        name, op, count = TYPES[row[1] % len(TYPES)], (*OPS, "premulsum")[row[2] % 6], 1 + row[3] % (1 << row[4] % 12)
        randoms = [np.random.default_rng((self.seed, number, rank)) for rank in range(self.n)]
        inputs = [arithmetic.sample(name, count, random) for random in randoms]
        scalars = [arithmetic.sample(name, 1, random) for random in randoms]
        mine = self.in_arena(inputs[self.me]) if row[5 + self.me] & 1 else inputs[self.me].copy()
        address = mine.ctypes.data
        if op == "premulsum":
            with self.comm.pre_mul_sum(scalars[self.me], name) as made:
                self.comm.all_reduce(address, address, made, count=count, dtype=name)
        else:
            self.comm.all_reduce(address, address, op, count=count, dtype=name)
        expected = arithmetic.fold(name, op, inputs, [scalar[0] for scalar in scalars] if op == "premulsum" else None)
        if not (arithmetic.bits(mine) == arithmetic.bits(expected)).all():
            raise AssertionError(f"call {number}: {op} of {count} random {name} on rank {self.me} is {mine}, not {expected}, of {inputs}")
        self.counts["full check"] += 1


class Call:
    """One operation on one rank."""

    def __init__(self, soak: Soak, row: list[int], rooms: list[Any], number: int, most: int) -> None:
        self.soak, self.number = soak, number
        self.kind, self.type = NAMES[row[1] % len(NAMES)], row[2] % len(TYPES)
        self.op, self.root = OPS[row[3] % len(OPS)], row[4] % soak.n
        send_parts, recv_parts, self.rooted, self.reduces = KINDS[self.kind]
        self.gives = soak.n if send_parts == "n" else 1
        self.takes = soak.n if recv_parts == "n" else 1
        self.size: int = arithmetic.TYPES[TYPES[self.type]].itemsize
        self.count = self.draw_count(row[5], most // 2 // soak.n)
        self.offsets = [draw % (soak.pattern - self.count * self.gives + 1) for draw in row[DRAWS:]]
        self.in_place, self.as_arrays = row[6] & 1 == 0, row[7] & 3 == 0
        memory = row[8] >> soak.me * 2  # each rank has its own: calls with mixed memory are part of it
        together = row[8] >> 20 & 3
        self.sent_from, self.received_in = (together & 1,) * 2 if together < 2 else (memory & 1, memory >> 1 & 1)
        self.shift = row[9] % soak.n
        self.room = rooms[self.received_in]
        soak.counts[self.kind] += 1

    def draw_count(self, draw: int, most: int) -> int:
        """Mostly few, at times none, as many as fill something, or very many."""
        kind, rest = draw % 1000, draw // 1000
        if kind < 10:
            return 0
        if kind < 40:
            return min(most, max(1, EDGES[rest % len(EDGES)] // self.size // self.gives + rest // 64 % 3 - 1))
        if kind < 998:
            return 1 + rest % (1 << (rest >> 12) % 11)
        return 1 + rest % most

    def start(self) -> None:
        """Write what will be overwritten, then call, or queue it in the open group."""
        soak, n, me = self.soak, self.soak.n, self.soak.me
        nbytes = self.count * self.size
        self.whole = self.room[: nbytes * max(self.takes, self.gives if self.in_place else 1) + 2 * GUARD]
        self.whole.fill(STALE)
        first = GUARD
        pattern = soak.sends[self.sent_from][self.type]
        start = self.offsets[me]
        send: Any = pattern[start : start + self.count * self.gives]
        at_root = not self.rooted or me == self.root
        self.in_place = self.in_place and self.kind not in ("all_to_all", "ring") and (at_root or self.kind == "broadcast")
        if self.in_place:
            first += me * nbytes if self.takes > 1 else 0
            inside = self.room[first : first + nbytes * self.gives].view(pattern.dtype)
            if at_root:
                inside[:] = send
            send = inside
            first = GUARD + (me * nbytes if self.gives > 1 else 0)
            self.received = self.room[GUARD if self.takes > 1 else first :][: nbytes * self.takes]
        else:
            self.received = self.room[first : first + nbytes * self.takes]
        self.takes_part = at_root or self.kind in ("broadcast", "scatter")
        recv: Any = self.received.view(pattern.dtype)
        named: dict[str, Any] = {}
        if not self.as_arrays:
            send, recv = send.ctypes.data, recv.ctypes.data
            named = {"count": self.count, "dtype": TYPES[self.type]}
        if self.reduces:
            named["op"] = self.op
        if self.rooted:
            named["root"] = self.root
        if self.kind == "ring":
            with pynickel.group():
                soak.comm.send(send, (me + self.shift) % n, **named)
                soak.comm.recv(recv, (me - self.shift) % n, **named)
        else:
            getattr(soak.comm, self.kind)(send, recv, **named)

    def check(self) -> None:
        """What was received, and the bytes around it."""
        n = self.soak.n
        whole = self.whole
        if whole[:GUARD].tobytes() + whole[-GUARD:].tobytes() != bytes([STALE]) * 2 * GUARD:
            raise AssertionError(f"{self}: bytes beside the receive buffer were written")
        if not self.takes_part:
            return
        got, expected = self.received, self.expected()
        if got.tobytes() != expected.tobytes():
            wrong = np.nonzero(got.view(expected.dtype) != expected)[0]
            raise AssertionError(
                f"{self}: {wrong.size} of {expected.size} elements are wrong, the first is {wrong[0]}: bits "
                f"{got.view(expected.dtype)[wrong[0]]:#x}, not {expected[wrong[0]]:#x} (n = {n})"
            )

    def expected(self) -> arithmetic.Array:
        """The bits that must be there."""
        soak, count, me = self.soak, self.count, self.soak.me
        own_part = me * count if self.gives > 1 else 0
        starts = [offset + own_part for offset in self.offsets]
        if self.reduces and self.op == "avg" and not soak.exact:
            name = TYPES[self.type]
            pattern = soak.bits[self.type].view(arithmetic.TYPES[name])
            return arithmetic.bits(arithmetic.fold(name, "avg", [pattern[start : start + count] for start in starts]))
        if self.reduces:
            parts = [soak.small[start : start + count] for start in starts]
            total = parts[0].copy()
            for part in parts[1:]:
                FOLDS[self.op](total, part, out=total)
            table: arithmetic.Array = (soak.means if self.op == "avg" else soak.values)[self.type]
            return table[total] if self.op != "prod" else self.products(total)
        if self.kind == "ring":
            starts = [starts[(me - self.shift) % soak.n]]
        elif self.takes == 1:
            starts = [starts[self.root]]
        bits = soak.bits[self.type]
        return np.concatenate([bits[start : start + count] for start in starts])

    def products(self, total: arithmetic.Array) -> arithmetic.Array:
        """Powers of two go beyond the table of sums."""
        return arithmetic.bits(total.astype(np.float32).astype(arithmetic.TYPES[TYPES[self.type]]))

    def __str__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        memory = f"from {('plain', 'empty')[self.sent_from]} to {('plain', 'empty')[self.received_in]}"
        return (
            f"call {self.number}, {self.kind} of {self.count} {TYPES[self.type]}, op {self.op}, root {self.root}, {place}, {memory}, "
            f"on rank {self.soak.me} of {self.soak.n}"
        )


def soak(comm: pynickel.Communicator, calls: int, seed: int) -> dict[str, int]:
    """What each rank does."""
    return Soak(comm, seed).run(calls)


def forked(rank: int, nranks: int, ids: list[bytes], calls: int, seed: int) -> dict[str, int]:
    """What each rank does that is a forked process. Ranks of one session hand their cores over much faster than fresh interpreters."""
    with pynickel.Communicator(nranks, ids[0], rank) as comm:
        return soak(comm, calls, seed)


def outcome(options: argparse.Namespace) -> dict[str, int]:
    """How many calls of each kind there were; an error tells the story of all ranks."""
    if options.kind == "processes":
        ends = forks.fork(options.ranks, forked, options.calls, options.seed, deadline=options.deadline)
        found: dict[str, int] = forks.values(ends)[0]
    else:
        found = ranks.run(
            options.ranks, soak, options.calls, options.seed, kind=options.kind, deadline=options.deadline,
            library=os.environ["PYNICKEL_LIBRARY"],
        )[0]
    return found


def main() -> None:
    """Run it and say what was run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, choices=[2, 4, 8], default=4)
    parser.add_argument("--kind", choices=["processes", "threads", "mixed"], default="processes", help="what the ranks are")
    parser.add_argument("--deadline", type=float, default=600, help="seconds after which the ranks are killed")
    options = parser.parse_args()
    begun = time.monotonic()
    try:
        counts = outcome(options)
    except AssertionError as error:
        sys.exit(f"{error}\nseed {options.seed}, {options.calls} calls")
    seconds = time.monotonic() - begun
    told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"{options.calls:,} collectives on {options.ranks} {options.kind}, seed {options.seed}: all right in {seconds:.1f} s ({told})")


if __name__ == "__main__":
    main()
