"""Measure how fast machines are, and fork as many children as they have cores; here both machines are this one.

`python examples/parallel/calibrate.py` prints:

    machine localhost: 2 cores, speed 0.97
    machine localhost: 2 cores, speed 1.00
    child 5 runs on localhost at speed 0.97
    child 6 runs on localhost at speed 1.00
    child 7 runs on localhost at speed 0.97
    child 8 runs on localhost at speed 1.00
    0 children left

Which speeds, differs from run to run; the ids begin at 5 because calibrating took four children.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pynickel import parallel


def main() -> None:
    for _ in range(2):
        parallel.add_remote("localhost", cores=2, command="env")
    for remote in parallel.calibrate():
        print(f"machine {remote.host}: {remote.cores} cores, speed {remote.speed:.2f}")

    children = parallel.sfork(sum(remote.cores for remote in parallel.remotes))
    children.exec("from pynickel import parallel; parallel.yield_()")
    for child in children:
        print(f"child {child.id} runs on {child.host} at speed {child.speed:.2f}")
    children.join()
    children.sync()
    print(f"{parallel.nchildren} children left")


if __name__ == "__main__":
    try:
        main()
    finally:
        parallel.close()
