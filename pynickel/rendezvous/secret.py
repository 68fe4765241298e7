"""The key of the ranks' store, and the files that carry it: mode 0600, their owner's alone, in a folder that all ranks can read."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from ..errors import RendezvousError
from .launcher import Environment

KEY = "PYNICKEL_KEY"
FOLDER = "PYNICKEL_RENDEZVOUS"
_SHORTEST = 16
_LONGEST_FILE = 10_000


class Sign(NamedTuple):
    """What rank 0 writes for the others: where its store listens, and the key."""

    hosts: list[str]
    port: int
    key: str


def from_environment(env: Environment) -> bytes | None:
    """The key that the launcher or the user has given to all ranks; None without one."""
    text = env.get(KEY, "")
    if text and len(text) < _SHORTEST:
        raise RendezvousError(f"{KEY} has {len(text)} characters; a key that protects the ranks has at least {_SHORTEST}")
    return text.encode() if text else None


def fresh() -> str:
    """A new random key."""
    return secrets.token_hex(32)


def private_folder() -> Path:
    """A folder on this machine that only this user can use, for ranks that share the machine."""
    folder = Path(tempfile.gettempdir()) / f"pynickel-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RendezvousError(f"{folder} is not a folder of this user's alone (mode 0700); remove it, or set {FOLDER} to one that is")
    return folder


def named_folder(folder: str) -> Path:
    """The folder that the user has given to all ranks."""
    if not os.path.isdir(folder):
        raise RendezvousError(f"{FOLDER}={folder} is no folder; make it where all ranks can see it, or take the variable away")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise RendezvousError(f"{FOLDER}={folder} is a folder that this user cannot write in; the ranks meet by a file there")
    return Path(folder)


def write(path: Path, sign: Sign) -> None:
    """Put the file in its place, whole at once, readable for its owner only."""
    fresh_path = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w") as file:
            json.dump(sign, file)
            file.flush()
            os.fsync(descriptor)  # a shared file system shows it to the others
        os.replace(fresh_path, path)
    except BaseException:
        fresh_path.unlink(missing_ok=True)
        raise


def read(path: Path) -> Sign | None:
    """What rank 0 has written; None while it has not. RendezvousError if others could have written or read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RendezvousError(f"the ranks' file {path} cannot be read: {error}") from error
    with open(descriptor) as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise RendezvousError(f"{path} belongs to user {found.st_uid} with mode {mode:o}; only this user's own, mode 600, is trusted")
        text = file.read(_LONGEST_FILE)
    try:
        hosts, port, key = json.loads(text)
    except ValueError as error:
        raise RendezvousError(f"{path} is no rendezvous file; remove it") from error
    if not (isinstance(hosts, list) and all(isinstance(host, str) for host in hosts) and type(port) is int and isinstance(key, str)):
        raise RendezvousError(f"{path} is no rendezvous file; remove it")
    return Sign(hosts, port, key)


def home_folder() -> Path:
    """A folder in the user's home, which machines of one cluster usually share."""
    folder = Path.home() / ".cache" / "pynickel"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
