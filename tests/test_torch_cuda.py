"""The CUDA side of the backend pynickel with stand-ins for NVIDIA's library, torch's streams and tensors: nothing here runs on a GPU."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import processes, recorder, torch_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

# Tensors are CPU tensors that say they are on a GPU; streams and events write down what happens to them.
STAND_INS = """
import contextlib, datetime, sys
import torch
from torch import distributed as dist
import pynickel.torch
from pynickel.torch import cuda as side
from helpers.recorder import Recorder

told = []

class OnGpu(torch.Tensor):
    is_cuda, is_cpu = property(lambda self: True), property(lambda self: False)
    device = property(lambda self: torch.device("cuda", 0))
    def record_stream(self, stream): told.append(("record", stream.cuda_stream))

def on_gpu(*values): return torch.tensor(values).as_subclass(OnGpu)

class Stream:
    made = 100
    def __init__(self, device=None):
        Stream.made += 1
        self.cuda_stream = Stream.made
    def wait_stream(self, other): told.append(("wait_stream", self.cuda_stream, other.cuda_stream))
    def wait_event(self, event): told.append(("wait_event", self.cuda_stream, event.stream))
    def synchronize(self): told.append(("synchronize", self.cuda_stream))

class Event:
    def record(self, stream): self.stream = stream.cuda_stream
    def query(self): return True
    def synchronize(self): told.append(("event", self.stream))

current = [Stream()]

@contextlib.contextmanager
def within(stream):
    current.append(stream)
    yield
    current.pop()

cuda = torch.cuda
cuda.Stream, cuda.Event, cuda.stream, cuda.device = Stream, Event, within, lambda index: contextlib.nullcontext()
cuda.current_stream, cuda.current_device = lambda device=None: current[-1], lambda: 0
path = sys.argv[1]
side.load = lambda kind: pynickel.load(path)
library = Recorder(path)
store = dist.HashStore()
group = pynickel.torch.PynickelProcessGroup(store, 0, 2, datetime.timedelta(seconds=5))
met = group._meeting.store
for way in ("0", "messages/0/1/0"):
    met.set(f"nvidia/cuda/{way}/1", "here")  # rank 1 comes to all meetings
"""

PROGRAM = STAND_INS + """
tensor, main = on_gpu(1.0, 2.0), current[0].cuda_stream
work = group.allreduce([tensor])
(name, args), = [call for call in library.calls if call[0] == "ncclAllReduce"]
assert args[0] == args[1] == tensor.data_ptr() and args[2] == 2 and args[6] == main, args
assert ("record", main) in told and not any(kind == "synchronize" for kind, *_ in told), "the host does not wait"
work.wait()
assert told[-1] == ("wait_event", main, main) and work.is_completed() and work.result()[0] is tensor
work.synchronize()
assert told[-1] == ("event", main)

library.forget(), told.clear()
met.set("nvidia/cuda/messages/1/0/0", bytes(range(1, 129)).hex())  # rank 1's id for its way to rank 0
sent, received = group.send([tensor], 1, 0), group.recv([tensor], 1, 0)
calls = {name: args for name, args in library.calls if name in ("ncclSend", "ncclRecv")}
assert calls["ncclSend"][3] == 1 and calls["ncclRecv"][3] == 0, "each way has a communicator of the two ranks, the sender first"
one, other = calls["ncclSend"][5], calls["ncclRecv"][5]
assert one != other and main not in (one, other), "each way has a stream of its own"
assert ("wait_stream", one, main) in told and ("wait_stream", other, main) in told and ("record", one) in told
assert received.source_rank() == 1 and sent.source_rank() == -1
received.wait()
assert told[-1] == ("wait_event", main, other)

library.forget(), told.clear()
group._start_coalescing(torch.device("cuda", 0))
group.broadcast([tensor]), group.send([tensor], 1, 0)
both = group._end_coalescing(torch.device("cuda", 0))
assert library.names.count("ncclBroadcast") == 1 and "ncclCommInitRank" not in library.names, "communicators are kept"
both.wait()
assert [line for line in told if line[0] == "wait_event"] == [("wait_event", main, main), ("wait_event", main, one)]

options = dist.BarrierOptions()
options.device = torch.device("cpu")
library.returns("ncclAllReduce", 6)
try:
    group.allreduce([tensor])
except dist.DistBackendError as error:
    assert str(error).startswith("all_reduce: ncclAllReduce"), error
else:
    raise AssertionError("the library has failed")
group.abort()
assert library.names.count("ncclCommAbort") == 3, library.names
print("ok")
"""


def test_streams(tmp_path: Path) -> None:
    """Collectives go to the current stream, messages to streams of their own that wait for it; works and errors are torch's."""
    path = recorder.build(tmp_path)
    done = processes.run(PROGRAM, str(path), deadline=60, env=torch_ranks.tests_path())
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
