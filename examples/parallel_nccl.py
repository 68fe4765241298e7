"""A parent and its children try NCCL's collectives, out of place and in place: `python examples/parallel_nccl.py | sort`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pynickel
from pynickel import parallel
from pynickel.device import gpu_count, open_device

ROOT = 0  # the parent's rank; child k is rank k
ELEMENTS = 5
PARENT_SENDS = 10


# -- one rank, parent or child ----------------------------------------------------------------------------------------


class Rank:
    """One rank: its number, device, buffers and communicator, how it meets the others, and how many wrong values it saw."""

    comm: pynickel.Communicator

    def __init__(self, rank: int, nranks: int, library: pynickel.Library, device: int | None) -> None:
        self.rank, self.nranks, self.library = rank, nranks, library
        self.device: Any = open_device(library, device or 0)  # NumPy's memory or a GPU's, with the same few methods
        self.is_root = rank == ROOT
        self.value = PARENT_SENDS if self.is_root else rank
        self.total = PARENT_SENDS + sum(range(nranks))
        self.wrong = 0

    def say(self, step: str, text: str) -> None:
        """Print one line, whole even among other processes: it is written at once."""
        rank = f"{self.rank:02}" if self.nranks > 10 else str(self.rank)
        sys.stdout.write(f"{step} [rank {rank}] {text}\n")
        sys.stdout.flush()

    def meet(self, message: str = "") -> str:
        """Wait for each other: the parent joins with a message, a child yields; every rank returns the message."""
        if not self.is_root:
            return str(parallel.yield_())
        parallel.children.join(message)
        return message

    def make_buffers(self) -> None:
        """Five float32 to send and five to receive; the root also has room for everybody's."""
        self.send = self.device.empty(ELEMENTS)
        self.recv = self.device.empty(ELEMENTS)
        self.all = self.device.empty(ELEMENTS * self.nranks) if self.is_root else None

    def fill_buffers(self) -> None:
        """The values that every test starts from."""
        self.device.upload(self.value, to=self.send)
        self.device.upload(0, to=self.recv)
        if self.all is not None:
            self.device.upload(0, to=self.all)

    def check(self, step: str, name: str, buffer: Any, expected: Sequence[float]) -> None:
        """Print what a buffer holds and what it should hold, one number per share of five; name every wrong element."""
        found = self.device.download(buffer)
        wanted = np.repeat(np.asarray(expected, np.float32), ELEMENTS)
        shares = found.reshape(-1, ELEMENTS)
        shown = " ".join(f"{share[0]:g}" if (share == share[0]).all() else ",".join(f"{x:g}" for x in share) for share in shares)
        self.say(step, f"{name} {shown} (expected {' '.join(f'{x:g}' for x in expected)})")
        bad = np.flatnonzero(found != wanted)
        if bad.size:
            self.wrong += int(bad.size)
            number, line = step.split(".")
            which = ", ".join(f"element {i} is {found[i]:g} (expected {wanted[i]:g})" for i in bad)
            self.say(f"{number}.{int(line) + 2}", f"WRONG {name}: {which}")


# -- the tests: each makes one call, and says what the buffers should hold afterwards ---------------------------------

Checks = list[tuple[str, Any, Sequence[float]]]


def reduce_out_of_place(me: Rank) -> Checks:
    """Only the root has a receive buffer to pass."""
    me.comm.reduce(me.send, me.recv if me.is_root else None, root=ROOT, stream=me.device.stream)
    return [("send buffer", me.send, [me.value]), ("receive buffer", me.recv, [me.total if me.is_root else 0])]


def reduce_in_place(me: Rank) -> Checks:
    """The sum lies where the root's own values were."""
    me.comm.reduce(me.send, root=ROOT, stream=me.device.stream)
    return [("send buffer", me.send, [me.total if me.is_root else me.value]), ("receive buffer", me.recv, [0])]


