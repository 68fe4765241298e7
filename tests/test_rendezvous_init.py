"""init(): ranks become one communicator, and what keeps them from it is told to all of them, in time."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import recorder
from helpers.ranks import run

import pynickel
from pynickel import RendezvousError, UniqueId, WaitTimeoutError, rendezvous
from pynickel.rendezvous import meeting, mpi, torchrun, trust
from pynickel.rendezvous.rows import Row, Verdict
from pynickel.rendezvous.store import connect
from pynickel.rendezvous.ways import Way
from pynickel.tools.run import free_port

HERE = {"MASTER_ADDR": "127.0.0.1"}
NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say themselves which launcher there is."""
    for launcher in trust.FAMILIES.values():
        for name in (*launcher.rank, *launcher.nranks, *launcher.local_rank, *launcher.local_size, "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)


def say(env: dict[str, str], seconds: float = 10.0, delay: float = 0.0) -> Verdict | Exception:
    """What a rank with this environment is told, in a thread of its own."""
    time.sleep(delay)
    try:
        place = trust.find(None, env)
        return meeting.meet(Way(None, place, env, 1, time.monotonic() + seconds), meeting.Introduction(place, "host", None), seconds)
    except Exception as error:
        return error


def all_say(*envs: dict[str, str], seconds: float = 10.0) -> list[Any]:
    """What each of these ranks is told; they share a port."""
    port = str(free_port())
    with ThreadPoolExecutor(len(envs)) as pool:
        told = [pool.submit(say, {**HERE, "MASTER_PORT": port, **env}, seconds, 0.02 * i) for i, env in enumerate(envs)]
        return [future.result(30) for future in told]


def rank(number: int, nranks: int, **more: str) -> dict[str, str]:
    """The variables of one rank."""
    return {"RANK": str(number), "WORLD_SIZE": str(nranks), **more}


def meets_twice(number: int, nranks: int, unique_id: UniqueId, port: int) -> dict[str, Any]:
    """What one rank of three finds in two communicators, one after the other."""
    os.environ.update(
        rank(number, nranks, LOCAL_RANK=str(number), LOCAL_WORLD_SIZE=str(nranks)), MASTER_ADDR="localhost", MASTER_PORT=str(port)
    )
    sums = []
    with rendezvous.init(timeout=20) as comm:
        sums.append(comm.all_reduce(bytearray([1, number]), dtype=pynickel.uint8))
        found = (comm.rank, comm.nranks, comm.device, comm._timeout)
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with rendezvous.init(timeout=None) as comm:
        sums.append(comm.all_reduce(bytearray([2, number]), dtype=pynickel.uint8))
    same = threads == threading.active_count() == 1 and len(os.listdir("/proc/self/fd")) <= descriptors
    return {"sums": sums, "found": found, "same": same, "place": rendezvous.place()}


def test_ranks_meet_twice() -> None:
    """Three processes meet at MASTER_ADDR, sum up, and meet again; no thread or descriptor is left, and later waits keep their deadline."""
    for number, told in enumerate(run(3, meets_twice, free_port(), make_comm=False, deadline=30)):
        assert told["sums"] == [bytearray([3, 3]), bytearray([6, 3])] and told["same"]
        assert told["found"] == (number, 3, number, None)
        assert told["place"] == (number, 3, number, 3, "env")


def test_single_process() -> None:
    """Without a launcher, with launcher='single', and with a world of one, there is a communicator of one rank; nothing listens."""
    for env in ({}, rank(0, 1)):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            with rendezvous.init() as comm:
                assert (comm.rank, comm.nranks, comm.device) == (0, 1, 0)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in rank(1, 2).items():
            patch.setenv(name, value)
        with rendezvous.init("single", device=3) as comm:
            assert (comm.nranks, comm.device) == (1, 3)


def test_duplicate_rank_and_world_sizes() -> None:
    """Scenario 32 (a, b): two processes as rank 0 of 2, two as rank 1, or worlds of 2 and 3: every rank that came has the table."""
    for envs, text in (
        ((rank(0, 2), rank(0, 2)), "two processes say that they are rank 0 of 2"),
        ((rank(0, 3), rank(1, 3), rank(1, 3)), "two processes say that they are rank 1 of 3"),
        ((rank(0, 2), rank(2, 3)), "disagree about their number: 2 or 3?"),
    ):
        for told in all_say(*envs):
            assert isinstance(told, Verdict) and isinstance(told.error, RendezvousError)
            assert text in str(told.error) and str(os.getpid()) in str(told.error)


def test_rank_that_comes_after_the_failure() -> None:
    """When a rank has failed, and has left, those that come within three seconds are still told why."""
    port = str(free_port())
    envs = [{**HERE, "MASTER_PORT": port, **rank(number, 3)} for number in range(3)]
    with ThreadPoolExecutor(2) as pool:
        zero = pool.submit(say, envs[0])
        guest = connect([("127.0.0.1", int(port))], b"", 1, time.monotonic() + 10)
        guest.append(meeting.Introduction(trust.find(None, envs[1]), "host", None).row.to_bytes())
        guest.wait(1, time.monotonic() + 10)
        guest.close(0, 0.0)
        two = pool.submit(say, envs[2])
        told = [future.result(20) for future in (zero, two)]
    assert all(isinstance(one, Verdict) and "rank 1 of 3" in str(one.error) and "left the rendezvous" in str(one.error) for one in told)


def test_two_of_three_come() -> None:
    """Scenario 32 (d): when two of three come, both learn at the deadline which one is missing."""
    began = time.monotonic()
    for told in all_say(rank(0, 3), rank(1, 3), seconds=1.0):
        assert isinstance(told, Verdict) and isinstance(told.error, WaitTimeoutError)
        assert told.error.missing == (2,) and "missing: rank 2" in str(told.error)
    assert time.monotonic() - began < 10


def test_rank_0_does_not_come() -> None:
    """When rank 0 does not come, the others learn at the deadline where it was looked for."""
    (told,) = all_say(rank(1, 2), seconds=0.3)
    assert isinstance(told, WaitTimeoutError) and told.missing == (0,)
    assert "rank 1 of 2 did not reach rank 0 within 0.3 s: nobody answers at 127.0.0.1:" in str(told)


def test_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 33: alone with timeout=1, rank 0 raises after a second; other threads ran meanwhile; no thread or descriptor is left."""
    for name, value in {**HERE, **rank(0, 2), "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    pynickel.load("host")
    count, stop = 0, threading.Event()

    def counts() -> None:
        nonlocal count
        while not stop.wait(0.01):
            count += 1

    gc.collect()  # what other tests have left may go meanwhile
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    counter = threading.Thread(target=counts)
    counter.start()
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError, match="missing: rank 1") as caught:
        rendezvous.init(timeout=1)
    seconds = time.monotonic() - began
    stop.set()
    counter.join()
    assert 1 <= seconds < 6 and caught.value.missing == (1,) and count > 5  # 2 if the waits held the GIL
    assert threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors


def other_version(number: int, nranks: int, unique_id: UniqueId, path: str, port: int) -> tuple[str, list[str]]:
    """The error of a rank whose library says 2.18.3 on rank 1, and the calls that the library saw."""
    notes = recorder.Recorder(Path(path))
    notes.set("set_version", 21803 if number else 23203)
    os.environ.update(rank(number, nranks, **HERE), MASTER_PORT=str(port))
    with pytest.raises(RendezvousError) as caught:
        rendezvous.init(library=path, timeout=20)
    return str(caught.value), notes.names


def test_ranks_with_different_versions(recorder_path: Path) -> None:
    """Scenario 73: rank 1 has another version of the library: both ranks are told at the rendezvous, before the library's init."""
    for text, names in run(2, other_version, str(recorder_path), free_port(), make_comm=False, deadline=30):
        assert "different libraries" in text and "nvidia 2.32.3" in text and "nvidia 2.18.3" in text
        assert not [name for name in names if "Init" in name]


def stops(number: int, nranks: int, unique_id: UniqueId, ports: list[int]) -> list[str]:
    """What ranks 0 and 2 are told when rank 1 is interrupted, then when its process ends, while they wait for a fourth."""
    import signal

    os.environ.update(rank(number, 4, **HERE))
    meeting._LINGER = 0.0  # nobody comes after the failure
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    told, read = [], meeting.read

    def read_and_stop(data: list[bytes]) -> list[Row]:
        rows = read(data)
        if number == 1 and len(rows) == 3:
            if port == ports[0]:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
            else:
                threading.Timer(0.2, os._exit, (0,)).start()
        return rows

    meeting.read = read_and_stop
    for port in ports:
        os.environ["MASTER_PORT"] = str(port)
        try:
            rendezvous.init(timeout=20)
        except (RendezvousError, KeyboardInterrupt) as error:
            told.append(f"{type(error).__name__} {error}")
    return told


def test_rank_that_leaves_while_others_wait() -> None:
    """Scenario 49: a rank that is interrupted, or ends with status 0 before all have come, is told to the others at once."""
    from helpers.ranks import outcomes

    ends = outcomes(3, stops, [free_port(), free_port()], make_comm=False, deadline=25)
    for number in (0, 2):
        first, second = ends[number].value
        assert "rank 1 of 4" in first and "was stopped while it waited: KeyboardInterrupt" in first
        assert "rank 1 of 4" in second and "ended, or left the rendezvous, before all ranks were there" in second
    assert ends[1].status == "ended" and ends[1].returncode == 0


def test_by_a_file(tmp_path: Path) -> None:
    """With PYNICKEL_RENDEZVOUS ranks meet by a file in that folder, which is gone afterwards."""
    told = all_say(*[rank(number, 3, PYNICKEL_RENDEZVOUS=str(tmp_path)) for number in (2, 1, 0)])
    assert [[row.rank for row in verdict.rows] for verdict in told] == [[0, 1, 2]] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    """PYNICKEL_RENDEZVOUS that names no folder is refused on every rank, with its name and value."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        for number in (0, 1):
            (told,) = all_say(rank(number, 2, PYNICKEL_RENDEZVOUS=str(folder)))
            assert isinstance(told, RendezvousError) and f"PYNICKEL_RENDEZVOUS={folder} is no folder; make it where" in str(told), told


def test_key() -> None:
    """With a key ranks meet at an address; one that has another key is told at once."""
    keys = {"PYNICKEL_KEY": "0123456789abcdef"}
    assert all(isinstance(told, Verdict) and told.error is None for told in all_say(rank(0, 2, **keys), rank(1, 2, **keys)))
    zero, one = all_say(rank(0, 2, **keys), rank(1, 2, PYNICKEL_KEY="another secret of one"), seconds=1.0)
    assert zero.error.missing == (1,) and "another key than this process" in str(one)
    assert "gave up after 1 s (1 with another key turned away); missing: rank 1" in str(zero.error)


def test_without_a_key_nobody_listens_to_the_world() -> None:
    """Ranks of several machines without a key are refused with both remedies; on one machine they meet on loopback whatever the address."""
    for number in (0, 1):
        (told,) = all_say(rank(number, 2, MASTER_ADDR="192.0.2.7"))
        assert isinstance(told, RendezvousError) and "PYNICKEL_KEY" in str(told) and "PYNICKEL_RENDEZVOUS" in str(told)
    local = {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.7"}
    assert [told.error for told in all_say(rank(0, 2, LOCAL_RANK="0", **local), rank(1, 2, LOCAL_RANK="1", **local))] == [None, None]


def test_nothing_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that gives ranks but no place to meet is an error that lists the ways."""
    for name, value in rank(0, 2).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousError, match="rank 0 of 2, but not where.*MASTER_ADDR.*PYNICKEL_RENDEZVOUS.*mpi4py"):
        rendezvous.init()


