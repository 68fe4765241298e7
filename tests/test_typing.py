"""Programs of users under mypy --strict: right ones pass with the types that one expects, wrong ones are told; stubs fit the code."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pynickel

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # without a cache mypy takes its time

# What stands behind `# type:` is what mypy reveals, what stands behind `# error:` is the kind of mistake that it finds.
PROGRAM = """
import numpy as np
import pynickel
from numpy.typing import NDArray
from pynickel import Communicator, Config, Plan, UniqueId, group, parallel

Floats = NDArray[np.float32]

def mean(comm: Communicator, mine: Floats, room: Floats) -> Floats:
    return comm.all_reduce(comm.all_reduce(mine), room, op="avg")

unique_id = UniqueId.create("host")
reveal_type(unique_id)  # type: UniqueId
reveal_type(bytes(unique_id))  # type: bytes
config = Config(blocking=True, netName="Socket")
with Communicator(1, unique_id, 0, config=config, library="host", timeout=5, name="mine") as comm:
    reveal_type(comm)  # type: Communicator
    reveal_type(comm.rank)  # type: int
    reveal_type(comm.device)  # type: int | None
    reveal_type(comm.state)  # type: str
    reveal_type(comm.library.version)  # type: tuple[int, ...]
    data = np.zeros(4, np.float32)
    comm.all_reduce(data, op=pynickel.SUM, count=4, dtype=pynickel.float32, stream=None)
    comm.all_reduce(140_000_000, 150_000_000, "max", count=np.int64(0), dtype="float32")
    reveal_type(comm.all_reduce(bytearray(8), dtype="int8"))  # type: bytearray
    reveal_type(comm.all_reduce(140_000_000, 150_000_000, count=1, dtype="float32"))  # type: int
    reveal_type(comm.broadcast(None, bytearray(8), 1, dtype="uint8"))  # type: bytearray
    reveal_type(comm.bcast(bytearray(8)))  # type: bytearray
    reveal_type(comm.all_gather([1.0], bytearray(8)))  # type: bytearray
    reveal_type(comm.recv(bytearray(8), 0))  # type: bytearray
    reveal_type(comm.all_gather_v(data, bytearray(8), [2]))  # type: bytearray
    comm.send_recv(data, 0, np.zeros(4, np.float32), 0)
    reveal_type(comm.split(0))  # type: Communicator | None
    reveal_type(comm.duplicate())  # type: Communicator
    reveal_type(comm.properties().rank)  # type: int
    reveal_type(comm.memory_stats().total)  # type: int
    with comm.pre_mul_sum(0.5, "float32") as half:
        comm.all_reduce(data, op=half)
    plan = Plan(comm)
    reveal_type(plan.all_reduce(bytearray(8), op="max"))  # type: bytearray
    reveal_type(plan.reduce_scatter(data, bytearray(8)))  # type: bytearray
    plan.launch()
    with group() as queued:
        comm.all_reduce(data)
        reveal_type(queued.simulate())  # type: float
    comm.close(timeout=1)
try:
    pynickel.load("/no/such/file")
except pynickel.LibraryNotFoundError as error:
    reveal_type(error.code)  # type: int | None
except pynickel.WaitTimeoutError as error:
    reveal_type(error.missing)  # type: tuple[int, ...]
reveal_type(pynickel.float32)  # type: DataType
reveal_type(pynickel.float32.itemsize)  # type: int
reveal_type(pynickel.load("host").functions[0].since)  # type: str
reveal_type(parallel.nchildren)  # type: int
reveal_type(pynickel.address("ncclAllReduce"))  # type: int

Communicator(1, "not an id", 0)  # error: arg-type
Communicator(1, unique_id)  # error: call-arg
comm.all_reduce()  # error: call-arg
comm.allreduce(data)  # error: attr-defined
comm.barrier(timeout="soon")  # error: arg-type
comm.rank = 3  # error: misc
plan.all_reduce(data, root=0)  # error: call-arg
Config(blocking=True, bloking=False)  # error: call-arg
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that tells mypy to see this checkout, and not to read the large packages that it can use; a cache for these tests."""
    tmp_path = tmp_path_factory.mktemp("mypy")
    lines = ["[mypy]", f"mypy_path = {ROOT}", f"cache_dir = {tmp_path / 'cache'}", "ignore_missing_imports = true"]
    for package in ("torch", "cupy", "cuda", "mpi4py", "sklearn"):
        lines += [f"[mypy-{package}.*]", "follow_imports = skip"]
    file = tmp_path / "mypy.ini"
    file.write_text("\n".join(lines))
    return str(file)


def mypy(*arguments: str, folder: Path) -> str:
    """What mypy prints."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL)
    assert done.stderr == ""
    return done.stdout


def test_program_of_a_user(tmp_path: Path, settings: str) -> None:
    """The types of the public API are those that a reader expects, and mistakes are found without running anything."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    said: dict[int, list[str]] = {}
    for line in mypy("mypy", "--strict", "--config-file", settings, "program.py", folder=tmp_path).splitlines():
        if found := re.match(r"program\.py:(\d+): (\w+): (.*)", line):
            said.setdefault(int(found[1]), []).append(f"{found[2]}: {found[3]}")
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        here = " ".join(said.pop(number, []))
        if expected := re.search(r"  # type: (.+)$", line):
            revealed = re.sub(r"\w+(\.\w+)*\.(?=\w)", "", here.partition('"')[2].rpartition('"')[0])
            assert revealed == expected[1], (line, here)
        elif expected := re.search(r"  # error: (.+)$", line):
            assert f"[{expected[1]}]" in here, (line, here)
        else:
            assert here == "", (line, here)
    assert said == {}


def test_stub_of_the_extension(settings: str) -> None:
    """The stub of the extension has the names and signatures that are there at run time."""
    said = mypy("mypy.stubtest", "pynickel._nccl", "--mypy-config-file", settings, folder=ROOT)
    assert said.startswith("Success"), said


def test_stub_of_the_package() -> None:
    """The stub of the package has its public names and no others, each from the module that has it."""
    found = {}
    for line in ast.parse((ROOT / "pynickel" / "__init__.pyi").read_text()).body:
        if isinstance(line, ast.ImportFrom):
            found |= {alias.asname: line.module for alias in line.names}
    assert found == {name: home for home, names in pynickel.HOMES.items() for name in names} | dict.fromkeys(pynickel.MODULES)
