"""How groups of torch.distributed end: orders of exit, dead peers, deadlines, Ctrl-C. Nothing may hang, and no process may be aborted."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import torch_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

# Every way to leave, many times: a process forks itself after the imports, so that each way costs no import. The forked ones make
# groups of their own, and end as an interpreter does, by sys.exit with all of atexit and of C++'s static destructors.
WAYS = """
import signal

def destroy(r): dist.destroy_process_group()
def leave(r): pass
def one_destroys(r): dist.destroy_process_group() if r else None
def new_group_left(r):
    dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))
    dist.destroy_process_group()
def new_group_destroyed(r):
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)
def in_flight(r): globals().update(kept=[dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(5)])
def in_flight_destroyed(r):
    in_flight(r)
    dist.destroy_process_group()
def future_left(r):
    globals().update(kept=dist.all_reduce(torch.ones(9), async_op=True).get_future().then(lambda done: done.value()))
def receive_left(r):
    globals().update(kept=dist.irecv(torch.ones(9), 1 - r))
def waits_for_the_other(r):
    if r: globals().update(kept=dist.all_reduce(torch.ones(9), async_op=True))
def functional(r):
    from torch.distributed import _functional_collectives as f
    globals().update(kept=f.all_reduce(torch.ones(9), "sum", dist.group.WORLD))
def ddp(r):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(9, 9))
    model(torch.ones(3, 9)).sum().backward()
    globals().update(kept=model)
def raises(r): raise ValueError("as wanted")
def raises_in_flight(r):
    in_flight(r)
    raise ValueError("as wanted")
def killed(r):
    if r: os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("rank 1 is dead")
def forked(r):
    if os.fork() == 0: sys.exit(0)
    os.wait()

names = [name for name in sys.argv[1].split(",")]
rank = int(os.environ["RANK"])
for turn in range(int(sys.argv[2])):
    for name in names:
        pid = os.fork()
        if pid == 0:
            os.environ["STORE"] += f"-{turn}-{name}"
            init()
            dist.all_reduce(torch.ones(3))
            globals()[name](rank)
            sys.exit(0)
        end = time.monotonic() + 15
        code = None
        while code is None and time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            if code is None: time.sleep(0.01)
        wanted = 1 if name.startswith("raises") else -9 if name == "killed" and rank == 1 else 0
        if code is None: os.kill(pid, signal.SIGKILL)
        if code != wanted: print(f"{name}, turn {turn}, rank {rank}: ended with {code}", flush=True)
