"""Loaded libraries: which one, what it has, and why it was chosen."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
import os
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import interrupt, report, search
from ._nccl import ffi
from ._nccl import lib as c
from .errors import InvalidUsageError, LibraryNotFoundError, NotAvailableError
from .lowlevel import Functions

if TYPE_CHECKING:
    from .parameters import Parameters

KINDS = ("host", "nvidia", "rccl")
KNOWN = (c.NCCL_MAJOR, c.NCCL_MINOR, c.NCCL_PATCH)  # the release that the declarations are of
log = logging.getLogger("pynickel")


class Function(NamedTuple):
    """One function of the C API: since which NCCL it exists ("host": only in the CPU library), and whether the library has it."""

    name: str
    since: str
    present: bool


@cache
def symbols() -> dict[str, tuple[int, str]]:
    """Every function that is declared: its index in the tables, and since when it exists."""
    found = {}
    for index in range(c.pn_symbol_count()):
        symbol = c.pn_symbol_at(index)
        found[ffi.string(symbol.name).decode()] = (index, ffi.string(symbol.since).decode())
    return found


def version_tuple(code: int) -> tuple[int, int, int]:
    """NCCL's version number as a tuple: 2804 is 2.8.4, 23203 is 2.32.3."""
    major = 10000 if code >= 10000 else 1000
    return code // major, code % major // 100, code % 100


class Library:
    """One loaded NCCL library. Made by `load`, never unloaded.

    `path` is the file really loaded, `kind` "host", "nvidia" or "rccl", `version` a tuple, `reason` why it was chosen;
    `lib` has every function under its C name, bound to this library, and every constant.
    """

    def __init__(self, table: Any, reason: str) -> None:
        self.table = table
        self.path = ffi.string(c.pn_path(table)).decode(errors="surrogateescape")
        self.reason = reason
        self.ffi = ffi
        self._key: Any = None
        self._present = frozenset(name for name, (index, _) in symbols().items() if c.pn_address(table, index))
        self.lib: Any = Functions(self)
        self.kind = "host" if self.has("nickelHostVersion") else self._vendor()
        self.version = self._version()
        if self.kind == "host":
            interrupt.install(table)
        if self.version > KNOWN:
            log.debug("%s is newer than the declarations of pynickel, which are of %d.%d.%d", self.label, *KNOWN)

    def __repr__(self) -> str:
        return f"<Library {self.label}>"

    @property
    def label(self) -> str:
        """Kind, version and path in one line."""
        return f"{self.kind} library {'.'.join(map(str, self.version))}, {self.path}"

    @property
    def functions(self) -> list[Function]:
        """Every function of the C API, oldest first, with its `since` and whether it is `present` here."""
        return [Function(name, since, self.has(name)) for name, (_, since) in symbols().items()]

    @property
    def parameters(self) -> Parameters:
        """The library's parameters: what its environment variables are set to, by name; NotAvailableError before NCCL 2.30.4."""
        from .parameters import Parameters

        return Parameters(self)

    def set_encryption(self, key: str | None) -> None:
        """Communicators that this process makes from now on encrypt what goes over networks; None: they do not.

        `key`: the same secret of at least 32 bytes on all ranks. Builds without TLS fail at the next init. (ncclSetEncryption)
        """
        if key is not None and (not isinstance(key, str) or len(key.encode()) < 32):
            raise ValueError("key must be a str of at least 32 bytes, or None")
        config = ffi.new("ncclEncryptionConfig_t *", c.pn_initial_ncclEncryptionConfig_t)
        text = self._key = ffi.new("char[]", (key or "").encode())  # NCCL does not say that it copies the key
        config.mode = c.NCCL_ENCRYPTION_MODE_NONE if key is None else c.NCCL_ENCRYPTION_MODE_PSK
        config.psk = ffi.NULL if key is None else text
        self.check(c.ncclSetEncryption(self.table, config), "ncclSetEncryption")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a loaded library cannot be pickled; send its kind or path ({self.path}) and load() it on the other side")

    def has(self, name: str) -> bool:
        """Whether the library has this C function."""
        if not isinstance(name, str):
            raise TypeError(f"name must be the name of a C function, a str, not {name!r}")
        return name in self._present

    def address(self, name: str) -> int:
        """The address of a C function, for callers that need no Python: numba, Cython, JAX FFI, C; else NotAvailableError."""
        if name not in symbols():
            raise ValueError(f"{name!r} is no function of NCCL's C API up to {'.'.join(map(str, KNOWN))}")
        if not self.has(name):
            raise self.missing(name)
        return int(ffi.cast("uintptr_t", c.pn_address(self.table, symbols()[name][0])))

    def missing(self, name: str) -> NotAvailableError:
        """The error for a function that this library lacks."""
        since = symbols()[name][1] if name in symbols() else ""
        needs = "the CPU library" if since == "host" else f"NCCL {since or 'of another version'}"
        version = ".".join(map(str, self.version))
        message = f"{name} needs {needs}; {version} is loaded from {self.path}"
        if since not in ("", "host") and self.version >= tuple(map(int, since.split("."))):
            message += ", which is new enough but does not export it"
        return NotAvailableError(message, function=name, library_path=self.path, library_version=self.version)

    def check(self, code: int, function: str = "the call") -> None:
        """Raise the exception that a result code stands for; success and "in progress" raise nothing."""
        if code not in (c.ncclSuccess, c.ncclInProgress):
            interrupt.reraise()
            raise report.failure(code, function, self)

    def _vendor(self) -> str:
        return "rccl" if "rccl" in os.path.basename(self.path) else "nvidia"

    def _version(self) -> tuple[int, ...]:
        code = ffi.new("int *")
        if c.ncclGetVersion(self.table, code) != c.ncclSuccess:
            return (0, 0, 0)
        return version_tuple(code[0])


