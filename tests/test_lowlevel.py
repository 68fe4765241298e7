"""`from pynickel import ffi, lib`: the C API under its own names."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.c import compile_c

import pynickel
from cdef.build import Headers
from pynickel import ffi, lib


def test_all_reduce_with_nothing_else() -> None:
    """An id, a communicator, an all-reduce and the end, by C names alone."""
    uid, comm = ffi.new("ncclUniqueId *"), ffi.new("ncclComm_t *")
    pynickel.check(lib.ncclGetUniqueId(uid))
    pynickel.check(lib.ncclCommInitRank(comm, 1, uid[0], 0))
    data = np.arange(5, dtype=np.float32)
    pointer = ffi.from_buffer(data)
    assert lib.ncclAllReduce(pointer, pointer, 5, lib.ncclFloat32, lib.ncclSum, comm[0], ffi.NULL) == lib.ncclSuccess
    assert data.tolist() == [0, 1, 2, 3, 4]
    assert lib.ncclCommDestroy(comm[0]) == 0


def test_constants_need_no_library() -> None:
    """Constants are there without loading anything; the first function loads the default library."""
    code = (
        "from pynickel import lib; import pynickel.library as l\n"
        "print(lib.ncclFloat32, lib.NCCL_UNIQUE_ID_BYTES, l.default); lib.ncclGroupStart; print(l.default.kind)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["7", "128", "None", "host"], done.stderr


def test_missing_function(recorder_path: Path) -> None:
    """A function that the library lacks is a callable that raises NotAvailableError with needed and loaded version."""
    absent = pynickel.load(recorder_path).lib.nickelHostVersion
    with pytest.raises(NotImplementedError, match="nickelHostVersion needs the CPU library; 2.32.3 is loaded from"):
        absent(ffi.NULL)


@pytest.mark.parametrize("name", ["ncclNothing", "pn_open", "comm_ncclAllReduce", "printf", "__wrapped__"])
def test_unknown_name(name: str) -> None:
    """What is not part of NCCL's C API is an AttributeError."""
    with pytest.raises(AttributeError, match=name):
        getattr(lib, name)


def test_dir() -> None:
    """dir() lists functions and constants, and every one of them can be had."""
    listed = dir(lib)
    assert {"ncclAllReduce", "ncclFloat32", "NCCL_VERSION_CODE"} <= set(listed)
    assert all(hasattr(lib, name) for name in listed)


def test_get_include(tmp_path: Path) -> None:
    """The folder of get_include has an nccl.h with which a C program compiles without CUDA."""
    source = '#include <nccl.h>\nint main(void) { ncclConfig_t c = NCCL_CONFIG_INITIALIZER; return c.blocking == 1 ? ncclFloat : 0; }\n'
    compile_c(source, "-Wall", "-Werror", f"-I{pynickel.get_include()}", "-c", "-o", str(tmp_path / "x.o"), folder=tmp_path)


def test_check() -> None:
    """check raises nothing for success and "in progress", and the library's words for anything else."""
    assert pynickel.check(lib.ncclSuccess) is None and pynickel.check(lib.ncclInProgress) is None
    with pytest.raises(pynickel.InvalidArgumentError, match="ncclCommCount failed with ncclInvalidArgument .4."):
        pynickel.check(lib.ncclCommCount(ffi.NULL, ffi.NULL), "ncclCommCount")


def test_wrong_number_of_arguments() -> None:
    """A call with too few or too many arguments is told how many the C function takes and how many it was given."""
    library = pynickel.load("host")
    for function in (f for f in Headers().functions if library.has(f.name)):
        call, count = getattr(library.lib, function.name), len(function.params)
        for given in {0, count - 1, count + 1} - {count, -1}:
            with pytest.raises(TypeError, match=rf"^{function.name}(\(\))? takes {count} (positional )?arguments.*\b{given} "):
                call(*[0] * given)
                pytest.fail(function.name)
