"""Saved models: one .npz file with all that a run needs to go on in the same way; written aside, then renamed, so always whole."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from model import SIZE
from settings import Unfit

FORMAT = "pynickel odd_even model 1"
CURVES = ("losses", "errors")


@dataclass
class Progress:
    """How far a run has come."""

    epoch: int = 0
    updates: int = 0
    good: int = 0  # validations so far with an error small enough
    error: float = 1.0  # the last validation's
    losses: list[float] = field(default_factory=list)  # per epoch: average loss of a sample
    errors: list[float] = field(default_factory=list)  # per epoch: average validation error


@dataclass
class Saved:
    """The content of a file. `parameters` is the model; the rest is for going on: a state for each worker."""

    parameters: np.ndarray
    settings: dict[str, Any]
    progress: Progress
    states: list[dict[str, Any]]
    validation: dict[str, Any]  # where the stream of validation numbers stands


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that has this name only once it is complete; until then, and after a failure, the name keeps what it had."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def save(path: Path, saved: Saved) -> None:
    """Write a model. Nothing in the file is code: arrays, and one text in JSON."""
    told, states = asdict(saved.progress), saved.states
    header = {
        "format": FORMAT,
        "settings": saved.settings,
        "progress": {name: value for name, value in told.items() if name not in CURVES},
        "numbers": [state["numbers"] for state in states],
        "updates": [state["updates"] for state in states],
        "validation": saved.validation,
    }
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8), "parameters": saved.parameters}
    arrays |= {name: np.array(told[name], np.float64) for name in CURVES}
    arrays["workers"] = np.stack([state["parameters"] for state in states])
    for name in states[0]["optimizer"]:
        arrays[f"optimizer.{name}"] = np.stack([state["optimizer"][name] for state in states])
    with whole(path) as file:
        np.savez(file, **arrays)


def average(states: list[dict[str, Any]], shares: list[int]) -> np.ndarray:
    """The mean of the workers' parameters by their samples; they differ only between two averagings."""
    vectors = np.stack([state["parameters"] for state in states])
    if (vectors == vectors[0]).all():
        vectors = vectors[:1]
        shares = [1]
    return np.asarray(np.average(vectors, axis=0, weights=shares), vectors.dtype)


def load(path: str | Path) -> Saved:
    """Read a model; Unfit if the file is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        header = json.loads(arrays["header"].tobytes())
        known = header["format"] == FORMAT and arrays["parameters"].shape == (SIZE,)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Unfit(f"{path} is no model that train.py has saved ({type(error).__name__}); give it an ExampleModel*.npz") from error
    if not known:
        raise Unfit(f"{path} is a model of another format, {header['format']!r}; this program reads {FORMAT!r}")
    optimizer = {name.removeprefix("optimizer."): array for name, array in arrays.items() if name.startswith("optimizer.")}
    states = [
        {
            "parameters": vector,
            "optimizer": {name: array[rank] for name, array in optimizer.items()},
            "numbers": header["numbers"][rank],
            "updates": header["updates"][rank],
        }
        for rank, vector in enumerate(arrays["workers"])
    ]
    progress = Progress(**header["progress"], **{name: arrays[name].tolist() for name in CURVES})
    return Saved(arrays["parameters"], header["settings"], progress, states, header["validation"])
