"""An all-reduce on NCCL's C functions alone: two ranks in one process, by ncclCommInitAll and a group."""
# SPDX-License-Identifier: Apache-2.0

import os

os.environ["PYNICKEL_LIBRARY"] = "host"  # the buffers below lie in host memory; `lib` loads its library at the first call

from pynickel import ffi, lib  # noqa: E402

NRANKS = 2
COUNT = 5


def check(result: int) -> None:
    """Every function answers with a result code; anything but success ends the program with NCCL's own words."""
    if result != lib.ncclSuccess:
        text = ffi.string(lib.ncclGetErrorString(result)).decode()
        raise SystemExit(f"{text}: {ffi.string(lib.ncclGetLastError(ffi.NULL)).decode()}")


def main() -> None:
    """Rank 0 sends 1 2 3 4 5, rank 1 sends 10 20 30 40 50; both receive the sums."""
    comms = ffi.new("ncclComm_t[]", NRANKS)
    check(lib.ncclCommInitAll(comms, NRANKS, ffi.NULL))
    send = [ffi.new("float[]", [10**rank * element for element in range(1, COUNT + 1)]) for rank in range(NRANKS)]
    recv = [ffi.new("float[]", COUNT) for _ in range(NRANKS)]

    check(lib.ncclGroupStart())
    for rank in range(NRANKS):
        check(lib.ncclAllReduce(send[rank], recv[rank], COUNT, lib.ncclFloat32, lib.ncclSum, comms[rank], ffi.NULL))
    check(lib.ncclGroupEnd())

    for rank in range(NRANKS):
        print(f"rank {rank} of {NRANKS}: {list(recv[rank])}")
        check(lib.ncclCommDestroy(comms[rank]))


if __name__ == "__main__":
    main()
