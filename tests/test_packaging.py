"""setup.py says in one sentence what is missing; sdist and wheel are complete; one wheel works on several Pythons."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.c import ROOT

NO_HEADERS = "import sysconfig as s; o = s.get_path; s.get_path = lambda n, *a, **k: '/nonexistent' if n == 'include' else o(n, *a, **k)"
PYTHONS = ("3.10", "3.12", "3.13")
SETUP = "import runpy, sys; sys.argv = ['setup.py', '--version']; {patch}; runpy.run_path('setup.py', run_name='__main__')"


def run(command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None, limit: float = 50) -> subprocess.CompletedProcess[str]:
    # Other tests point PYNICKEL_LIBRARY and PYTHONPATH where they need them; what is installed must do without.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYNICKEL_", "NICKEL_", "PYTHON"))}
    return subprocess.run(command, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=limit)


def succeed(command: list[str], cwd: Path, limit: float = 50) -> str:
    done = run(command, cwd=cwd, limit=limit)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def setup(patch: str = "pass", **env: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", SETUP.format(patch=patch)], env=env)


@pytest.mark.parametrize(("patch", "env", "words"), [
    ("pass", {"CC": "/nonexistent/cc"}, ["C compiler", "CC=/nonexistent/cc", "install gcc"]),
    ("pass", {"PATH": "/nonexistent"}, ["C compiler", "install gcc"]),
    ("pass", {"CC": "false"}, ["C compiler that works", "false cannot build", "exit status 1", "build-essential"]),
    ("pass", {"CC": "gcc -nostdinc"}, ["C compiler that works", "pthread.h", "glibc-devel"]),
    ("pass", {"CC": sys.executable}, ["C compiler that works", "install gcc"]),
    (NO_HEADERS, {}, ["/nonexistent/Python.h", "python3-dev", "python3-devel"]),
    ("sys.platform = 'darwin'", {}, ["Linux", "WSL2", "darwin"]),
    ("import shutil; sys.platform = 'win32'", {}, ["Linux", "WSL2", "win32"]),
], ids=["no such CC", "no compiler", "CC fails", "no headers", "CC is no compiler", "no Python.h", "macOS", "Windows"])
def test_missing_requirement(patch: str, env: dict[str, str], words: list[str]) -> None:
    """Without what building needs setup.py ends with status 1 and one sentence that says what to install, and nothing else."""
    done = setup(patch, **env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n"), done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_version_has_one_home() -> None:
    """setup.py, the package and the file that holds it tell the same version."""
    written = run([sys.executable, "-c", "from pynickel._version import __version__; print(__version__)"]).stdout.strip()
    assert setup().stdout.strip().splitlines()[-1] == written
    assert f"## {written}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_failed_compile_fails_the_build(tmp_path: Path) -> None:
    """When a file of the CPU library does not compile, the build ends with an error that shows the compiler's command."""
    copy_sources(tmp_path)
    for source in (tmp_path / "host").glob("*.c"):  # these compile
        source.unlink()
    (tmp_path / "host" / "broken.c").write_text("int broken(void) { return undefined_name; }\n")
    done = run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=tmp_path)
    assert done.returncode == 1
    assert "undefined_name" in done.stderr and "CPU library could not be built" in done.stderr
    assert not (tmp_path / "pynickel" / "libnickel_host.so").exists()


def copy_sources(target: Path) -> None:
    """The tracked kind of files, without what building left behind."""
    skip = shutil.ignore_patterns("*.so", "include", "__pycache__", "*.egg-info", ".*", "build", "dist")
    for name in ("cdef", "host", "pynickel"):
        shutil.copytree(ROOT / name, target / name, ignore=skip)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, target)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of a clean copy of the sources, and the wheel that is built from that sdist."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    copy_sources(source)
    for name in ("tests", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CHANGELOG.md", source)
    # Whether what pyproject.toml names is enough to build in isolation, README's installation tells.
    succeed([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)], cwd=out, limit=240)
    return out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sdist_is_complete(built: Path) -> None:
    """The sdist has every source that building and testing need, and nothing that was built."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {n.partition("/")[2] for n in file.getnames()}
    wanted = {str(p.relative_to(ROOT)) for folder in ("cdef", "host") for p in (ROOT / folder).iterdir() if p.suffix in (".c", ".h", ".py")}
    wanted |= {"setup.py", "pyproject.toml", "LICENSE", "CHANGELOG.md", "README.md", "pynickel/_nccl.pyi", "tests/data/functions.tsv"}
    assert wanted <= names
    assert [n for n in names if n.endswith((".so", ".o", ".pyc", "/nccl.h"))] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_is_complete(built: Path) -> None:
    """The wheel serves every CPython from 3.10 and has the extension, the CPU library, nccl.h and the types, and no C sources."""
    (wheel,) = built.glob("*.whl")
    assert "-cp310-abi3-linux_" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    files = ("__init__.py", "_version.py", "_nccl.abi3.so", "_nccl.pyi", "py.typed", "libnickel_host.so", "include/nccl.h")
    assert {f"pynickel/{name}" for name in files} <= names
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"pynickel"}
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert [n for n in names if n.endswith((".c", ".tsv"))] == []


def python(version: str) -> str | None:
    """An interpreter of that version: on the path, or among pyenv's."""
    found = shutil.which(f"python{version}")
    if found and run([found, "-c", "import venv"]).returncode == 0:
        return found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(p) for p in sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)), None)


PROGRAM = """
import sys, os
import pynickel
assert os.path.dirname(pynickel.__file__).startswith(sys.prefix), pynickel.__file__
library = pynickel.load("host")
assert library.kind == "host" and library.path.startswith(sys.prefix), library.path
assert os.path.isfile(os.path.join(pynickel.get_include(), "nccl.h"))
comms = pynickel.Communicator.init_all(2, library=library)
print(library.version, [c.rank for c in comms])
for comm in comms:
    comm.abort()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", PYTHONS)
def test_wheel_on_python(built: Path, tmp_path: Path, version: str) -> None:
    """The one wheel installs into an empty environment of this Python and works there: two ranks of the CPU library, and the command."""
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"Python {version} is not on this machine")
    succeed([interpreter, "-m", "venv", "env"], cwd=tmp_path, limit=100)  # with its own pip: an older one may not run on it
    (wheel,) = built.glob("*.whl")
    bin_folder = tmp_path / "env" / "bin"
    succeed([str(bin_folder / "python"), "-m", "pip", "install", "--quiet", str(wheel)], cwd=tmp_path, limit=200)
    assert "(2, 32, 3) [0, 1]" in succeed([str(bin_folder / "python"), "-c", PROGRAM], cwd=tmp_path)
    for command in ([str(bin_folder / "pynickel")], [str(bin_folder / "python"), "-m", "pynickel"]):
        shown = succeed(command, cwd=tmp_path)
        assert "libnickel_host.so" in shown and "ncclAllReduce" in shown