def all_reduce_out_of_place(me: Rank) -> Checks:
    """Every rank receives the sum."""
    me.comm.all_reduce(me.send, me.recv, stream=me.device.stream)
    return [("send buffer", me.send, [me.value]), ("receive buffer", me.recv, [me.total])]


def all_reduce_in_place(me: Rank) -> Checks:
    """Every rank's values give way to the sum."""
    me.comm.all_reduce(me.send, stream=me.device.stream)
    return [("send buffer", me.send, [me.total]), ("receive buffer", me.recv, [0])]


def broadcast(me: Rank) -> Checks:
    """The root gives from its send buffer, the others take into their receive buffer."""
    me.comm.broadcast(me.send if me.is_root else me.recv, root=ROOT, stream=me.device.stream)
    return [("send buffer", me.send, [me.value]), ("receive buffer", me.recv, [0 if me.is_root else PARENT_SENDS])]


def gather(me: Rank) -> Checks:
    """The root collects everybody's values in rank order."""
    me.comm.gather(me.send, me.all, root=ROOT, stream=me.device.stream)
    return [("send buffer", me.send, [me.value]), *everybodys(me)]


def gather_in_place(me: Rank) -> Checks:
    """The root's own share already lies where it belongs."""
    send = me.send
    if me.is_root:
        me.device.upload(np.repeat([me.value, *[0] * (me.nranks - 1)], ELEMENTS), to=me.all)
        send = me.all[ROOT * ELEMENTS : (ROOT + 1) * ELEMENTS]
    me.comm.gather(send, me.all, root=ROOT, stream=me.device.stream)
    return [("send buffer", send, [me.value]), *everybodys(me)]


def everybodys(me: Rank) -> Checks:
    """What the root has after a gather."""
    return [("receive buffer", me.all, [PARENT_SENDS, *range(1, me.nranks)])] if me.is_root else []


def scatter(me: Rank) -> Checks:
    """The root deals out 100, 101, 102 ..., five elements for each rank."""
    dealt = [100 + rank for rank in range(me.nranks)]
    if me.is_root:
        me.device.upload(np.repeat(dealt, ELEMENTS), to=me.all)
    me.comm.scatter(me.all, me.recv, root=ROOT, stream=me.device.stream)
    sent: Checks = [("send buffer", me.all, dealt)] if me.is_root else [("send buffer", me.send, [me.value])]
    return [*sent, ("receive buffer", me.recv, [dealt[me.rank]])]


TESTS: list[tuple[str, Callable[[Rank], Checks]]] = [
    ("Reduce, out of place", reduce_out_of_place),
    ("Reduce, in place", reduce_in_place),
    ("AllReduce, out of place", all_reduce_out_of_place),
    ("AllReduce, in place", all_reduce_in_place),
    ("Broadcast", broadcast),
    ("Gather, out of place", gather),
    ("Gather, in place", gather_in_place),
    ("Scatter", scatter),
]


def run_tests(me: Rank) -> None:
    """Every rank in step: fill, meet, call, meet, check."""
    no_error = pynickel.ffi.string(me.library.lib.ncclGetErrorString(0)).decode()
    for number, (title, test) in enumerate(TESTS, 1):
        me.fill_buffers()
        me.say(f"{number}.1", me.meet(f"before {title}"))
        checks = test(me)
        me.say(f"{number}.2", me.meet(f"after {title}: {no_error}"))
        for line, check in enumerate(checks, 3):
            me.check(f"{number}.{line}", *check)


# -- parent and children ----------------------------------------------------------------------------------------------


