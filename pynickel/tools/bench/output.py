"""The measurements as JSON, in nccl-tests' form (version 3); the environment is filtered."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .settings import Settings
from .sweep import Half, Row
from .table import Summary

# Nothing else is anybody's business.
PREFIXES = ("NCCL_", "CUDA_", "PYNICKEL_", "NICKEL_", "OMP_", "OMPI_MCA_", "UCX_", "SLURM_N", "SLURM_JOB_")
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that bear on a measurement, without what looks like a secret."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(PREFIXES) and not any(word in name.upper() for word in SECRETS)
    }


def document(
    settings: Settings,
    rows: Sequence[Row],
    summary: Summary,
    devices: Sequence[Mapping[str, Any]],
    version: str,
    times: tuple[str, str],
    errors: str,
) -> dict[str, Any]:
    """The whole of it."""
    return {
        "version": 3,
        "start_time": times[0],
        "args": sys.argv,
        "env": environment(os.environ),
        "nccl_version": version,
        "config": config(settings, devices),
        "results": [result(row) for row in rows],
        "out_of_bounds": {"count": summary.wrong, "okay": text(summary.wrong == 0)},
        "average_bus_bandwidth": {"bandwidth": summary.bandwidth, "okay": text(True)},
        "errors": errors,
        "end_time": times[1],
    }


def config(settings: Settings, devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings under nccl-tests' names."""
    by_factor = settings.step_factor > 1
    return {
        "nthreads": settings.threads,
        "ngpus": 1,
        "minimum_bytes": settings.min_bytes,
        "maximum_bytes": settings.max_bytes,
        ("step_factor" if by_factor else "step_bytes"): settings.step_factor if by_factor else settings.step_bytes,
        "warmup_iters": settings.warmup,
        "iterations": settings.iterations,
        "aggregated_iterations": settings.aggregated,
        "validation": settings.checks,
        "graph": 0,
        "blocking_collectives": text(settings.blocking != 0),
        "per_iter_timing": text(False),
        "per_iter_skip": 0,
        "parallel_init": text(False),
        "devices": [{name: value for name, value in device.items() if name != "free"} for device in devices],
    }


def result(row: Row) -> dict[str, Any]:
    """One line of the table."""
    found: dict[str, Any] = {"size": row.size, "count": row.count, "type": row.type, "redop": row.op, "root": f"{row.root:>6}"}
    found["out_of_place"] = half(row.out_of_place)
    found["in_place"] = half(row.in_place)
    return found


def half(found: Half | None) -> dict[str, Any] | None:
    """One form: microseconds and GB/s, as in the table."""
    if found is None:
        return None
    return {"time": found.seconds * 1e6, "alg_bw": found.algorithm, "bus_bw": found.bus, "nwrong": found.wrong}


def text(flag: bool) -> str:
    """Booleans are written as text."""
    return "true" if flag else "false"


def text_of(content: Mapping[str, Any]) -> str:
    """The file's text."""
    return json.dumps(content, indent=1) + "\n"


def write(path: Path, content: Mapping[str, Any]) -> Path:
    """Write it to that path, or, if a file is there, to the first free one with a number; returns where it is."""
    number = 0
    while True:
        place = path if number == 0 else path.with_name(f"{path.stem}_{number}{path.suffix}")
        try:
            with place.open("x", encoding="utf-8") as file:  # never over somebody's figures
                file.write(text_of(content))
            return place
        except FileExistsError:
            number += 1
