"""What follows from what the ranks say: the same on every rank, in whatever order they come."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pynickel
from pynickel import RendezvousError, WaitTimeoutError
from pynickel.rendezvous import devices
from pynickel.rendezvous.rows import FAILED, GAVE_UP, GONE, READY, Row, intruder, verdict


def row(rank: int, nranks: int = 2, **more: Any) -> Row:
    """What a rank of the CPU library says."""
    said = {"launcher": "env", "host": "here", "machine": "boot", "pid": 100 + rank, "kind": "host", "version": "2.32.3", **more}
    return Row(rank=rank, nranks=nranks, **said)


def gpu(rank: int, nranks: int, uuids: str, **more: Any) -> Row:
    """What a rank of NVIDIA's library says that sees these GPUs, one letter each."""
    return row(rank, nranks, kind="nvidia", devices=tuple(uuids), **more)


def error_of(*rows: Row) -> str:
    """The text with which these rows fail."""
    found = verdict(rows)
    assert found is not None and isinstance(found.error, RendezvousError), found
    return str(found.error)


def test_complete_in_any_order() -> None:
    """Ranks that come in any order are complete with the last one, and stand in the order of ranks."""
    rows = [row(rank, 3) for rank in range(3)]
    for order in itertools.permutations(rows):
        assert verdict(order[:2]) is None
        assert verdict(order) == (rows, None, "")


def test_row_survives_the_way() -> None:
    """A row is the same after its way as bytes; long texts are cut; what is no row is refused."""
    full = row(1, 3, local_rank=0, device=2, devices=("a", "b"), unique_id="00ff", what=FAILED, text="Straße ☂", shared_gpu=True)
    assert Row.from_bytes(full.to_bytes()) == full
    assert len(Row.from_bytes(row(0, text="x" * 100000).to_bytes()).text) == 4000
    for data in (b"", b"{}", b"[1]", b"null", row(0)._replace(pid="x").to_bytes(), row(0)._replace(host=None).to_bytes(), b"[" * 50_000):
        with pytest.raises(ValueError):
            Row.from_bytes(data)


def test_duplicate_rank() -> None:
    """Scenario 32 (a): two processes that are rank 0 of 2 are named with host and pid, at once, and a third sees the same."""
    text = error_of(row(0), row(0, pid=7))
    assert "two processes say that they are rank 0 of 2" in text and "100" in text and " 7 " in text
    assert "rank 0 of 2" in error_of(row(0), row(0, pid=7), row(1))


def test_latecomer_disturbs_nobody() -> None:
    """A process that comes when all ranks are there already does not change what they have seen."""
    rows, late, ready = [row(0), row(1)], row(0, pid=7), row(0, what=READY, unique_id="ab")
    assert verdict([*rows, late]) == (rows, None, "")
    assert verdict([*rows, late, late._replace(what=GONE), ready, row(1, what=GONE)]) == (rows, None, "ab")
    assert "another process is rank 0 of 2" in str(intruder(late, rows))


def test_end_between_coming_and_the_id() -> None:
    """When one of the complete ranks ends before rank 0 has made the id, or rank 0 cannot make it, all are told."""
    for last in (row(1, what=GONE, text="ended"), row(0, what=FAILED, text="cannot go on")):
        assert str(last.rank) in error_of(row(0), row(1), last)


def test_world_sizes() -> None:
    """Scenario 32 (b): world 2 against world 3 is told with the table of all who have come."""
    text = error_of(row(0, 2), row(2, 3))
    assert "disagree about their number: 2 or 3?" in text and text.count("here") == 2


def test_versions_and_kinds() -> None:
    """Scenario 73: ranks with different versions, or different libraries, are told before the library's init."""
    for other in ({"version": "2.18.3"}, {"kind": "nvidia"}):
        text = error_of(row(0), row(1, **other))
        assert (
            "different libraries" in text
            and "host 2.32.3" in text
            and " ".join({"kind": "host", "version": "2.32.3", **other}.values()) in text
        )


def test_cpu_library_on_several_machines() -> None:
    """Without GPUs on several hosts every rank is told that the CPU library serves one machine, and what serves more."""
    text = error_of(row(0), row(1, machine="other", host="there"))
    assert "the CPU library serves one machine" in text and "MPI" in text and "there" in text
    assert verdict([gpu(0, 2, "a"), gpu(1, 2, "b", machine="other", host="there")]).error is None  # type: ignore[union-attr]


def test_failing_rank() -> None:
    """A rank that cannot go on, or is gone, decides for all, whoever else has come."""
    assert (
        error_of(row(1), row(0, what=FAILED, text="cannot go on: OSError: full"))
        == "rank 0 of 2 (here, pid 100) cannot go on: OSError: full"
    )
    assert "rank 1 of 2 (here, pid 101) ended" in error_of(row(1), row(1, what=GONE, text="ended"))


