"""Which library is loaded: the search order, the reasons, and errors that name every place tried."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import recorder
from helpers.c import shared_library

import pynickel
from pynickel import library, search

HOST = search.HOST_LIBRARY
WITHOUT_WHEELS = "import sys, pynickel as p, pynickel.library; sys.path = [x for x in sys.path if 'site-packages' not in x]\n"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPUs and without wishes."""
    see_gpu(monkeypatch, "")
    monkeypatch.delenv("PYNICKEL_LIBRARY")


def see_gpu(monkeypatch: pytest.MonkeyPatch, device_file: str, mapped: str = "nothing") -> None:
    """Let only this device file, and only these mapped libraries, be seen."""
    for kind, vendor in search.VENDORS.items():
        files = (device_file,) if device_file and kind == "nvidia" else ()
        monkeypatch.setitem(search.VENDORS, kind, vendor._replace(device_files=files, mapped=mapped))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def python(code: str, **env: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_host() -> None:
    """The CPU library is known by its name and says what it is."""
    found = pynickel.load("host")
    assert (found.kind, found.path, found.version) == ("host", HOST, (2, 32, 3))
    assert found.ffi is pynickel.ffi and found.has("nickelHostVersion") and not found.has("ncclNothing")


def test_path_and_kind(recorder_path: Path) -> None:
    """A path, as text or Path, loads that file; another library than ours is NVIDIA's unless it is called RCCL."""
    found = pynickel.load(recorder_path)
    assert found.path == str(recorder_path) and found.kind == "nvidia"
    assert pynickel.load(str(recorder_path)) is found and pynickel.load(found) is found


def test_rccl_by_name(tmp_path: Path) -> None:
    """A library called librccl is AMD's."""
    assert pynickel.load(recorder.build(tmp_path, name="librccl.so.1")).kind == "rccl"


def test_environment_variable(recorder_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYNICKEL_LIBRARY chooses where the program does not, and an empty one counts as none."""
    monkeypatch.setenv("PYNICKEL_LIBRARY", str(recorder_path))
    assert pynickel.load().path == str(recorder_path)
    assert pynickel.load("host").kind == "host"
    monkeypatch.setenv("PYNICKEL_LIBRARY", "")
    see_gpu(monkeypatch, "")
    assert pynickel.load().kind == "host"


def test_automatic_without_gpu(no_gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    """Without a GPU it is the CPU library, and the log says why."""
    with caplog.at_level(logging.INFO, "pynickel"):
        assert pynickel.load().kind == "host"
    assert "no GPU is visible" in caplog.text and caplog.records[-1].levelname == "INFO"


def test_automatic_with_hidden_gpu(no_gpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An empty CUDA_VISIBLE_DEVICES hides the GPUs."""
    see_gpu(monkeypatch, "/dev/null")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with caplog.at_level(logging.INFO, "pynickel"):
        assert pynickel.load().kind == "host"
    assert "CUDA_VISIBLE_DEVICES='' hides the GPUs" in caplog.text


def test_automatic_with_gpu_and_wheel(no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a visible GPU the library of an installed wheel is found in sys.path, without importing anything."""
    folder = tmp_path / "site [x]" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    path = recorder.build(folder)
    monkeypatch.syspath_prepend(str(tmp_path / "site [x]"))
    see_gpu(monkeypatch, "/dev/null")
    found = pynickel.load()
    assert found.path == str(path) and "/dev/null" in found.reason and "wheel" in found.reason
    assert "nvidia" not in sys.modules


def test_automatic_with_gpu_but_no_library(
    no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A visible GPU without NCCL gives the CPU library and one warning per process, which lists the places."""
    see_gpu(monkeypatch, "/dev/null")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setitem(search.VENDORS, "nvidia", search.VENDORS["nvidia"]._replace(file_name="libnothing-of-that-name.so.2"))
    monkeypatch.setattr(library, "warned", False)
    with caplog.at_level(logging.WARNING, "pynickel"):
        assert pynickel.load().kind == pynickel.load().kind == "host"
    assert len(caplog.records) == 1 and "libnothing-of-that-name.so.2" in caplog.text


def test_mapped_copy_comes_first(tmp_path: Path) -> None:
    """A copy that other code has loaded is taken before the one of a wheel."""
    (tmp_path / "one").mkdir()
    (tmp_path / "nvidia/nccl/lib").mkdir(parents=True)
    mapped, wheel = recorder.build(tmp_path / "one"), recorder.build(tmp_path / "nvidia/nccl/lib")
    code = f"import ctypes, pynickel as p; ctypes.CDLL({str(mapped)!r}); f = p.load('nvidia'); print(f.path); print(f.reason)"
    path, reason = python(code, PYTHONPATH=f"{tmp_path}:{Path(pynickel.__file__).parents[1]}").strip().split("\n")
    assert path == str(mapped) != str(wheel) and "already mapped" in reason


def test_loader_path(tmp_path: Path) -> None:
    """At last the loader's own search finds libnccl.so.2, and the path is that of the file really loaded."""
    path = recorder.build(tmp_path)
    assert python(WITHOUT_WHEELS + "print(p.load('nvidia').path)", LD_LIBRARY_PATH=str(tmp_path)).strip() == str(path)


def test_cpu_library_is_not_nvidia_s(tmp_path: Path) -> None:
    """The CPU library under NCCL's file name is not taken for NVIDIA's."""
    shutil.copy(HOST, tmp_path / "libnccl.so.2")
    code = "try: p.load('nvidia')\nexcept p.LibraryNotFoundError as e: print(e)"
    found = python(WITHOUT_WHEELS + code, LD_LIBRARY_PATH=str(tmp_path))
    assert "is a host library" in found


def bad_library(kind: str, folder: Path) -> str:
    """A path that is no NCCL library."""
    path = folder / f"{kind}.so"
    if kind == "directory":
        path.mkdir()
    elif kind == "text":
        path.write_text("this is not a library\n" * 100)
    elif kind == "truncated":
        path.write_bytes(Path(HOST).read_bytes()[:9000])
    elif kind == "other":
        shared_library(path, "int something(void) { return 1; }")
    elif kind == "dependency":
        shared_library(folder / "libgone.so", "int gone(void) { return 1; }")
        shared_library(path, "int f(void) { return 1; }", f"-L{folder}", "-Wl,--no-as-needed", "-lgone")
        (folder / "libgone.so").unlink()
    elif kind == "empty":
        path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nothing", "No such file"), ("directory", "is a directory"), ("text", "invalid ELF header"), ("truncated", "truncated"),
        ("other", "exports no ncclCommInitRank"), ("dependency", "libgone.so: cannot open"), ("empty", "file too short"),
    ],
)  # fmt: skip
def test_not_loadable(kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 70: Whatever the path points to, the error has a line per candidate with the loader's words, and is an ImportError."""
    path = bad_library(kind, tmp_path)
    monkeypatch.setenv("PYNICKEL_LIBRARY", path)
    with pytest.raises(pynickel.LibraryNotFoundError, match=words) as caught:
        pynickel.load()
    assert isinstance(caught.value, ImportError)
    assert any(path in line and words in line for line in str(caught.value).split("\n")) and "PYNICKEL_LIBRARY" in str(caught.value)
    assert pynickel.load("host").kind == "host"


@pytest.mark.parametrize("wish", [3, b"host", ["host"], True])
def test_wrong_wish(wish: Any) -> None:
    """Anything but a kind, a path or None is a TypeError that says what is possible."""
    with pytest.raises(TypeError, match="'host', 'nvidia', 'rccl', a path or None"):
        pynickel.load(wish)


@pytest.mark.parametrize(("code", "version"), [(2408, (2, 4, 8)), (20906, (2, 9, 6)), (23203, (2, 32, 3)), (29999, (2, 99, 99))])
def test_version(code: int, version: tuple[int, ...]) -> None:
    """Both codings of NCCL's version are read."""
    assert library.version_tuple(code) == version


def test_old_library(tmp_path: Path) -> None:
    """Scenario 71: With an old library old functions work and newer ones raise the sentence with both versions and the path."""
    path = recorder.build(tmp_path, only=lambda f: tuple(map(int, f.since.split("."))) <= (2, 4, 8))
    recorder.Recorder(path).set("set_version", 2408)
    found = pynickel.load(path)
    made = pynickel.Communicator(4, bytes(range(128)), 1, library=found)
    made.all_reduce(bytearray(8))
    for name, call in {"ncclSend": lambda: made.send(bytearray(8), 1), "ncclCommFinalize": made.finalize}.items():
        since = {f.name: f.since for f in found.functions}[name]
        with pytest.raises(pynickel.NotAvailableError, match=f"{name} needs NCCL {since}; 2.4.8 is loaded from {path}"):
            call()
    with pytest.raises(pynickel.NotAvailableError, match=r"timeout= needs a non-blocking communicator: .*2\.14\.3"):
        pynickel.Communicator(4, bytes(range(128)), 1, library=found, timeout=1)
    made.close()


def test_far_newer_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 71: A library newer than the declarations works, with one debug line."""
    path = recorder.build(tmp_path)
    recorder.Recorder(path).set("set_version", 29999)
    with caplog.at_level(logging.DEBUG, "pynickel"):
        found = pynickel.load(path)
        pynickel.load(path)
    assert found.version == (2, 99, 99) and [r.levelname for r in caplog.records].count("DEBUG") == 1
    pynickel.Communicator(4, bytes(range(128)), 1, library=found).close()


def test_functions() -> None:
    """The table of functions has every function with its release and whether it is there."""
    table = {f.name: f for f in pynickel.load("host").functions}
    assert table["ncclAlltoAll"] == ("ncclAlltoAll", "2.28.3", True)
    assert table["nickelErrorKind"] == ("nickelErrorKind", "host", True)
    assert len(table) > 100


def test_address() -> None:
    """An address is that of the C function: called through ctypes it answers; unknown and absent names are errors."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(pynickel.address("ncclGetVersion"))
    version = ctypes.c_int()
    assert function(ctypes.byref(version)) == 0 and version.value == 23203
    with pytest.raises(ValueError, match="'ncclNothing' is no function"):
        pynickel.address("ncclNothing")


def test_absent_address(recorder_path: Path) -> None:
    """The address of a function that the library lacks is NotAvailableError."""
    with pytest.raises(pynickel.NotAvailableError, match="nickelErrorKind needs the CPU library"):
        pynickel.load(recorder_path).address("nickelErrorKind")


def test_libraries_side_by_side(recording: recorder.Recorder, comm: pynickel.Communicator) -> None:
    """Two libraries work in one process; each communicator belongs to the one that made it."""
    other = pynickel.Communicator(4, bytes(range(128)), 1, library=recording.path)
    mine, theirs = bytearray(b"\1\2"), bytearray(b"\1\2")
    comm.all_reduce(mine)
    other.all_reduce(theirs)
    assert [name for name in recording.names if name == "ncclAllReduce"] == ["ncclAllReduce"]
    other.close()


def test_global_library_captures_nothing(tmp_path: Path) -> None:
    """Another libnccl loaded RTLD_GLOBAL first does not get the calls meant for the CPU library."""
    other = recorder.build(tmp_path)
    code = (
        f"import ctypes; other = ctypes.CDLL({str(other)!r}, ctypes.RTLD_GLOBAL)\n"
        "import pynickel as p, numpy as np\n"
        "with p.Communicator(1, p.UniqueId.create('host'), 0, library='host') as c:\n"
        "    x = np.arange(3.0); y = np.zeros(3); c.all_reduce(x, y); c.gather(x, y); print(y.tolist())\n"
        "print(ctypes.c_int.in_dll(other, 'log_length').value)"
    )
    assert python(code).split("\n")[:2] == ["[0.0, 1.0, 2.0]", "0"]


def test_default_library(recorder_path: Path) -> None:
    """load never changes the default; set_default_library does, but only before it is in use."""
    code = (
        f"import pynickel as p; other = {str(recorder_path)!r}\n"
        "p.load(other); p.set_default_library(other); print(p.get_library().path); p.set_default_library(other)\n"
        "print(p.lib.ncclFloat32, p.get_library() is p.load(other))\n"
        "try: p.set_default_library('host')\nexcept p.InvalidUsageError as e: print(e)\nprint(p.get_library().path)"
    )
    lines = python(code).strip().split("\n")
    assert lines[0] == lines[-1] == str(recorder_path) and lines[1] == "7 True" and "in use already" in lines[2]
    assert python(f"import pynickel as p; p.load({str(recorder_path)!r}); print(p.get_library().kind)").strip() == "host"


def test_threads_load_one_default() -> None:
    """Eight threads that ask at once get the same default."""
    code = (
        "import threading, pynickel as p; found = []\n"
        "ts = [threading.Thread(target=lambda: found.append(p.get_library())) for _ in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; print(len(found), len(set(map(id, found))))"
    )
    assert python(code).strip() == "8 1"
