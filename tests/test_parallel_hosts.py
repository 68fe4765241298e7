"""Children on machines of their own: network namespaces with own addresses stand for hosts, `ip netns exec` for ssh."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from helpers.processes import Script, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

# Hosts 2 and 3 of a network of ours; this process is host 1 of both.
NETS = ["10.213.2", "10.213.3"]

FORK = """
    import os, socket, time
    from pynickel import parallel

    for net in NETS:
        parallel.add_remote(net + ".2", cores=2, command="ip netns exec " + NAMES[net])
    children = parallel.sfork(4)
"""


def ip(*words: str) -> None:
    """Run ip; an error shows what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr}")


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, str]]:
    """Two hosts, each at the other end of a cable of its own; the namespace of each by its network."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need iproute2 and root")
    made = {net: f"pynickel{os.getpid()}h{number}" for number, net in enumerate(NETS)}
    try:
        for number, (net, name) in enumerate(made.items()):
            cable = f"pn{os.getpid() % 100000}c{number}"
            try:
                ip("netns", "add", name)
                ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            except OSError as error:
                pytest.skip(f"this machine lends no network namespaces: {error}")
            ip("addr", "add", f"{net}.1/24", "dev", cable)
            ip("link", "set", cable, "up")
            ip("-n", name, "addr", "add", f"{net}.2/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield made
    finally:
        for number, name in enumerate(made.values()):
            subprocess.run(["ip", "link", "del", f"pn{os.getpid() % 100000}c{number}"], capture_output=True, timeout=10)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)


def script(names: dict[str, str], body: str) -> str:
    """A program that forks two children on each host and then does the body."""
    return f"NETS, NAMES = {NETS!r}, {names!r}\n" + "\n".join(line[4:] for line in (FORK + body).splitlines())


def test_two_hosts(names: dict[str, str]) -> None:
    """Children are dealt to the hosts in turn, come in at our address on the way to each, and talk as children here do; a child
    on a host forks children of its own there; one that fails is named with its host."""
    body = """
    def tell():
        from pynickel.parallel import tree
        inner = parallel.nfork(2)
        inner.exec("from pynickel import parallel; parallel.send(parallel.id)")
        addresses = socket.if_nameindex(), tree.here.parent.channel._socket.getpeername()[0]
        parallel.send((addresses[1], [name for _, name in addresses[0]], inner.receive()))
        inner.sync()
        parallel.yield_()
        if parallel.id == 4:
            raise LookupError("far away")

    children.exec(tell)
    for child, told in zip(children, children.receive().values()):
        print(child.host, *told)
    try:
        children.join()
        children.sync()
    except parallel.ChildError as error:
        print(str(error).splitlines()[0].replace(str(error.pid), "PID"))
    """
    result = run(script(names, body), deadline=40)
    told = [f"{net}.2 {net}.1 ['lo', 'eth0'] {{1: 1, 2: 2}}" for net in NETS] * 2
    assert result.stdout.splitlines() == [*told, f"child 4 (pid PID on {NETS[1]}.2) failed: LookupError: far away"], result.stderr
    assert (result.returncode, result.stderr, result.left) == (0, "", [])


def test_a_killed_parent_leaves_nothing_on_the_hosts(names: dict[str, str]) -> None:
    """kill -9 of the parent ends the children on all hosts."""
    body = """
    children.exec("from pynickel import parallel; import time; parallel.send(1); time.sleep(60)")
    children.receive()
    print("ready", flush=True)
    time.sleep(60)
    """
    with Script(script(names, body)) as running:
        running.wait_for("ready", 30)
        assert len(running.left()) == 9  # and a guardian for each child
        running.signal(signal.SIGKILL)
        assert running.finish(patience=6).left == []


def test_a_host_that_vanishes(names: dict[str, str]) -> None:
    """When a host's cable is cut, the parent learns which children are lost, and those of the other host go on."""
    body = """
    children.exec("from pynickel import parallel; parallel.yield_(); parallel.send(parallel.yield_()); parallel.yield_()")
    children.join()
    print("ready", flush=True)
    begun, lost = time.monotonic(), []
    while len(lost) < 2:
        try:
            children[0].receive(timeout=25)  # which is still there, and sends nothing yet
        except parallel.ChildError as error:
            lost.append(str(error).replace(str(error.pid), "PID"))
    print(*sorted(lost), time.monotonic() - begun < 20, sep="; ")
    children[0].join("there")
    print(children[0].receive())
    parallel.reset()
    """
    quick = "from pynickel.parallel import door\ndoor.VANISHED = (1, 1, 2)\n"  # the same with less patience
    with Script(quick + script(names, body)) as running:
        running.wait_for("ready", 30)
        ip("-n", names[NETS[1]], "link", "set", "eth0", "down")
        try:
            result = running.finish(40, patience=6)
        finally:
            ip("-n", names[NETS[1]], "link", "set", "eth0", "up")
            time.sleep(0.1)
    lost = [f"child {id} (pid PID on {NETS[1]}.2) is lost: the connection to {NETS[1]}.2 has ended" for id in (2, 4)]
    assert result.stdout.splitlines() == ["ready", "; ".join([*lost, "True"]), "there"], result.stderr
    assert (result.left, result.returncode) == ([], 0), result.stderr