"""

DESTROYS = "destroy,leave,one_destroys,new_group_left,new_group_destroyed,in_flight,in_flight_destroyed,future_left,receive_left"
OTHERS = "waits_for_the_other,functional,ddp,raises,raises_in_flight,killed,forked"


def test_exits(tmp_path: Path) -> None:
    """16 ways to leave, on two ranks each, with work in flight, futures, groups, exceptions, a killed peer: none hangs or aborts."""
    with torch_ranks.started(WAYS, 2, tmp_path, f"{DESTROYS},{OTHERS}", "1") as ranks:
        ends = [rank.finish(120) for rank in ranks]
    for end in ends:
        assert (end.returncode, end.stdout, end.left) == (0, "", []), end.stdout + end.stderr
        assert "FATAL" not in end.stderr and "terminate called" not in end.stderr, end.stderr


def test_killed_in_training(tmp_path: Path) -> None:
    """kill -9 of one of three ranks in the middle of DDP training: the others raise within 2 seconds, and name it."""
    training = """
    rank, n = init(60)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)))
    other = dist.new_group()
    print("training", flush=True)
    try:
        while True:
            model(torch.randn(8, 300)).sum().backward()
    except RuntimeError as error:
        print(f"at {time.monotonic()}", error, flush=True)
    try:
        pynickel.torch.monitored_barrier(other)
    except dist.DistBackendError as error:
        print("barrier:", error, flush=True)
    said = os.environ["STORE"] + ".said-"
    open(said + str(rank), "w").close()
    while not os.path.exists(said + str(2 - rank)):  # until then the other one would be told of this one's end, too
        time.sleep(0.01)
    """
    with torch_ranks.started(textwrap.dedent(training), 3, tmp_path) as ranks:
        for rank in ranks:
            rank.wait_for("training", 60)
        time.sleep(0.5)
        ranks[1].signal(signal.SIGKILL)
        ranks[1].process.wait(20)
        dead = time.monotonic()
        ends = [rank.finish(30) for rank in (ranks[0], ranks[2])]
    for end in ends:
        raised = end.stdout.split("at ", 1)[1]
        assert float(raised.split()[0]) - dead < 2, end.stdout
        assert "rank 1" in raised.split("barrier:")[0] and "rank 1" in raised.split("barrier:")[1], end.stdout
        assert end.returncode == 0, end.stderr


def test_deadlines_and_interrupts(tmp_path: Path) -> None:
    """Deadlines name the ranks that did not come; Ctrl-C ends a wait for the first meeting, a collective, and a wait for another's work.

    Who waits for a first meeting is told within two seconds of the end of a rank that should come to it.
    """
    program = """
    import _thread, threading
    rank, n = init(60)
    dist.barrier()
    def raises(kind, word, call):
        begun = time.monotonic()
        try:
            call()
        except kind as error:
            assert word in str(error), (word, error)
        else:
            raise AssertionError(f"no {kind} with {word!r}")
        assert time.monotonic() - begun < 8
    groups = [dist.new_group(timeout=datetime.timedelta(seconds=60 if i else 3)) for i in range(5)]  # torch's is half an hour
    slow = dist.new_group(timeout=datetime.timedelta(seconds=60))
    quick = dist.new_group(timeout=datetime.timedelta(seconds=60))
    last = dist.new_group(timeout=datetime.timedelta(seconds=60))
    dist.barrier(quick)
    store = dist.distributed_c10d._get_default_store()
    for group in groups[3:]:
        dist.barrier(group)
    if rank == 0:
        tensor = torch.ones(3)
        raises(dist.DistBackendError, "rank 1", lambda: pynickel.torch.monitored_barrier(timeout=0.3))
        raises(dist.DistBackendError, "rank 1", lambda: pynickel.torch.monitored_barrier(slow, timeout=0.3))  # they have not met
        quick.set_timeout(datetime.timedelta(seconds=0.3))
        raises(dist.DistBackendError, "rank 1", lambda: dist.barrier(quick))
        raises(dist.DistBackendError, "rank 1", lambda: dist.recv(tensor, 1, group=groups[0]))
        raises(TypeError, "backend pynickel", lambda: pynickel.torch.monitored_barrier(group=7))
        for wait in (
            lambda: dist.recv(tensor, 1, group=groups[1]),
            lambda: dist.all_reduce(tensor, group=groups[2]),
            lambda: dist.all_reduce(tensor, group=groups[3]),
            lambda: dist.all_reduce(tensor, group=groups[4], async_op=True).wait(),
        ):
            threading.Timer(0.3, _thread.interrupt_main).start()
            raises(KeyboardInterrupt, "", wait)
        store.set("interrupted", "yes")
    else:
        while not store.check(["interrupted"]):
            time.sleep(0.05)
        for group in groups[3:]:
            raises(dist.DistBackendError, "rank 0", lambda: dist.all_reduce(torch.ones(3), group=group))
    dist.barrier(slow)  # the one that was too early is as good as never
    if rank == 1:
        print("ok", flush=True)
        time.sleep(1)
        store.set("death", str(time.monotonic()))
        os.kill(os.getpid(), 9)
    raises(dist.DistBackendError, "rank 1 ended", lambda: dist.barrier(last))
    assert time.monotonic() - float(store.get("death")) < 2
    print("ok", flush=True)
    """
    with torch_ranks.started(textwrap.dedent(program), 2, tmp_path) as ranks:
        ends = [rank.finish(50) for rank in ranks]
    assert [(end.returncode, end.stdout) for end in ends] == [(0, "ok\n"), (-9, "ok\n")], "\n".join(end.stderr for end in ends)
