"""Fork four children, collect what they measured, wait until they are gone; then the same again.

`python examples/parallel/fork_and_sync.py` prints:

    round 1: 4 children
    child 1 counted to a million in 0.05 s
    child 2 counted to a million in 0.05 s
    child 3 counted to a million in 0.05 s
    child 4 counted to a million in 0.05 s
    round 1 is over: 0 children
    round 2: 4 children
    child 5 counted to a million in 0.05 s
    child 6 counted to a million in 0.05 s
    child 7 counted to a million in 0.05 s
    child 8 counted to a million in 0.05 s
    round 2 is over: 0 children
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time

from pynickel import parallel


def count() -> None:
    """What a child does: time a loop and send the seconds."""
    begun = time.perf_counter()
    for _ in range(1_000_000):
        pass
    parallel.send(time.perf_counter() - begun)


def main() -> None:
    for number in (1, 2):
        children = parallel.nfork(4)
        children.exec(count)
        print(f"round {number}: {parallel.nchildren} children")
        for id, seconds in children.receive().items():
            print(f"child {id} counted to a million in {seconds:.2f} s")
        children.sync()  # until the system has no such processes any more
        print(f"round {number} is over: {parallel.nchildren} children")


if __name__ == "__main__":
    try:
        main()
    finally:
        parallel.close()
