"""split, duplicate, shrink, grow, and who is who in parents and children."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from helpers.recorder import Recorder
from helpers.threads import outcomes, together

import pynickel
from pynickel import Communicator, Config, UniqueId


def total(comm: Communicator) -> float:
    """One all-reduce of ones: how many ranks really take part."""
    return float(comm.all_reduce(np.ones(3))[0])


@pytest.mark.parametrize("keys", [[0, 0, 0, 0, 0], [5, 4, 3, 2, 1], [-(2**31), 2**31 - 1, 0, 0, -1]])
def test_split(keys: list[int]) -> None:
    """Scenario 66: Ranks of one color are ordered by key, then by parent rank; None has no part."""
    colors = [0, 0, 1, None, 1]
    groups = [sorted((r for r in range(5) if colors[r] == color), key=lambda r: (keys[r], r)) for color in (0, 1)]

    def program(comm: Communicator) -> None:
        child = comm.split(colors[comm.rank], keys[comm.rank], name="part")
        if comm.rank == 3:
            assert child is None
            return
        assert child is not None and child.name == "part"
        members = groups[0] if comm.rank in groups[0] else groups[1]
        assert (child.nranks, child.rank, total(child)) == (len(members), members.index(comm.rank), len(members))
        assert [child.translate(r, comm) for r in range(child.nranks)] == members
        assert [comm.translate(r, child) for r in range(5)] == [members.index(r) if r in members else None for r in range(5)]
        child.close()

    together(5, program)


@pytest.mark.parametrize("first", ["parent", "child"])
def test_closing_order(first: str) -> None:
    """Scenario 66: Parent and child are independent: either can be closed first, and the other works on."""

    def program(comm: Communicator) -> None:
        child = comm.split(0)
        assert child is not None
        grandchild = child.split(comm.rank // 2)
        assert grandchild is not None
        assert total(grandchild) == 2 and grandchild.translate(1, comm) == comm.rank // 2 * 2 + 1
        if first == "parent":
            comm.close()
        else:
            child.close()
        assert total(grandchild) == 2 and total(child if first == "parent" else comm) == 4
        grandchild.close()
        child.close()

    together(4, program)


def test_split_that_not_all_call() -> None:
    """Scenario 66: One rank that does not call is named when the deadline comes."""
    done = threading.Event()

    def program(comm: Communicator) -> Any:
        if comm.rank == 1:
            assert done.wait(6)
            return None
        try:
            with pytest.raises(pynickel.WaitTimeoutError) as caught:
                comm.split(0)
        finally:
            done.set()
        return caught.value.missing

    assert outcomes(2, program, timeout=2)[0] == (1,)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [((-1,), ValueError, "color must be at least 0, or None, not -1"), ((2**31,), ValueError, "color"), (("red",), TypeError, "color"),
     ((True,), TypeError, "color"), ((0, 2**31), ValueError, "key"), ((0, 1.0), TypeError, "key")],
)  # fmt: skip
def test_bad_split(arguments: Any, error: type[Exception], words: str, comm: Communicator) -> None:
    """Scenario 66: Colors and keys are checked before the library is entered; a negative color is refused."""
    with pytest.raises(error, match=words):
        comm.split(*arguments)
    assert comm.state == "ready"


def test_duplicate() -> None:
    """duplicate() is the same ranks once more; n gives a list."""

    def program(comm: Communicator) -> None:
        one = comm.duplicate()
        two, three = comm.duplicate(2)  # type: ignore[misc]
        for copy in (one, two, three):
            assert (copy.rank, copy.nranks, total(copy)) == (comm.rank, 3, 3)
            assert [copy.translate(r, comm) for r in range(3)] == [0, 1, 2]
            copy.close()

    together(3, program)


def test_shrink() -> None:
    """The ranks that stay are renumbered densely; the excluded do not call."""

    def program(comm: Communicator) -> None:
        if comm.rank in (0, 2):
            return
        child = comm.shrink([2, 0, 2])
        assert (child.rank, child.nranks, total(child)) == ([1, 3].index(comm.rank), 2, 2)
        assert [child.translate(r, comm) for r in range(2)] == [1, 3] and comm.translate(0, child) is None
        child.close()

    together(4, program)


@pytest.mark.parametrize("how", ["failed", "revoked"])
def test_the_living_go_on(how: str) -> None:
    """When a rank is gone, the others shrink the failed or revoked communicator and go on without it."""

    def program(comm: Communicator) -> Any:
        if comm.rank == 1:
            comm.abort()
            return None
        with pytest.raises(pynickel.RemoteError):
            comm.all_reduce(np.ones(2))
        assert comm.state == "failed"
        if how == "revoked":
            comm.revoke()
        child = comm.shrink([1])
        result = (child.rank, child.nranks, total(child))
        child.close()
        return result

    assert outcomes(3, program)[::2] == [(0, 2, 2.0), (1, 2, 2.0)]


@pytest.mark.parametrize(("exclude", "words"), [([], "empty"), ([0], "has this rank"), ([2], r"0\.\.1"), (1, "list"), (None, "list")])
def test_bad_shrink(exclude: Any, words: str) -> None:
    """The list is one, is not empty, has ranks of the communicator, and not the own one."""
    comms = Communicator.init_all(2, "host")
    with pytest.raises(ValueError if isinstance(exclude, list) else TypeError, match=f"exclude.*{words}"):
        comms[0].shrink(exclude)
    pynickel.abort_all(comms)


def test_grow() -> None:
    """Old ranks keep their numbers, a new one comes in by the id that one of them has made."""
    ids: list[UniqueId] = []
    made = threading.Event()
    newcomer: list[Any] = []

    def join() -> None:
        assert made.wait(5)
        with Communicator.grow_into(3, ids[0], 2, library="host", timeout=5, name="new") as comm:
            newcomer.append((comm.rank, comm.nranks, comm.name, total(comm)))

    thread = threading.Thread(target=join, daemon=True)
    thread.start()

    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            ids.append(comm.growth_id())
            made.set()
        grown = comm.grow(3, ids[0] if comm.rank == 0 else None)
        assert (grown.rank, grown.nranks, total(grown)) == (comm.rank, 3, 3)
        assert [grown.translate(r, comm) for r in range(3)] == [0, 1, None] and comm.translate(1, grown) == 1
        grown.close()

    together(2, program)
    thread.join(5)
    assert newcomer == [(2, 3, "new", 3.0)]


def test_bad_grow(comm: Communicator) -> None:
    """A communicator grows to more ranks than it has."""
    with pytest.raises(ValueError, match="nranks must be above the 1 ranks"):
        comm.grow(1)


def test_strangers(comm: Communicator) -> None:
    """Ranks of communicators without a common ancestor cannot be compared; a rank that does not exist is refused."""
    other = Communicator(1, UniqueId.create("host"), 0, library="host")
    with pytest.raises(ValueError, match="no common communicator"):
        comm.translate(0, other)
    with pytest.raises(ValueError, match=r"0\.\.0"):
        comm.translate(1, comm)
    with pytest.raises(TypeError, match="to must be a Communicator, not None"):
        comm.translate(0, None)  # type: ignore[arg-type]
    assert comm.translate(0, comm) == 0
    other.abort()


def test_configurations_of_children(recording: Recorder) -> None:
    """Without config= a child gets its parent's (NULL); a Config is passed on, with the parent's blocking where it says nothing."""
    comm = Communicator(4, bytes(range(128)), 1, library=recording.path, timeout=5)
    recording.forget()
    comm.split(0)
    assert dict(recording.calls)["ncclCommSplit"][4] == 0
    comm.split(0, config=Config(splitShare=True))
    seen = recording.struct("seen_config", "ncclConfig_t")
    assert (seen.splitShare, seen.blocking) == (1, 0)
    with pytest.raises(TypeError, match="config must be a Config"):
        comm.split(0, config={})  # type: ignore[arg-type]
    comm.abort()
