"""Ranks that are killed, stopped or delayed at random moments of random calls: the others say so in time, and nothing is left.

    python benchmarks/chaos.py --rounds 300 --seed 7

A round forks 2 to 5 ranks, which make the calls of soak.py, and does one thing to one or two of them. Then every rank that lives has ended
with the error that fits, naming the right ranks, within the time that this error may take; or, if it was a pause shorter than the deadline,
without any error and with right results. On a busy machine a rank can be late without having been struck. Therefore each rank measures how
long it was ready to run and was not let: so much later may an error come, and who was kept waiting for most of a deadline may be named.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("PYNICKEL_LIBRARY", "host")
sys.path[1:1] = [str(Path(__file__).resolve().parent.parent / name) for name in ("", "tests")]

import psutil  # noqa: E402
from helpers import forks  # noqa: E402
from soak import Soak  # noqa: E402

import pynickel  # noqa: E402

PATTERN = 1 << 15
SOON = 1.6  # seconds in which the end of a peer is noticed, on a machine that has other things to do
SHORT, LONG = 0.5, 20.0  # deadlines
WHEN = ("kill", "kill two", "kill in init", "stop", "stop too long", "stop and kill", "delay", "delay too long")


@dataclass
class Story:
    """What is done in one round, to whom, when."""

    what: str
    nranks: int
    victims: list[int]
    moment: float  # seconds after all have begun to work; in init, after the fork
    call: int  # which is delayed
    seed: int
    deadline: float = field(init=False)
    pause: float = field(init=False)

    def __post_init__(self) -> None:
        too_long = self.what.endswith("too long")
        self.deadline = SHORT if too_long else 2.0 if self.what == "kill in init" else LONG
        self.pause = 2.5 * SHORT if too_long else 0.05 + self.moment * 5

    def __str__(self) -> str:
        return f"{self.what}, rank {self.victims} of {self.nranks}, after {self.moment * 1000:.1f} ms, call {self.call}, seed {self.seed}"


def tell_story(choose: random.Random, what: str) -> Story:
    """A round of this kind."""
    nranks = choose.randint(3 if what == "kill two" else 2, 5)
    victims = choose.sample(range(nranks), 2 if what == "kill two" else 1)
    return Story(what, nranks, victims, choose.random() * 0.03, choose.randint(1, 400), choose.randrange(1 << 30))


def rank_main(rank: int, nranks: int, ids: list[bytes], story: Story) -> dict[str, Any]:
    """Random calls until an error comes, or until rank 0 says that it is enough; how that ended, and what is left in the process."""
    threads = forks.holds()["threads"]
    if story.what.startswith("delay"):
        os.environ["NICKEL_FAULT"] = f"delay:rank={story.victims[0]},call={story.call},ms={int(story.pause * 1000)}"
    ending = work(rank, nranks, ids[0], story)
    left = forks.holds()
    ending["left"] = {name: left[name] for name in ("memfds", "mappings") if left[name]}
    if left["threads"] > threads:
        ending["left"]["threads"] = left["threads"]
    return ending


def work(rank: int, nranks: int, unique_id: bytes, story: Story) -> dict[str, Any]:
    """The communicator and what it was used for are gone when this returns."""
    comm, calls, began = None, 0, (time.monotonic(), starved())
    try:
        comm = pynickel.Communicator(nranks, unique_id, rank, timeout=story.deadline if story.what == "kill in init" else LONG)
        soak = Soak(comm, story.seed, PATTERN)
        comm.barrier()
        pynickel.lib.nickelCommSetTimeout(pynickel.ffi.cast("ncclComm_t", comm.handle), story.deadline)
        forks.say("works")
        until = time.monotonic() + story.moment + 2 * story.pause + 0.1
        go_on = np.ones(1, np.int8)
        while go_on[0]:
            began = time.monotonic(), starved()
            soak.run(10)
            calls += 10
            go_on[0] = time.monotonic() < until or (story.what.startswith("delay") and calls <= story.call)
            comm.broadcast(go_on)
        comm.close()
        return {"error": "", "at": time.monotonic(), "calls": calls, "waited": 0.0, "starved": 0.0}
    except pynickel.NCCLError as error:
        at = time.monotonic()
        times = {"waited": at - began[0], "starved": starved() - began[1]}  # in the last calls
        gone = [error.rank] if isinstance(error, pynickel.RemoteError) else []
        ranks = error.missing if isinstance(error, pynickel.WaitTimeoutError) else gone
        ending = {"error": type(error).__name__, "ranks": list(ranks), "pid": getattr(error, "pid", None), "text": str(error), "at": at}
    begun = time.monotonic()
    if comm is not None:
        comm.abort()
    ending["abort"] = time.monotonic() - begun
    return ending | times | {"calls": calls}


def starved() -> float:
    """Seconds that this thread was ready to run and was not let, ever."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9


