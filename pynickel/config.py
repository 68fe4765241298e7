"""Config and CollConfig: every field of NCCL's configuration structs, each refused on a library that does not know it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ._nccl import ffi, lib
from .arguments import as_int
from .errors import NotAvailableError

if TYPE_CHECKING:
    from .library import Library


class Settings:
    """The fields that the caller has set; everything else is the library's decision."""

    STRUCT = ""

    def __init__(self, values: dict[str, Any]) -> None:
        self._fields = {name: value for name, value in values.items() if name in fields_of(self.STRUCT) and value is not None}
        for name, value in self._fields.items():
            self._check_kind(name, value)
        self._made: Any = None
        self._known_by: set[int] = set()
        self._made, self._kept = fill(self.STRUCT, self._fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._fields.items())})"

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self._fields)

    def _check_kind(self, name: str, value: Any) -> None:
        """Refuse a yes or no for a number, and for a flag what is neither (0 and 1, which C knows, will do)."""
        kind = str(type(self).__init__.__annotations__[name])
        if kind.startswith("bool") and not (isinstance(value, int) and value in (0, 1)):
            raise TypeError(f"{name} must be True or False, not {value!r}")
        if kind.startswith("int") and isinstance(value, bool):
            raise TypeError(f"{name} is no flag, but {value!r} was given; see NCCL's documentation of {self.STRUCT} for its values")

    def _check(self, library: Library, function: str) -> None:
        """Raise if the library lacks the function or knows a field not yet."""
        if not library.has(function):
            raise library.missing(function)
        for name in self._fields:
            require_field(library, self.STRUCT, name, f"{type(self).__name__}({name}=)")


def _rebuild(kind: Any, fields: dict[str, Any]) -> Any:
    """The same settings in another process."""
    return kind(**fields)


class Config(Settings):
    """How a communicator works: the fields of ncclConfig_t under NCCL's names. None leaves a field to the library.

    `blocking=False` makes init and calls return while they are in progress; see `Communicator.poll`. The other fields are
    hints for GPUs and networks (see NCCL's documentation of ncclConfig_t); the CPU library checks them and has no use for
    them, but for numRmaSig. A field that the loaded library does not know is a NotAvailableError which names the release that
    does, where the Config is used; a value that NCCL refuses is an InvalidArgumentError there.
    """

    STRUCT = "ncclConfig_t"

    def __init__(
        self,
        *,
        blocking: bool | None = None,
        cgaClusterSize: int | None = None,
        minCTAs: int | None = None,
        maxCTAs: int | None = None,
        netName: str | None = None,
        splitShare: bool | None = None,
        trafficClass: int | None = None,
        commName: str | None = None,
        collnetEnable: bool | None = None,
        CTAPolicy: int | None = None,
        shrinkShare: bool | None = None,
        nvlsCTAs: int | None = None,
        nChannelsPerNetPeer: int | None = None,
        nvlinkCentricSched: bool | None = None,
        graphUsageMode: int | None = None,
        numRmaCtx: int | None = None,
        maxP2pPeers: int | None = None,
        graphStreamOrdering: bool | None = None,
        launchOrderImplicit: bool | None = None,
        numRmaSig: int | None = None,
        rmaEagerInit: bool | None = None,
        hostCftMode: int | None = None,
        nvlsHostMode: int | None = None,
    ) -> None:
        super().__init__(locals())

    @property
    def blocking(self) -> bool | None:
        """Whether calls return when they are done; None: the library's default, which is yes."""
        value = self._fields.get("blocking")
        return None if value is None else bool(value)

    def struct(self, library: Library, function: str, blocking: bool | None = None) -> Any:
        """A new ncclConfig_t * for that function; `blocking` is for where the caller has not said it."""
        self._check(library, function)
        if library.version < (2, 31, 2) and "minCTAs" in self._fields and "maxCTAs" not in self._fields:
            raise ValueError(f"Config(minCTAs=) needs maxCTAs= too on NCCL before 2.31.2; {library.label} is loaded")
        made = ffi.new("ncclConfig_t *", self._made[0])
        if "blocking" not in self._fields and blocking is not None:
            made.blocking = int(blocking)
        elif "blocking" not in self._fields and library.version < (2, 17):
            made.blocking = 1  # these versions know no "undefined"
        return made


