"""What stands on a process group: DistributedDataParallel, fully_shard, DeviceMesh, the example, and what importing the backend does."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import processes, torch_ranks
from helpers.slurm import free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "torch_ddp.py"

LARGER_PROGRAMS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

rank, n = init(40)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
line = torch.full((2,), float(rank))
dist.all_reduce(line, group=mesh.get_group("columns"))
assert line[0] == (1 if rank < 2 else 5), line
whole = torch.arange(32.0).view(8, 4)
spread = distribute_tensor(whole, mesh["rows"], [Shard(0)])
assert torch.equal(spread.redistribute(mesh["rows"], [Replicate()]).to_local(), whole)
assert float((spread * 2).sum().full_tensor()) == 2 * float(whole.sum())

def nets():
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(10, 33), torch.nn.Tanh(), torch.nn.Linear(33, 3)) for _ in range(3)]

def trained(model, samples):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]

samples = torch.randn(8, 10, generator=torch.Generator().manual_seed(1))
alone, replicated, sharded = nets()
sharded.load_state_dict(alone.state_dict()), replicated.load_state_dict(alone.state_dict())
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer)
wanted = trained(alone, samples)
for found in (
    trained(torch.nn.parallel.DistributedDataParallel(replicated), samples[2 * rank : 2 * rank + 2]),
    trained(sharded, samples[2 * rank : 2 * rank + 2]),
):
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-6), (one - other).abs().max()

embedding = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(9, 2, sparse=True))
embedding(torch.tensor([rank, 8])).sum().backward()
assert torch.allclose(embedding.module.weight.grad.to_dense()[[0, 3, 8]], torch.tensor([[0.25], [0.25], [1.0]]))
sync = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), static_graph=True, gradient_as_bucket_view=True)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
sync.register_comm_hook(None, default_hooks.fp16_compress_hook)
for _ in range(3):
    sync(torch.randn(2, 4)).sum().backward()
pynickel.torch.monitored_barrier(timeout=20)
from torch.distributed.optim import ZeroRedundancyOptimizer
zero = ZeroRedundancyOptimizer(sync.parameters(), torch.optim.Adam, lr=0.1)
zero.step()
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # its callbacks wait for later operations
power = torch.nn.parallel.DistributedDataParallel(nets()[0])
state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.5)
power.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
trained(power, samples[2 * rank : 2 * rank + 2])
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict  # asks the group for its devices
plain = fully_shard(nets()[0])
whole = {name: p + 1 for name, p in nets()[1].state_dict().items()} if rank == 0 else {}
set_model_state_dict(plain, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
assert torch.equal(plain[2].bias.full_tensor(), nets()[1][2].bias + 1)
dist.new_group(device_id=torch.device("cuda", 0))  # as programs for GPUs do, for which torch asks the backend what it can
dist.barrier()
print("ok", flush=True)
dist.destroy_process_group()
"""


def test_larger_programs(tmp_path: Path) -> None:
    """On 4 ranks: a DeviceMesh and DTensors; DDP and fully_shard train like one process; sparse gradients, hooks, ZeRO."""
    with torch_ranks.started(LARGER_PROGRAMS, 4, tmp_path, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
        ends = [rank.finish(100) for rank in ranks]
    assert [(end.returncode, end.stdout) for end in ends] == [(0, "ok\n")] * 4, "\n".join(end.stderr for end in ends)


# A rank of the example, by one backend and then by the other, forked after the imports, which take longer than the rest.
RANK = """
import os, runpy, signal, sys
import sklearn.datasets, torch

script, *ports = sys.argv[1:]
for backend, port in zip(("pynickel", "gloo"), ports, strict=True):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os.environ["MASTER_PORT"] = port
        sys.argv[1:] = ["--backend", backend]
        runpy.run_path(script, run_name="__main__")
        names = [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")]
        sys.exit(f"threads outlived their group: {names}" if any("gloo" in name or "store" in name for name in names) else 0)
    status = os.waitpid(pid, 0)[1]
    if status:
        sys.exit(f"{backend}: wait status {status}")
"""


def test_example(tmp_path: Path) -> None:
    """The example reaches one loss to rounding by pynickel and gloo, and recognises 95% of the digits; docs/torch.md has torchrun.

    After it no thread of the group or of its store is left, with which gloo would now and then abort the process at its end.
    """
    (tmp_path / "rank.py").write_text(RANK)
    ports = [str(port) for port in free_ports(2)]
    with torch_ranks.started(tmp_path / "rank.py", 2, tmp_path, str(EXAMPLE), *ports, env={"MASTER_ADDR": "127.0.0.1"}) as ranks:
        ends = [rank.finish(120) for rank in ranks]
    assert [(end.returncode, end.left) for end in ends] == [(0, [])] * 2, "\n".join(end.stderr for end in ends)
    told = {}
    for backend in ("pynickel", "gloo"):
        found = re.search(rf"{backend}, 2 ranks: loss ([\d.]+), accuracy ([\d.]+)%", ends[0].stdout)
        assert found is not None, ends[0].stdout
        told[backend] = float(found[1]), float(found[2])
    assert abs(told["pynickel"][0] - told["gloo"][0]) < 1e-5 and told["pynickel"][1] == told["gloo"][1] >= 95, told


def test_example_without_a_launcher() -> None:
    """Without a launcher's variables the example says how it is started."""
    done = processes.run(EXAMPLE, deadline=60, env={"RANK": ""})
    assert done.returncode == 2 and "torchrun --nproc-per-node 2 examples/torch_ddp.py" in done.stderr, done.stderr


def test_benchmark(tmp_path: Path) -> None:
    """The benchmark measures both backends, checks the results, tells a table and keeps its figures."""
    script, kept = EXAMPLE.parent.parent / "benchmarks" / "torch_backends.py", str(tmp_path / "figures.json")
    options = ["--operations", "all_reduce,all_gather,send_recv", "--sizes", "64", "--seconds", "0.02", "--steps", "0.2", "--json", kept]
    done = processes.run(script, *options, deadline=80)
    assert done.returncode == 0 and not done.left, done.stderr
    assert re.search(r"all_gather +64 B +[\d.,]+ +[\d.,]+ +[\d.,]+", done.stdout) and "cost of communication" in done.stdout
    shown = processes.run(script, "--show", "--json", kept, deadline=30)
    assert shown.stdout == done.stdout


def test_import() -> None:
    """`import pynickel` leaves torch alone; `import pynickel.torch` registers the backend, once, for both kinds of device."""
    program = """
    import sys
    import pynickel
    assert "torch" not in sys.modules
    import importlib, pynickel.torch
    from torch import distributed as dist
    importlib.reload(pynickel.torch)
    assert dist.is_backend_available("pynickel")
    assert dist.Backend.backend_capability["pynickel"] == ["cpu", "cuda"]
    """
    done = processes.run(textwrap.dedent(program), deadline=60)
    assert done.returncode == 0, done.stderr
