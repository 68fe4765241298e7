"""Ranks of torch.distributed as processes, without a launcher, so that a test sees how each of them ends; and what one runs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from helpers.processes import Script

QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
BEGIN = """\
import os, sys, time, datetime
import torch
from torch import distributed as dist
import pynickel.torch
torch.set_num_threads(1)
def init(seconds=20, **given):
    dist.init_process_group(
        "pynickel", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=seconds), **given)
    return dist.get_rank(), dist.get_world_size()
"""


def tests_path() -> dict[str, str]:
    """Where a script finds these helpers."""
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])])}


@contextlib.contextmanager
def started(source: str | Path, nranks: int, folder: Path, *args: str, env: dict[str, str] | None = None) -> Iterator[list[Script]]:
    """The ranks of a script; they meet by a file in the folder. All are gone afterwards."""
    text = source if isinstance(source, Path) else BEGIN + source
    with contextlib.ExitStack() as stack:
        store = folder / f"store-{len(list(folder.iterdir()))}"
        given = [{**QUIET, "RANK": str(rank), "WORLD_SIZE": str(nranks), "STORE": str(store), **(env or {})} for rank in range(nranks)]
        yield [stack.enter_context(Script(text, *args, env=one)) for one in given]


def main() -> None:
    """One rank: all claims of some modules, each with the first 1 to nranks ranks; writes who failed at what as JSON."""
    exec(compile(BEGIN, "begin", "exec"), globals())
    modules = [importlib.import_module(name) for name in sys.argv[1:]]
    claims = {name: getattr(module, name) for module in modules for name in dir(module) if name.startswith("claim_")}
    found: dict[str, list[str]] = {}
    from torch import distributed as dist

    me, nranks = init()  # type: ignore[name-defined]  # noqa: F821
    groups = {n: [dist.new_group(list(range(n))) for _ in range(4)] for n in range(1, nranks + 1)}
    for name, claim in claims.items():
        found[name.removeprefix("claim_")] = troubles = []
        for n in range(me + 1, nranks + 1):
            try:
                claim(groups[n][0], me, n, *([groups[n][1:]] if name == "claim_threads" else []))
            except Exception:
                troubles.append(f"rank {me} of {n}:\n{traceback.format_exc()}")
                groups[n][0].abort()  # so that the others are told
    Path(os.environ["STORE"] + f".{me}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
