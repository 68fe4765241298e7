"""A stand-in for ssh on the search path: as ssh does, it hands its words, joined by blanks, to a shell; the host is this machine."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

SCRIPT = """#!/bin/sh
echo "$@" >>"$0.log"
while [ "$1" != -- ]; do shift; done
shift 2
sh -c "$*"
"""


def install(folder: Path) -> Path:
    """Put it into the folder and return the file in which it notes its words."""
    program = folder / "ssh"
    program.write_text(SCRIPT)
    program.chmod(0o755)
    return folder / "ssh.log"