lock = threading.RLock()
loaded: dict[Any, Library] = {}
default: Library | None = None
warned = False
# The thread that held the lock may not exist in a forked child.
os.register_at_fork(after_in_child=lambda: globals().update(lock=threading.RLock()))


def load(library: str | os.PathLike[str] | Library | None = None) -> Library:
    """A library by kind ("host", "nvidia", "rccl"), by path, or, with None, by PYNICKEL_LIBRARY or what this machine has.

    Loading the same file again gives the same object. The default of `get_library` stays what it is. LibraryNotFoundError:
    its text lists every place that was tried, with the loader's own words.
    """
    if isinstance(library, Library):
        return library
    if library is None and (named := os.environ.get("PYNICKEL_LIBRARY")):
        return _load(named, f"PYNICKEL_LIBRARY={named}")
    if library is None:
        return _automatic()
    if not isinstance(library, (str, os.PathLike)):
        raise TypeError(f"library must be 'host', 'nvidia', 'rccl', a path or None, not {library!r}")
    return _load(os.fspath(library), "asked for by the program")


def get_library() -> Library:
    """The default library, loaded on first use; LibraryNotFoundError as for `load`."""
    global default
    with lock:
        if default is None:
            default = load()
        return default


def set_default_library(library: str | os.PathLike[str] | Library) -> Library:
    """Make a library the default, before anything has used the default; later only the same one again, else InvalidUsageError."""
    global default
    with lock:
        wanted = load(library)
        if default is not None and default is not wanted:
            raise InvalidUsageError(
                f"the default library is in use already: {default.label}. Call set_default_library before anything that uses "
                f"it, or give this one by library=: {wanted.label}"
            )
        default = wanted
        return wanted


def check(code: int, function: str = "the call", library: Library | None = None) -> None:
    """Raise the exception that a result code of the low-level functions stands for, with the library's own words."""
    if not isinstance(function, str):
        raise TypeError(f"function must be the name of what was called, a str, not {function!r}")
    if code != c.ncclSuccess:
        (library or get_library()).check(code, function)


def address(name: str, library: Library | None = None) -> int:
    """The address of a C function, by default of the default library; ValueError for a name that is none."""
    return (library or get_library()).address(name)


def get_include() -> str:
    """The folder with nccl.h, for C programs that need no CUDA."""
    return os.path.join(search.HERE, "include")


def _automatic() -> Library:
    global warned
    kind, seen = search.visible_gpu()
    if not kind:
        return _load("host", f"{seen}, so the CPU library")
    try:
        return _load(kind, seen)
    except LibraryNotFoundError as error:
        if not warned:
            warned = True
            log.warning("%s, but no NCCL for it was found; using the CPU library. %s", seen, error)
        return _load("host", f"{seen}, but no NCCL for it was found, so the CPU library")


def _load(name: str, reason: str) -> Library:
    """Open the first candidate that is what was asked for."""
    tried = []
    for candidate in _candidates(name):
        why = reason if name in ("host", candidate.path) else f"{reason}; {candidate.why}"
        found = _open(candidate.path, why)
        if isinstance(found, str):
            tried.append(f"{candidate.path} ({candidate.why}): {found}")
        elif name in KINDS and found.kind != name:
            tried.append(f"{candidate.path} ({candidate.why}): is a {found.kind} library")
        else:
            log.info("%s library %s from %s: %s", found.kind, ".".join(map(str, found.version)), found.path, why)
            return found
    remedy = {
        "host": "build it: pip install -e . in the source folder",
        "nvidia": "install it (pip install nvidia-nccl-cu12 or nvidia-nccl-cu13), or give its path",
        "rccl": "install ROCm, or give its path",
    }.get(name, "give the path of a libnccl.so, or one of 'host', 'nvidia', 'rccl'")
    lines = [f"no usable NCCL library for {name!r} ({reason}); tried", *tried, remedy]
    raise LibraryNotFoundError("\n  ".join(lines))


def _candidates(name: str) -> list[search.Candidate]:
    if name == "host":
        return [search.Candidate(search.HOST_LIBRARY, "part of pynickel")]
    if name in search.VENDORS:
        return list(search.candidates(name))
    return [search.Candidate(name, "as given")]


def _open(path: str, reason: str) -> Library | str:
    """The library of that file, or the loader's words."""
    size = 1024
    error = ffi.new("char[]", size)
    with lock:
        table = c.pn_open(os.fsencode(path), error, size)
        if not table:
            return report.text(error)
        if table not in loaded:
            loaded[table] = Library(table, reason)
        return loaded[table]
