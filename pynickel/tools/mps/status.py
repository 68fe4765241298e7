"""What a daemon says of its servers and clients, and what its logs mean."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..plain import plain
from . import control, places
from .places import Group, MpsError

TAIL = 8  # lines of each log that are shown
# What is found in a line of a log, and what it means; the first that fits is told.
MEANINGS = (
    (r"shared memory segment|too many open files", "too few open files: raise ulimit -n to 16384 and start again"),
    (r"max(imum)? (number of )?(clients|connections)|too many clients", "the GPU has as many clients as it can have; the next ones fail"),
    (r"fault|fatal exception|xid", "a client's fault ended the GPU work of every client on that GPU; new ones wait until all have left"),
    (r"exited with status [^0]", "a server ended with an error; the next client starts a new one"),
    (r"exited with status 0", "a server ended because its last client had left, or on request"),
    (r"user did not match|different user|waiting for .*user", "another user's programs wait until this user's last client ends"),
    (r"new client", "a program asked for a server"),
    (r"client .*disconnect", "a client has left"),
    (r"client .*connect", "a client has come"),
    (r"starting new server|start server", "a server is being started for that user"),
    (r"server ready|start complete|is ready", "a server accepts clients"),
    (r"accepting connection", "the daemon accepts programs"),
    (r"quit|shut ?down", "the daemon was asked to end"),
)


def look(group: Group) -> dict[str, Any]:
    """All that `status` shows; "daemon" is None when none runs, and "problem" tells of one that does not answer."""
    pid = places.daemon(group.pipes)
    found: dict[str, Any] = {"group": group.title, "pipes": str(group.pipes), "logs": str(group.logs), "daemon": pid, "servers": []}
    found["problem"] = None
    if pid is not None:
        try:
            for word in numbers(control.ask(group, "get_server_list")):
                found["servers"].append(server(group, word))
        except MpsError as error:
            found["problem"] = str(error)
    found["log"] = {name: tail(group.logs / name) for name in ("control.log", "server.log")}
    return found


def numbers(answer: str) -> list[str]:
    """The pids in an answer."""
    return [word for word in answer.split() if word.isdigit()]


def server(group: Group, pid: str) -> dict[str, Any]:
    """A server: its state, its user and its clients."""
    state = control.ask(group, f"get_server_status {pid}")
    clients = [process(word) for word in numbers(control.ask(group, f"get_client_list {pid}"))]
    return {**process(pid), "state": state, "clients": clients}


def all_clients(deadline: float) -> dict[int, tuple[Group, int]]:
    """The clients of every daemon that runs and answers within so many seconds: by pid their group and server."""
    found = {}
    for group in places.running():
        try:
            for word in numbers(control.ask(group, "get_server_list", deadline)):
                for client in numbers(control.ask(group, f"get_client_list {word}", deadline)):
                    found[int(client)] = (group, int(word))
        except MpsError:  # it hangs, or its program is not here: nothing is known of its clients
            continue
    return found


def process(pid: str) -> dict[str, Any]:
    """Who a process is; one of another pid namespace, or one that has just ended, is only a number."""
    import psutil

    found: dict[str, Any] = {"pid": int(pid), "user": None, "command": None, "started": None}
    try:
        one = psutil.Process(int(pid))
        found |= {"user": one.username(), "command": " ".join(one.cmdline())[:200], "started": one.create_time()}
    except psutil.Error:
        return found
    return found


def tail(path: Path) -> list[dict[str, str]]:
    """The last lines of a log, each with its meaning if that is known."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [{"line": line, "meaning": meaning(line)} for line in lines[-TAIL:]]


def meaning(line: str) -> str:
    """A line of a log in plain words; "" if it is not known."""
    return next((text for pattern, text in MEANINGS if re.search(pattern, line, re.IGNORECASE)), "")


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    if found["daemon"] is None:
        said = [f"{found['group']}: no daemon runs in {found['pipes']}"]
    else:
        said = [f"{found['group']}: daemon {found['daemon']}, pipes {found['pipes']}, logs {found['logs']}"]
        if found["problem"]:
            said.append(f"  {found['problem']}")
        elif not found["servers"]:
            said.append("  no server: the first client starts one")
    for one in found["servers"]:
        said.append(f"  server {one['pid']} of user {one['user']}: {one['state']}")
        said += [f"    client {client['pid']} of user {client['user']}: {plain(client['command'] or '')}" for client in one["clients"]]
        if not one["clients"]:
            said.append("    no clients; if it still holds memory, pynickel mps stop --force ends it")
    for name, entries in found["log"].items():
        if entries:
            said.append(f"  {name}:")
        for entry in entries:
            said.append(f"    {plain(entry['line'])}" + (f"\n      = {entry['meaning']}" if entry["meaning"] else ""))
    return said