def parent(nranks: int | None, choice: str | None) -> int:
    """Rank 0: fork the children, send each its place and the unique id, take part, collect; returns how many values were wrong."""
    library = pynickel.load(choice)
    why = f"--library {choice}" if choice else library.reason
    devices = place(nranks, library)
    nranks = len(devices)
    me = Rank(ROOT, nranks, library, devices[ROOT])
    me.say("0.0", f"library: {library.kind} {'.'.join(map(str, library.version))} from {library.path} ({why})")
    me.say("0.1", f"runs on {me.device.name}")
    me.say("0.2", f"is the parent, parallel id {parallel.id}, process {os.getpid()}")
    me.make_buffers()

    children = parallel.nfork(nranks - 1)
    children.exec(child, nranks, library.path)
    me.meet("devices")
    children.send(devices)

    unique_id = pynickel.UniqueId.create(library=library)
    me.say("0.3", f"made the unique id {shown(unique_id)}")
    me.meet("unique id")
    children.send(unique_id)
    me.comm = pynickel.Communicator(nranks, unique_id, ROOT, library=library)
    me.say("0.4", "has joined the communicator")

    run_tests(me)
    wrong: int = me.wrong + sum(children.receive().values())
    me.meet("break")
    me.say("9.1", f"end: {wrong} wrong values" if wrong else "end: every value is as expected")
    me.comm.close()
    children.sync()
    return wrong


def child(nranks: int, library_path: str) -> None:
    """Rank k: a fresh process, which loads everything again and hears the rest from the parent."""
    parallel.yield_()
    devices = parallel.parent.receive()
    me = Rank(parallel.id, nranks, pynickel.load(library_path), devices[parallel.id])
    me.say("0.1", f"runs on {me.device.name}")
    me.say("0.2", f"is process {os.getpid()}")
    me.say("0.3", f"is a child, parallel id {parallel.id}")
    me.make_buffers()
    me.say("0.4", f"has made its buffers of {ELEMENTS} float32")

    parallel.yield_()
    unique_id = parallel.parent.receive()
    me.say("0.5", f"received the unique id {shown(unique_id)}")
    me.comm = pynickel.Communicator(nranks, unique_id, me.rank, library=me.library)
    me.say("0.6", "has joined the communicator")

    run_tests(me)
    parallel.parent.send(me.wrong)
    me.say("9.1", f"end: the parent said {me.meet()}")
    me.comm.close()


def place(nranks: int | None, library: pynickel.Library) -> list[int | None]:
    """The device of each rank: none on the CPU library; two ranks share each GPU where NCCL can do that, else one has it."""
    if library.kind == "host":
        return [None] * (nranks or 4)
    share = 2 if library.version >= (2, 30) else 1
    if share == 2:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        os.environ.setdefault("NCCL_MAX_CTAS", "4")  # two ranks' kernels must fit on the GPU at the same time
    gpus = gpu_count()
    if not 2 <= (nranks or gpus * share) <= gpus * share:
        raise SystemExit(f"{gpus} GPUs with {share} ranks each carry 2 to {gpus * share} ranks, not {nranks or gpus * share}")
    return [rank // share for rank in range(nranks or gpus * share)]


def shown(unique_id: pynickel.UniqueId) -> str:
    """The beginning of an id, in hexadecimal."""
    return f"{bytes(unique_id)[:32].hex()}... ({len(bytes(unique_id))} bytes)"


def rank_count(text: str) -> int:
    """The argument of --ranks."""
    count = int(text)
    if not 2 <= count <= 100:
        raise argparse.ArgumentTypeError(f"must be 2 to 100 (a parent and its children), not {count}")
    return count


def main() -> int:
    """Read the command line; the exit status is 1 if a value was wrong or a rank was lost."""
    parser = argparse.ArgumentParser(description="NCCL's collectives between a parent (rank 0) and its children; pipe it to sort.")
    parser.add_argument("--ranks", type=rank_count, help="how many (default: 4 on the CPU library, else two for each GPU)")
    parser.add_argument("--library", help="host, nvidia, or the path of a libnccl (default: as pynickel chooses)")
    arguments = parser.parse_args()
    try:
        try:
            return 1 if parent(arguments.ranks, arguments.library) else 0
        finally:
            parallel.close()  # whatever happens, no child stays behind
    except (pynickel.NCCLError, parallel.ChildError, ImportError) as error:
        print(f"parallel_nccl.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # nobody reads on, as behind `| head`: not worth a traceback, nor a second one at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