def test_arguments() -> None:
    """Arguments that make no sense are refused before anything is done."""
    for arguments, error in (
        ({"timeout": 0}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"device": -1}, ValueError),
        ({"device": True}, TypeError),
        ({"launcher": 1}, TypeError),
        ({"launcher": "mpirun"}, ValueError),
        ({"library": 1}, TypeError),
    ):
        with pytest.raises(error):
            rendezvous.init(**arguments)  # type: ignore[arg-type]
    with pytest.raises(pynickel.InvalidUsageError), pynickel.group():
        rendezvous.init()


def test_one_machine_without_mpi_or_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of mpirun without a usable mpi4py, and of torchrun without torch, meet on one machine by a file in a private folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(torchrun, "torch_is_there", lambda: False)
    monkeypatch.setattr(mpi, "communicator", broken_mpi)
    families = (
        ("OMPI_COMM_WORLD_{}", {"PMIX_NAMESPACE": "prterun-x-1@1"}),
        ("MV2_COMM_WORLD_{}", {"PYNICKEL_RENDEZVOUS": str(tmp_path)}),
    )
    for form, more in families:
        envs = [
            {**more, **{form.format(name): str(value) for name, value in zip(NAMES, (i, 2, i, 2), strict=True)}}
            for i in range(2)
        ]
        with ThreadPoolExecutor(2) as pool:
            assert [told.error for told in pool.map(say, envs)] == [None, None]  # type: ignore[union-attr]
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2"}
    assert [told.error for told in all_say(rank(0, 2, LOCAL_RANK="0", **agent), rank(1, 2, LOCAL_RANK="1", **agent))] == [None, None]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def broken_mpi(which: Any = "mpi") -> Any:
    """mpi4py without an MPI library."""
    raise RendezvousError("cannot load MPI library")
