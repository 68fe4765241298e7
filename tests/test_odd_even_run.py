"""The odd-or-even example, run as a user runs it: it learns, in both modes, goes on where it was, and ends well when a worker dies."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import fcntl
import functools
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.processes import Script

ROOT = Path(__file__).resolve().parent.parent
ODD_EVEN = ROOT / "examples" / "odd_even"
ENV = {**os.environ, "PYNICKEL_LIBRARY": "host", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def command(script: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run train.py or test.py in a folder; a run that exceeds its time is killed, its children die with it, and the test fails."""
    return subprocess.run(
        [sys.executable, str(ODD_EVEN / script), *options],
        cwd=folder,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
    )


def train(folder: Path, *options: str) -> str:
    """What a good run prints."""
    done = command("train.py", folder, *options)
    # The first use of matplotlib on a machine may tell that it looks for fonts.
    assert (done.returncode, [line for line in done.stderr.splitlines() if "atplotlib" not in line]) == (0, [])
    return done.stdout


def model(path: Path) -> dict[str, np.ndarray]:
    """A saved model's arrays."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder for the runs that several tests look at."""
    with tempfile.TemporaryDirectory(prefix="pynickel-odd-even-") as name:
        yield Path(name)


@functools.cache
def whole_run(folder: Path, seed: int, share: str) -> str:
    """What a run to the early stop prints; made once. Its files are in the folder SEED-SHARE."""
    return train(folder, "--seed", str(seed), "--share", share, "--output", f"{seed}-{share}")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_learns(folder: Path, seed: int) -> None:
    """Four workers stop early within 1,000 to 1,250 updates, mean loss below 1e-3, and all numbers from 1 to 10 come out right."""
    printed = whole_run(folder, seed, "gradients")
    end = re.search(r"^stopped early after (\d+) updates, (\d+) epochs: average loss per sample (\S+), validation error 0%$", printed, re.M)
    assert end, printed[-500:]
    assert 1000 <= int(end[1]) <= 1250
    assert int(end[2]) == -(-int(end[1]) // 3)
    assert float(end[3]) < 1e-3
    parameters = model(folder / f"{seed}-gradients" / "ExampleModel.npz")["parameters"]
    weight, bias, output_weight, output_bias = np.split(parameters, [200, 220, 240])
    outputs = (weight.reshape(20, 10).T + bias) @ output_weight + output_bias
    assert abs(outputs - [1, 0] * 5).max() < 0.1


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_both_modes_are_the_same(folder: Path, seed: int) -> None:
    """Summing gradients and averaging parameters at every step give the same parameters to 1e-12 over a whole run."""
    ends = [whole_run(folder, seed, share).splitlines()[-2] for share in ("gradients", "parameters")]
    assert ends[0] == ends[1]
    one, other = (model(folder / f"{seed}-{share}" / "ExampleModel.npz") for share in ("gradients", "parameters"))
    assert one["parameters"].dtype == np.float64
    assert abs(one["parameters"] - other["parameters"]).max() <= 1e-12
    for trained in (one, other):
        assert len(np.unique(trained["workers"], axis=0)) == 1


def test_lines_and_files(folder: Path) -> None:
    """Each epoch has a heading, a line for each update and one at its end, and a row in the log, which ends with one row more.

    Interim models lie at 100, 200 and 300 epochs, the picture is a small PNG, and nothing else is left.
    """
    printed = whole_run(folder, 0, "gradients").splitlines()
    epochs = int(re.search(r"(\d+) epochs", printed[-2])[1])
    first = "host library, 4 workers share gradients; nesterov, float64, 4 samples per update, 3 updates per epoch, seed 0"
    assert printed[0] == first
    assert printed[1] == "241 parameters, fresh"
    assert [line for line in printed if re.fullmatch(r"epoch \d+", line)] == [f"epoch {number}" for number in range(1, epochs + 1)]
    number = r"\d\.\d{4}e[+-]\d\d"
    update = rf"epoch 2 update 3/3 \(6\): loss {number}, mean \|gradient\| {number}, mean \|parameter\| {number}"
    end = r"epoch 2: average loss per sample \d\.\d\d, average validation error 100%; drawing \S+ s, computing \S+ s"
    assert sum(bool(re.fullmatch(update, line)) for line in printed) == 1
    assert sum(bool(re.fullmatch(end, line)) for line in printed) == 1
    files = folder / "0-gradients"
    heading, *rows = (files / "ExampleModel.log").read_text().splitlines()
    assert heading == "average loss per sample\taverage validation error %"
    assert len(rows) == epochs + 1
    assert all(re.fullmatch(rf"{number}\t{number}", row) for row in rows)
    assert rows[-1] == rows[-2]
    picture = (files / "ExampleModel.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 100_000
    interim = {f"ExampleModel_epoch_{epoch}.npz" for epoch in (100, 200, 300)}
    assert {path.name for path in files.iterdir()} == {"ExampleModel.npz", "ExampleModel.log", "ExampleModel.png"} | interim


@pytest.mark.parametrize(("workers", "updates"), [(1, 10), (2, 5), (3, 3)])
def test_fewer_workers(tmp_path: Path, workers: int, updates: int) -> None:
    """One, two and three workers stop early too, in epochs of 10, 5 and 3 updates, and get all numbers right.

    The two commands need no options but these, and find each other's files from any folder.
    """
    printed = train(tmp_path, "--workers", str(workers), "--seed", "0")
    assert f", {updates} updates per epoch," in printed
    assert re.search(r"^stopped early after 1\d{3} updates", printed, re.M)
    tested = command("test.py", tmp_path, *["--all"][: workers - 1])
    assert tested.returncode == 0, tested.stdout + tested.stderr
    *lines, last = tested.stdout.splitlines()
    assert len(lines) == 10
    assert workers == 1 or [int(line.split(":")[0]) for line in lines] == list(range(1, 11))
    for line in lines:
        number, output, verdict = re.fullmatch(r" ?(\d+): ([01]\.\d\d), (even|odd)", line).groups()
        assert verdict == ("odd" if int(number) % 2 else "even") == ("odd" if float(output) > 0.5 else "even")
    assert last == "10 of 10 right"


@pytest.mark.parametrize("options", [["--dtype", "float32"], ["--share=parameters", "--every=7", "--optimizer=adam", "--batch=10"]])
def test_resume(tmp_path: Path, options: list[str]) -> None:
    """A run that goes on from an interim model ends with the files of an unbroken one to the last bit, every worker's state included.

    That holds too where the model was saved between two averagings, when the workers differ.
    """
    train(tmp_path, "--seed=3", "--epochs=30", "--save-every=10", "--output=whole", *options)
    printed = train(tmp_path, "--epochs=30", "--resume=whole/ExampleModel_epoch_10.npz", "--output=rest")
    assert "241 parameters, from whole/ExampleModel_epoch_10.npz" in printed
    assert "epoch 10\n" not in printed
    assert "epoch 11\n" in printed
    one, other = (model(tmp_path / name / "ExampleModel.npz") for name in ("whole", "rest"))
    assert one.keys() == other.keys()
    assert [name for name in one if not np.array_equal(one[name], other[name])] == []
    logs = [(tmp_path / name / "ExampleModel.log").read_bytes() for name in ("whole", "rest")]
    assert logs[0] == logs[1]
    if "--every=7" in options:
        assert len(np.unique(model(tmp_path / "whole" / "ExampleModel_epoch_10.npz")["workers"], axis=0)) == 4


@pytest.mark.parametrize(("victim", "options"), [(2, []), (1, ["--share=parameters", "--every=5"])])
def test_killed_worker(tmp_path: Path, victim: int, options: list[str]) -> None:
    """A worker killed in the middle: every other process says which, and ends within 5 seconds; the last interim model is whole."""
    output = ["--output", str(tmp_path), "--save-every", "10", "--debug", *options]
    with Script(ODD_EVEN / "train.py", *output, env={"PYNICKEL_LIBRARY": "host"}) as script:
        script.wait_for("epoch 25 update 1", deadline=30)
        pid = int(re.search(rf"worker {victim} answers: process (\d+)", script.stdout)[1])
        others = [process for process in psutil.Process(script.process.pid).children() if process.pid != pid]
        assert len(others) == 2
        os.kill(pid, 9)
        killed = time.monotonic()
        run = script.finish(deadline=20, patience=0)
        assert psutil.wait_procs(others, timeout=5)[1] == []
        assert time.monotonic() - killed < 5
    assert (run.returncode, run.left) == (1, [])
    # whoever notices first says it: the parent, or NCCL in one of the others
    dead = rf"(child {victim} \(pid {pid}\) was killed by SIGKILL|worker {victim} \(pid {pid}\) is lost)"
    for other in {1, 2, 3} - {victim}:
        assert re.search(rf"^<00{other}> ends: {dead}$", run.stderr, re.M), run.stderr
    assert re.search(rf"^train.py: (ChildError: )?.*{dead}", run.stderr, re.M), run.stderr
    assert "Traceback" not in run.stderr
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
    tested = command("test.py", tmp_path, "ExampleModel_epoch_20.npz")
    assert len(tested.stdout.splitlines()) == 11, tested.stderr


def test_worker_that_raises(tmp_path: Path) -> None:
    """An exception in one worker, while the others wait inside NCCL: its traceback is shown once, all end, and the others say which."""
    copy = shutil.copytree(ODD_EVEN, tmp_path / "odd_even")
    source = (copy / "network.py").read_text()
    call = "        average_gradients("
    assert source.count(call) == 1
    fault = "        if self.updates == 20 and self.comm.rank == 3:\n            raise LookupError('no more')\n"
    (copy / "network.py").write_text(source.replace(call, fault + call))
    source = (copy / "meeting.py").read_text()
    patience = "PATIENCE = 2.0 "
    assert source.count(patience) == 1
    (copy / "meeting.py").write_text(source.replace(patience, "PATIENCE = 20.0 "))  # a busy machine must not change who is told
    with Script(copy / "train.py", "--output", str(tmp_path), env={"PYNICKEL_LIBRARY": "host"}) as script:
        run = script.finish(deadline=40)
    assert (run.returncode, run.left) == (1, [])
    assert run.stderr.count("Traceback") == 1, run.stderr
    told = r"child 3 \(pid \d+\) failed: LookupError: no more$"
    for who in ("<001> ends: ", "<002> ends: ", "train.py: ChildError: "):
        assert re.search(f"^{who}{told}", run.stderr, re.M), run.stderr


def test_progress_bar(tmp_path: Path) -> None:
    """On a terminal a bar stands for the lines of updates and epochs; beginning and end are told there too."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    running = subprocess.Popen(
        [sys.executable, str(ODD_EVEN / "train.py"), "--workers=2", "--epochs=20", "--seed=0"],
        cwd=tmp_path, env=ENV, stdin=its, stdout=its, stderr=its,
    )  # fmt: skip
    try:
        os.close(its)
        shown = b""
        while (part := read(ours)) != b"":
            shown += part
        assert running.wait(10) == 0
    finally:
        running.kill()
        running.wait(10)
        os.close(ours)
    text = shown.decode()
    assert re.search(r"100/100 .*loss \d\.\de-\d\d, validation error \d+%", text), text
    assert "ended after 100 updates, 20 epochs" in text
    assert "epoch 2" not in text


def read(descriptor: int) -> bytes:
    """What stands on a terminal; nothing once nobody has it open any more."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--share=parameters", "--every=0"], 2, "must be at least 1, not 0"),
        (["--batch=2"], 2, "--batch 2 leaves some of the 4 workers without a sample"),
        (["--resume=nowhere.npz"], 1, "nowhere.npz"),
        (["--optimizer=sgd", "--rate=1e200", "--workers=2"], 1, "give a smaller --rate"),
        (["--library=/nowhere/libnccl.so"], 1, "/nowhere/libnccl.so"),
    ],
)
def test_errors_speak(tmp_path: Path, options: list[str], status: int, words: str) -> None:
    """What cannot work ends at once, with one message that names it and no traceback."""
    done = command("train.py", tmp_path, *options)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
