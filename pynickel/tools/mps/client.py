"""Open, count and select the GPUs of a group, as a client would; run as a program of its own, since a wrong set-up may block it.

    python -m pynickel.tools.mps.client EXPECTED     # prints what is wrong; exit status 1 then
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import sys

MEANINGS = {
    2: "out of memory: too many clients, or a server that holds memory (pynickel mps status)",
    46: "the device is busy: in exclusive mode with another process on it, outside MPS",
    100: "no device: CUDA_VISIBLE_DEVICES names none that the daemon offers; the daemon renumbers, so use UUIDs or unset it",
    101: "the device is not one of those that the daemon offers",
    805: "the connection to the MPS daemon failed: does it run, and are the directories those of its start?",
    806: "the MPS server and this program do not fit together",
    807: "the MPS server is not ready: another client's fault, or another user's server; wait, or look at server.log",
    808: "the MPS server has as many clients as it takes",
    809: "the MPS server has as many connections as it takes",
}


def main(expected: int) -> int:
    """Print a line for each device, or what failed."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"libcuda.so.1 cannot be loaded: {error}; install NVIDIA's driver")
        return 1
    if code := cuda.cuInit(0):
        return failed("cuInit", code)
    count = ctypes.c_int()
    if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return failed("cuDeviceGetCount", code)
    if count.value != expected:
        print(f"{count.value} devices are visible, the group has {expected}; is CUDA_VISIBLE_DEVICES set to other numbers?")
        return 1
    for index in range(count.value):
        context = ctypes.c_void_p()
        device = ctypes.c_int()
        code = cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if code or (code := cuda.cuCtxSetCurrent(context)):
            return failed(f"selecting device {index}", code)
        print(f"device {index}: opened and selected")
    return 0


def failed(what: str, code: int) -> int:
    """Say it."""
    print(f"{what} failed with CUresult {code}: {MEANINGS.get(code, 'see the logs (pynickel mps status)')}")
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
