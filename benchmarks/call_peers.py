"""What another binding adds to a call: run by its own interpreter, which needs NumPy but not pynickel; prints JSON.

    LD_LIBRARY_PATH=FOLDER_OF_LIBRARY python call_peers.py nccl4py|cupy LIBRARY ROUNDS
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import timing

Found = tuple[str, dict[str, str], dict[str, Any], str]


def main() -> None:
    """Measure one binding beside ctypes, and how long its import takes."""
    name, library, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    array = np.ones(1024, np.float32)
    title, statements, names, module = {"nccl4py": nccl4py, "cupy": cupy}[name](array)
    raw, more = timing.raw_ctypes(library, array.ctypes.data)
    times = timing.shortest({"": raw, **statements}, {**names, **more}, rounds)
    rows = [{"what": label, "ns": ns, "ratio": ns / times[""]} for label, ns in times.items() if label]
    (milliseconds,) = timing.import_times(sys.executable, [f"import {module}"], 3)
    print(json.dumps({"title": title, "rows": rows, "import_ms": milliseconds}))


def nccl4py(array: Any) -> Found:
    """NVIDIA's binding. Its Communicator asks the CUDA driver for the device; here, where there may be none, it is told the array's."""
    import nccl.core
    from nccl.bindings import nccl as bindings
    from nccl.core.buffer import NcclBuffer

    comm = nccl.core.Communicator.init(2, 0, nccl.core.get_unique_id())
    comm._device = SimpleNamespace(device_id=NcclBuffer(array).device_id)
    statements = {
        "bindings.all_reduce, ready pointers": "bindings.all_reduce(address, address, 1024, 7, 0, handle_of, 0)",
        "Communicator.allreduce, array in place": "comm.allreduce(array, array, SUM)",
    }
    names = {"bindings": bindings, "comm": comm, "handle_of": comm._comm, "array": array, "SUM": nccl.core.SUM}
    return f"nccl4py {nccl.core.get_version().nccl4py}", statements, names, "nccl.core"


def cupy(array: Any) -> Found:
    """CuPy's, which takes pointers."""
    import cupy
    from cupy.cuda import nccl

    comm = nccl.NcclCommunicator(2, nccl.get_unique_id(), 0)
    statements = {"NcclCommunicator.allReduce, ready pointers": "comm.allReduce(address, address, 1024, 7, 0, 0)"}
    return f"CuPy {cupy.__version__}", statements, {"comm": comm}, "cupy"


if __name__ == "__main__":
    main()
