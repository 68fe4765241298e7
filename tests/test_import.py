"""`import pynickel` costs next to nothing and needs nothing; public names come when they are used."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pynickel

ROOT = Path(pynickel.__file__).parent


def python(code: str, *flags: str, **env: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT.parent, env=env or None)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_import_loads_nothing() -> None:
    """Importing brings no third-party module, no heavy module of the standard library, and maps no shared object."""
    code = (
        "import sys; before = set(sys.modules); import pynickel; print(*sorted(set(sys.modules) - before));"
        "print([line for line in open('/proc/self/maps') if 'nccl' in line or 'nickel' in line])"
    )
    modules, mapped = python(code, PATH="/usr/bin").strip().split("\n")
    heavy = {"numpy", "click", "cloudpickle", "psutil", "dataclasses", "importlib.metadata", "logging", "ctypes", "enum", "typing"}
    assert not heavy & set(modules.split()), modules
    assert mapped == "[]"


def test_import_is_fast() -> None:
    """Scenario 75: Importing takes less than 60 ms more than starting Python; of a core's time, so that other programs do not count."""
    times = []
    for _ in range(3):
        code = "import time; t = time.process_time(); import pynickel; print(time.process_time() - t)"
        times.append(float(python(code, PATH="/usr/bin")))
    assert min(times) < 0.060


def test_import_time_report() -> None:
    """`python -X importtime -c 'import pynickel'` has neither NumPy, torch, CuPy, mpi4py nor CUDA in it, and less than 60 ms."""
    totals = []
    for _ in range(3):  # the best of them: an import may wait for its core
        told = python("import pynickel", "-X", "importtime").splitlines()
        lines = [line.split("|") for line in told if line.startswith("import time:")]
        totals += [int(line[1]) for line in lines if line[2].strip() == "pynickel"]
    names = {line[2].strip() for line in lines}
    absent = {"numpy", "torch", "cupy", "mpi4py", "cuda", "cffi"}
    assert "pynickel" in names and "pynickel._nccl" not in names and not absent & {name.split(".")[0] for name in names}
    assert len(totals) == 3 and min(totals) < 60_000  # microseconds


def test_arrays_do_not_need_numpy_first() -> None:
    """A communicator works on other buffers without NumPy being loaded."""
    code = (
        "import sys, array, pynickel as p\n"
        "with p.Communicator(1, p.UniqueId.create('host'), 0, library='host') as c:\n"
        "    print(c.all_reduce(array.array('f', [1, 2])), 'numpy' in sys.modules)"
    )
    assert "False" in python(code, PATH="/usr/bin")


def test_public_names_exist_and_are_documented() -> None:
    """Every public name can be had, is listed by dir(), and classes and functions have a docstring that ends with a period."""
    for name in pynickel.__all__:
        value = getattr(pynickel, name)
        assert name in dir(pynickel)
        if callable(value) and not isinstance(value, int):
            first = (value.__doc__ or "").split("\n\n")[0]
            assert first.endswith("."), (name, first)


def test_stub_names_the_same_things() -> None:
    """The stub for type checkers and the package have the same public names."""
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    stub = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert stub == set(pynickel.__all__)


def test_unknown_name() -> None:
    """A name that does not exist is an AttributeError, so hasattr works."""
    assert not hasattr(pynickel, "all_the_things")
