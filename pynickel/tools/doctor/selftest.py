"""The proof of the pudding: two ranks and one all-reduce on the library that would be used."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from typing import Any

from ...errors import NCCLError
from ...library import Library
from .finding import OK, PROBLEM, Finding

LIMIT = 20.0  # seconds
COUNT = 1024


def check(library: Library) -> Finding:
    """Whether collectives work here: two processes on the CPU library; with a GPU, one rank on the first."""
    begin = time.monotonic()
    try:
        how = on_host(library) if library.kind == "host" else on_gpu(library)
    except Exception as error:  # whatever goes wrong is what the user wants to know
        first = str(error).strip() or type(error).__name__
        return Finding(PROBLEM, "self-test", f"an all-reduce failed: {first}", "the findings above say what may be the cause")
    return Finding(OK, "self-test", f"{how} in {time.monotonic() - begin:.1f} s")


def on_host(library: Library) -> str:
    """Two fresh processes add up what each has."""
    from ... import testing

    sums = testing.run(2, add, COUNT, timeout=LIMIT)
    if sums != [[3.0] * COUNT] * 2:
        raise NCCLError(f"the sums are wrong: {sums!r:.100}")
    return f"2 processes, an all-reduce of {COUNT} floats, right on both"


def add(comm: Any, count: int) -> Any:
    """One rank's share."""
    import numpy

    return comm.all_reduce(numpy.full(count, comm.rank + 1, numpy.float32)).tolist()


def on_gpu(library: Library) -> str:
    """One rank on the current GPU; more would need more GPUs."""
    import numpy

    from ... import driver
    from ...communicator import Communicator
    from ...memory import mem_alloc
    from ...unique_id import UniqueId

    driver.use_device(0)
    with Communicator(1, UniqueId.create(library), 0, library=library, timeout=LIMIT) as comm:
        data, memory = numpy.full(COUNT, 3, numpy.float32), mem_alloc(4 * COUNT, library=library)
        driver.copy(memory.address, data.ctypes.data, data.nbytes)
        comm.all_reduce(memory.address, count=COUNT, dtype="float32")
        comm.wait()
        driver.copy(data.ctypes.data, memory.address, data.nbytes)
    if not (data == 3).all():
        raise NCCLError(f"the sum is wrong: {data[:4]}")
    return f"1 rank on GPU 0, an all-reduce of {COUNT} floats, right"
