"""Three children on machines with two cores in all: `python examples/parallel/remote.py node1 node2` reaches these by ssh.

Without a name both cores are this machine's, and the command that reaches it is `env`. `python examples/parallel/remote.py` prints:

    3 children on machines with 2 cores: localhost localhost localhost
    child 1 is told (100, 100) and answers from process 4711
    child 2 is told (100, 100) and answers from process 4712
    child 3 is told (100, 100) and answers from process 4713
    100 round trips to 3 children, 1.24 ms each
    0 children left

and on stderr the warning that one of 3 processes must share a core. What ssh must be told otherwise goes into
--command, with {host} for the machine: --command 'ssh -p 2222 {host}'; the interpreter there into --python.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from pynickel import parallel

ROUNDS = 100


def answer() -> None:
    """What a child does, wherever it is."""
    while parallel.yield_() != "break":
        matrix = parallel.receive()
        parallel.send(f"is told {matrix.shape} and answers from process {os.getpid()}")


def main() -> None:
    options = argparse.ArgumentParser(description="Children on other machines.")
    options.add_argument("hosts", nargs="*", help="machines, each with one core; none: this one, with two")
    options.add_argument("--python", help="the interpreter on the machines (default: the path of this one)")
    options.add_argument("--command", help="what runs a program there (default: ssh)")
    given = options.parse_args()
    for host in given.hosts:
        parallel.add_remote(host, python=given.python, command=given.command)
    if not given.hosts:
        parallel.add_remote("localhost", cores=2, python=given.python, command=given.command or "env")

    children = parallel.sfork(3)
    cores = sum(remote.cores for remote in parallel.remotes)
    print(f"{len(children)} children on machines with {cores} cores:", *(child.host for child in children))
    children.exec(answer)
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        children.join("go on")
        children.send(np.random.rand(100, 100))
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
        parallel.close()