def play(story: Story) -> list[str]:
    """One round; everything that was not as it must be."""
    before = forks.holds()
    with forks.Forked(story.nranks, rank_main, story) as ranks:
        if story.what != "kill in init":
            ranks.wait_for("works", story.nranks, 20)
        time.sleep(story.moment)
        begun = time.monotonic()
        strike(story, ranks)
        ends = ranks.ends(12 + 2 * story.pause)
    late = {end.rank: end.value["starved"] for end in ends if end.value}
    wrong = [f"{story}: {line}" for end in ends for line in judge(story, end, ranks.pids, begun, late)]
    children = psutil.Process().children(recursive=True)
    after = forks.holds()
    if children or any(after[name] > before[name] for name in after):
        wrong.append(f"{story}: left in the parent: {children}, {after}, before it was {before}")
    return wrong


def strike(story: Story, ranks: forks.Forked) -> None:
    """Do it."""
    if story.what.startswith("stop"):
        for victim in story.victims:
            ranks.kill(victim, signal.SIGSTOP)
        time.sleep(story.pause)
    if "kill" in story.what:
        for victim in story.victims:
            ranks.kill(victim)
    elif story.what.startswith("stop"):
        for victim in story.victims:
            ranks.kill(victim, signal.SIGCONT)


def judge(story: Story, end: forks.End, pids: list[int], begun: float, late: dict[int, float]) -> list[str]:
    """What is wrong with how this rank ended."""
    killed = "kill" in story.what and end.rank in story.victims
    if killed and end.signal == signal.SIGKILL:
        return []
    if story.what == "kill in init" and (killed or "ended before it had made the ids" in end.trace):
        return []  # it may be over before it is struck
    if end.error or end.trace or end.signal or end.late:
        return [str(end)]
    ending = end.value
    wrong = [f"it left {ending['left']}"] if ending["left"] else []
    after, soon = ending["at"] - begun, SOON + max(late.values())
    if ending.get("abort", 0) > soon:
        wrong.append(f"abort took {ending['abort']:.2f} s")
    error, named = ending["error"], set(ending.get("ranks", ()))
    if "kill" in story.what:
        allowed = {"RemoteError"} | ({"WaitTimeoutError", "RendezvousError"} if story.what == "kill in init" else set())
        limit = story.deadline + soon if error == "WaitTimeoutError" else soon + (story.pause if "stop" in story.what else 0)
        if error not in allowed or (error != "RendezvousError" and not named & set(story.victims)) or after > limit:
            wrong.append("an error about the killed rank was expected, soon")
        if error == "RemoteError" and ending["pid"] not in [pids[victim] for victim in story.victims]:
            wrong.append(f"the pid is wrong: they are {pids}")
    elif story.what.endswith("too long"):
        # The victim is told when it goes on; it may also be first to find that the others have given up.
        allowed = {"WaitTimeoutError"} if end.rank not in story.victims else {"WaitTimeoutError", "RemoteError", "CommunicatorClosedError"}
        limit = story.pause + story.deadline + soon
        if story.what.startswith("delay"):
            after = ending["waited"]  # when it began nobody but the ranks can tell
        right = named & set(story.victims) or (named and all(late.get(rank, 0) > story.deadline / 2 for rank in named))
        if error not in allowed or (end.rank not in story.victims and not right) or after > limit:
            wrong.append("a timeout that names the missing rank was expected")
    elif error:
        wrong.append("no error was expected")
    return [f"rank {end.rank}, {after:.2f} s after it: {line}: {ending}" for line in wrong]


def main() -> None:
    """Play all rounds and say what was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", choices=WHEN, action="append", help="only rounds of this kind")
    options = parser.parse_args()
    choose, wrong, begun = random.Random(options.seed), [], time.monotonic()
    kinds = options.what or WHEN
    for turn in range(options.rounds):
        story = tell_story(choose, kinds[turn % len(kinds)])
        for line in play(story):
            wrong.append(line)
            print(f"round {turn}: {line}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - begun
    if wrong:
        sys.exit(f"{len(wrong)} things were wrong in {options.rounds} rounds, seed {options.seed}, {seconds:.1f} s")
    print(f"{options.rounds} rounds, seed {options.seed}: every rank ended as it must, nothing was left, in {seconds:.1f} s")


if __name__ == "__main__":
    main()