class CollConfig(Settings):
    """How one collective works: the fields of ncclCollConfig_t under NCCL's names, for `config=`. None leaves a field to the library.

    NotAvailableError before NCCL 2.31.2, where it is used.

    `ext`: options of vendors, as (vendorId, optionId, value) with an int or str for a value. `launchCompletionEvent`: a CUDA
    event (of CUDA Python, torch or CuPy) or its handle.
    """

    STRUCT = "ncclCollConfig_t"

    def __init__(
        self,
        *,
        ext: Sequence[tuple[int, int, int | str]] | None = None,
        minCTAs: int | None = None,
        maxCTAs: int | None = None,
        nvlsCTAs: int | None = None,
        cgaClusterSize: int | None = None,
        algSelection: str | None = None,
        forceAlgSelection: bool | None = None,
        CTAPolicy: int | None = None,
        userProfilerTag: int | None = None,
        launchCompletionEvent: Any = None,
    ) -> None:
        super().__init__(locals())

    def struct(self, library: Library, function: str) -> Any:
        """The ncclCollConfig_t * for that function; it lives as long as the CollConfig."""
        if id(library) not in self._known_by:
            self._check(library, function)
            self._known_by.add(id(library))
        return self._made


@cache
def fields_of(name: str) -> dict[str, Any]:
    """The fields of a struct that callers set, with their C types."""
    return {field: info.type for field, info in ffi.typeof(name).fields if field not in ("size", "magic", "version")}


def fill(name: str, values: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A struct with these values, all others undefined; and what it points to."""
    made = ffi.new(f"{name} *", getattr(lib, f"pn_initial_{name}"))
    kept: list[Any] = []
    for field, value in values.items():
        setattr(made, field, convert(fields_of(name)[field], field, value, kept))
    return made, kept


def convert(kind: Any, field: str, value: Any, kept: list[Any]) -> Any:
    """A value as the field's C type."""
    if kind.kind == "primitive":
        number = int(value) if isinstance(value, bool) else as_int(value, field)
        low, high = (0, 1 << 64) if kind.cname == "uint64_t" else (-(1 << 31), 1 << 31)
        if not low <= number < high:
            raise ValueError(f"{field} must be between {low} and {high - 1}, not {number}")
        return number
    if kind is ffi.typeof("char *"):
        return chars(value, field, kept)
    if kind is ffi.typeof("cudaEvent_t"):
        return event(value)
    return extensions(value, kept)


def chars(value: Any, field: str, kept: list[Any]) -> Any:
    """A text as a C string."""
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{field} must be a str without zero characters, not {value!r}")
    kept.append(ffi.new("char[]", value.encode()))
    return kept[-1]


def event(value: Any) -> Any:
    """The handle of a CUDA event."""
    for attribute in ("cuda_event", "ptr", "handle"):
        value = getattr(value, attribute, value)
    if isinstance(value, (bool, float)) or not (hasattr(value, "__index__") or hasattr(value, "__int__")):
        raise TypeError(f"launchCompletionEvent must be a CUDA event or its handle, not {value!r}")
    if not 0 <= int(value) < 1 << 64:
        raise ValueError(f"launchCompletionEvent {value!r} is no handle: it must be at least 0 and below 2**64")
    return ffi.cast("cudaEvent_t", int(value))


def extensions(value: Any, kept: list[Any]) -> Any:
    """A linked list of vendor options."""
    after = ffi.NULL
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, (list, tuple)) and len(one) == 3 for one in value):
        raise TypeError(f"ext must be a list of (vendorId, optionId, value), not {value!r}")
    for vendor, option, setting in reversed(value):
        node = ffi.new("ncclConfigExt_t *")
        node.next = after
        node.key.vendorId = convert(ffi.typeof("int"), "ext", vendor, kept)
        node.key.optionId = convert(ffi.typeof("int"), "ext", option, kept)
        if isinstance(setting, str):
            node.val.s = chars(setting, "ext", kept)
        else:
            node.val.i = convert(ffi.typeof("int"), "ext", setting, kept)
        kept.append(node)
        after = node
    return after


def since_of(struct: str, field: str) -> str:
    """The release that brought a field, as cdef/ has it."""
    found = lib.pn_field_since(struct.encode(), field.encode())
    return ffi.string(found).decode() if found else ""


def numbers(version: str) -> tuple[int, ...]:
    """ "2.30.3" as (2, 30, 3)."""
    return tuple(map(int, version.split(".")))


def require_field(library: Library, struct: str, field: str, argument: str) -> None:
    """Raise if the library's release is older than a field of a struct."""
    since = since_of(struct, field)
    if library.version < numbers(since):
        raise too_old(library, argument, since)


def require_constant(library: Library, constant: str, argument: str) -> None:
    """Raise if the library's release is older than a constant."""
    since = ffi.string(lib.pn_constant_since(constant.encode())).decode()
    if library.version < numbers(since):
        raise too_old(library, argument, since)


def too_old(library: Library, argument: str, since: str) -> NotAvailableError:
    """The error for an argument that the library would not look at."""
    text = f"{argument} needs NCCL {since}; {'.'.join(map(str, library.version))} is loaded from {library.path}"
    return NotAvailableError(text, library_path=library.path, library_version=library.version)
