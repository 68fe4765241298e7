"""Environment variables: which are set, and which have a name that nothing reads."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ... import errors
from ...library import Library
from .finding import NOTE, OK, PROBLEM, Finding
from .known import KNOWN, PREFIXES, nearest, other_prefix

SECRET = "KEY"


def check(environ: Mapping[str, str], library: Library | None) -> Iterator[Finding]:
    """A finding for every variable of NCCL, CUDA and pynickel."""
    own = parameters(library)
    for name in sorted(environ):
        if not name.startswith(PREFIXES):
            if meant := other_prefix(name):
                yield Finding(PROBLEM, "variable", f"{name} is read by nothing", f"did you mean {meant}?")
            continue
        value = "(a secret)" if SECRET in name else environ[name]
        if name in KNOWN or name in own:
            yield Finding(OK, "variable", f"{name}={value}")
        elif meant := nearest(name, own):
            yield Finding(PROBLEM, "variable", f"{name}={value} is read by nothing", f"did you mean {meant}?")
        else:
            yield Finding(NOTE, "variable", f"{name}={value} is not a documented name", "unset it if you did not mean it")


def parameters(library: Library | None) -> set[str]:
    """The names that the library itself lists, NCCL 2.30.4 and later."""
    try:
        return set(library.parameters) if library is not None else set()
    except errors.NCCLError:
        return set()
