"""Four children on this machine: a thousand times meet, send each a random matrix, receive an answer from each.

`python examples/parallel/local.py` prints:

    4 children forked, ids 1 2 3 4
    child 1 received a (100, 100) matrix of float64 and the text 'a table of several things'
    child 2 received a (100, 100) matrix of float64 and the text 'a table of several things'
    child 3 received a (100, 100) matrix of float64 and the text 'a table of several things'
    child 4 received a (100, 100) matrix of float64 and the text 'a table of several things'
    1000 round trips to 4 children, 1.55 ms each
    0 children left
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time

import numpy as np

from pynickel import parallel

ROUNDS = 1000


def answer() -> None:
    """What a child does: until the parent says 'break', take what it sends and answer with a text."""
    while parallel.yield_() != "break":
        table = parallel.receive()
        matrix = table["matrix"]
        parallel.send(f"received a {matrix.shape} matrix of {matrix.dtype} and the text {table['text']!r}")


def main() -> None:
    children = parallel.nfork(4)
    print(f"{parallel.nchildren} children forked, ids", *parallel.children)
    children.exec(answer)

    begun = time.perf_counter()
    for _ in range(ROUNDS):
        children.join("go on")
        children.send({"matrix": np.random.rand(100, 100), "text": "a table of several things"})
        answers = children.receive()
    each = (time.perf_counter() - begun) / ROUNDS

    for id, text in answers.items():
        print(f"child {id} {text}")
    print(f"{ROUNDS} round trips to {len(children)} children, {1e3 * each:.2f} ms each")
    children.join("break")
    children.sync()
    print(f"{parallel.nchildren} children left")


if __name__ == "__main__":
    try:
        main()
    finally:
        parallel.close()  # whatever happens, no child stays behind