def test_giving_up() -> None:
    """Scenario 32 (d): a rank that gives up names the missing ranks to all; when the last one came before that, all go on."""
    rows = [row(0, 3), row(1, 3), row(0, 3, what=GAVE_UP, text="gave up after 1 s")]
    found = verdict(rows)
    assert found is not None and isinstance(found.error, WaitTimeoutError) and found.error.missing == (2,)
    assert str(found.error).startswith("rank 0 of 3 gave up after 1 s; missing: rank 2\n")
    assert verdict([*rows[:2], row(2, 3), rows[2]]).error is None  # type: ignore[union-attr]


def test_devices_from_local_ranks() -> None:
    """The device is the one asked for, the only visible one, or the one of the local rank, counted by host where nobody tells it."""
    rows = [gpu(0, 4, "ab"), gpu(1, 4, "cd", host="there"), gpu(2, 4, "ab"), gpu(3, 4, "cd", host="there")]
    assert [devices.device(each, rows) for each in rows] == [0, 0, 1, 1] and devices.conflict(rows) is None
    told = [gpu(0, 2, "ab", local_rank=1), gpu(1, 2, "ab", local_rank=0)]
    assert [devices.device(each, told) for each in told] == [1, 0]
    assert devices.device(gpu(1, 2, "a", local_rank=1), []) == 0 and devices.device(gpu(0, 2, "abc", device=2, local_rank=0), []) == 2


def test_one_gpu_for_two_ranks() -> None:
    """Two ranks on one GPU, by UUID and not by number, is a table with both remedies; parts of GPUs and NCCL 2.30's sharing are allowed."""
    same = [gpu(0, 3, "a", local_rank=0), gpu(1, 3, "b", local_rank=1), gpu(2, 3, "a", local_rank=2)]
    text = error_of(*same)
    assert "ranks 0 and 2 would use the same GPU" in text and "NCCL_MULTI_RANK_GPU_ENABLE=1" in text and "CUDA_VISIBLE_DEVICES" in text
    header, *lines = text.splitlines()[1:]
    assert header.split()[-5:] == ["local", "rank", "device", "visible", "uuid"] and [line.split()[-1] for line in lines] == ["a", "b", "a"]
    assert verdict([each._replace(shared_gpu=True) for each in same]).error is None  # type: ignore[union-attr]
    assert devices.may_share({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, (2, 30, 7))
    assert not devices.may_share({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, (2, 29, 2)) and not devices.may_share({}, (2, 32, 3))


def test_gpu_that_is_not_there() -> None:
    """More ranks on a machine than it has GPUs is a table that names the ranks too many."""
    text = error_of(*[gpu(rank, 3, "ab", local_rank=rank) for rank in range(3)])
    assert "rank 2 would use a GPU that is not there" in text and text.splitlines()[-1].split()[-1] == "none"


class FakeDriver:
    """What of libcuda is asked for UUIDs: two GPUs, or a part of one, which only the newer function tells apart."""

    def __init__(self, newer: bool, code: int = 0) -> None:
        self.code = code
        if newer:
            self.cuDeviceGetUuid_v2 = self.cuDeviceGetUuid

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return self.code

    def cuDeviceGetUuid(self, uuid: Any, device: int) -> int:
        uuid._obj[:] = bytes([device] * 16)
        return 0


def test_uuids_of_visible_gpus(monkeypatch: pytest.MonkeyPatch, recorder_path: Path) -> None:
    """With NVIDIA's library a rank tells the UUIDs of the GPUs that CUDA shows it; with the CPU library, or without a driver, none."""
    nvidia = pynickel.load(recorder_path)
    for newer in (True, False):
        monkeypatch.setattr(devices.driver, "driver", lambda newer=newer: FakeDriver(newer))
        assert devices.visible(nvidia) == ("00" * 16, "01" * 16) and devices.visible(pynickel.load("host")) == ()
    monkeypatch.setattr(devices.driver, "driver", lambda: FakeDriver(True, 100))
    with pytest.raises(pynickel.CudaError, match="cannot be counted: CUresult 100"):
        devices.visible(nvidia)
    monkeypatch.setattr(devices.driver, "driver", lambda: None)
    assert devices.visible(nvidia) == ()


def test_cpu_library_on_two_machines(tmp_path: Path) -> None:
    """Without GPUs, ranks that the CPU library cannot bring together (a pid namespace stands for a machine) are all told so at once."""
    apart = ["unshare", "--pid", "--fork"]
    if subprocess.run([*apart, "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("no pid namespace can be had: unshare --pid is not permitted")
    program = "from pynickel import rendezvous\nrendezvous.init(timeout=20)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYNICKEL_RENDEZVOUS": str(tmp_path), "WORLD_SIZE": "2"}
    began = time.monotonic()
    ranks = [
        subprocess.Popen([*before, sys.executable, "-c", program], env={**env, "RANK": str(number)}, stderr=subprocess.PIPE, text=True)
        for number, before in enumerate(([], apart))
    ]
    try:
        for process in ranks:
            said = process.communicate(timeout=30)[1]
            assert process.returncode == 1 and "the CPU library serves one machine" in said and said.count("host 2.32.3") == 2
    finally:
        for process in ranks:
            process.kill()
            process.wait(5)
    assert time.monotonic() - began < 15
