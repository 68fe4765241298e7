"""`pynickel bench`: nccl-tests' columns and formulas, right data and wrong ones, exit statuses, JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pynickel import DataType
from pynickel.tools.bench import compare, output, room, start, table, values
from pynickel.tools.bench.collectives import COLLECTIVES
from pynickel.tools.bench.settings import OPS, TYPES, Settings, size_of
from pynickel.tools.bench.sweep import Half, Row
from pynickel.tools.cli import main


def bench(*words: str) -> Result:
    """Run the command in this process, as one process of ranks that are threads."""
    return CliRunner().invoke(main, ["bench", *words, "--ranks", "1"])


def rows(text: str) -> list[list[str]]:
    """The table's data lines, split into columns."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


# size in bytes, seconds, ranks -> algorithm and bus bandwidth in GB/s, worked out by hand from nccl-tests' table.
WORKED = {
    "all_reduce": (1_000_000, 1e-3, 4, 1.0, 1.5),
    "reduce": (1_000_000, 1e-3, 4, 1.0, 1.0),
    "broadcast": (2_000_000, 1e-3, 8, 2.0, 2.0),
    "sendrecv": (1_000_000, 5e-4, 2, 2.0, 2.0),
    "all_gather": (4_000_000, 1e-3, 4, 4.0, 3.0),
    "reduce_scatter": (4_000_000, 1e-3, 8, 4.0, 3.5),
    "alltoall": (1_000_000, 1e-3, 2, 1.0, 0.5),
    "gather": (1_000_000, 1e-3, 4, 1.0, 0.75),
    "scatter": (1_000_000, 1e-3, 5, 1.0, 0.8),
}


def test_formulas() -> None:
    """Bandwidths agree with worked numbers for every collective, and with one rank all-reduce and the gather family have none."""
    assert set(WORKED) == set(COLLECTIVES)
    for name, (nbytes, seconds, nranks, algorithm, bus) in WORKED.items():
        assert COLLECTIVES[name].bandwidth(nbytes, nranks, seconds) == pytest.approx((algorithm, bus)), name
    for name in ("all_reduce", "all_gather", "gather", "scatter", "alltoall", "reduce_scatter"):
        assert COLLECTIVES[name].bandwidth(1 << 20, 1, 1e-3)[1] == 0.0


def test_counts() -> None:
    """The count is the whole for all-reduce and its kin, and for the gather family one rank's part, cut to 16 bytes."""
    assert COLLECTIVES["all_reduce"].count(1000, 4, 3) == 250
    assert COLLECTIVES["all_gather"].count(1000, 4, 3) == 80
    assert COLLECTIVES["all_gather"].elements(80, 3) == (80, 240)
    assert COLLECTIVES["scatter"].count(40, 8, 3) == 0  # tiny sizes show 0, as in nccl-tests
    assert COLLECTIVES["alltoall"].elements(4, 3) == (12, 12)


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective_is_right(name: str) -> None:
    """Three ranks as threads: #wrong is 0 in and out of place for every root, and the columns are nccl-tests'."""
    ended = bench(name, "-t", "3", "-b", "64", "-e", "16K", "-f", "16", "-r", "-1", "-n", "2")
    assert ended.exit_code == 0, ended.output
    found = rows(ended.output)
    collective = COLLECTIVES[name]
    assert len(found) == 3 * (3 if collective.rooted else 1)
    for size, count, kind, op, root, *cells in found:
        assert int(size) == max(collective.elements(int(count), 3)) * 4
        assert (kind, op) == ("float", "sum" if collective.reduces else "none")
        assert root in ("0", "1", "2") if collective.rooted else root == "-1"
        assert cells[3] == "0" and cells[7] == ("0" if collective.in_place else "N/A")
        assert float(cells[0]) > 0
    assert "# Out of bounds values : 0 OK" in ended.output


def test_every_type_and_operator_is_right() -> None:
    """All 12 types and 6 operators on 5 ranks, all-reduce and reduce-scatter."""
    for name in ("all_reduce", "reduce_scatter"):
        ended = bench(name, "-t", "5", "-b", "2K", "-e", "2K", "-n", "1", "-o", "all", "-d", "all", "-z", "1", "-m", "2")
        assert ended.exit_code == 0, ended.output
        found = rows(ended.output)
        assert [(row[2], row[3]) for row in found] == [(kind, op) for kind in TYPES for op in OPS]
        assert {row[8] for row in found} | {row[12] for row in found} == {"0"}


def test_wrong_data_is_seen(tmp_path: Path) -> None:
    """One wrong bit on one rank gives #wrong 1, FAILED in the footer and in the JSON, and exit status 7."""
    file = tmp_path / "out.json"
    words = ["all_reduce", "-t", "2", "-b", "1K", "-e", "1K", "-n", "1", "-w", "0", "-J", str(file), "--ranks", "1"]
    # The calls of a rank: its introduction; a barrier, the timed call and the times' exchange; a barrier and the checked call.
    ended = program(*words, NICKEL_FAULT="corrupt:rank=1,call=6")
    assert ended.returncode == 7, ended.stdout + ended.stderr
    ((*_, time, algorithm, bus, wrong, time_in, algorithm_in, bus_in, wrong_in),) = rows(ended.stdout)
    assert (wrong, wrong_in) == ("1", "0")
    assert "# Out of bounds values : 1 FAILED" in ended.stdout
    found = json.loads(file.read_text())
    assert found["out_of_bounds"] == {"count": 1, "okay": "false"} and found["results"][0]["out_of_place"]["nwrong"] == 1


def program(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a program of its own."""
    command = [sys.executable, "-m", "pynickel", "bench", *words]
    environment = {**os.environ, **env}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40, check=False)


def test_ranks_as_processes_and_json(tmp_path: Path) -> None:
    """--ranks starts processes; the JSON agrees with the table, is filtered, and never written over another file."""
    file = tmp_path / "out.json"
    words = ["all_gather", "--ranks", "2", "-t", "2", "-b", "1K", "-e", "4K", "-f", "2", "-n", "2", "-J", str(file)]
    ended = program(*words, NCCL_DEBUG="WARN", SOME_SECRET="x", PYNICKEL_KEY="0123456789abcdef")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(file.read_text())
    table_rows = rows(ended.stdout)
    assert len(table_rows) == len(found["results"]) == 3 and len(found["config"]["devices"]) == 4
    for row, result in zip(table_rows, found["results"], strict=True):
        assert row[:5] == [str(result["size"]), str(result["count"]), result["type"], result["redop"], result["root"].strip()]
        for cells, half in ((row[5:9], result["out_of_place"]), (row[9:], result["in_place"])):
            shown = [table.fit(half["time"], 7), table.fit(half["alg_bw"], 6), table.fit(half["bus_bw"], 6), str(half["nwrong"])]
            assert cells == shown
    assert found["env"]["NCCL_DEBUG"] == "WARN" and not {"SOME_SECRET", "PYNICKEL_KEY"} & set(found["env"])
    assert output.write(file, {}) == tmp_path / "out_1.json" and json.loads(file.read_text()) == found


def test_wrong_usage_is_6() -> None:
    """Wrong usage ends with nccl-tests' status 6 and says what is right; what is left out is named as not there."""
    for words, said in (
        (["all_sum"], "there are all_gather"),
        (["all_reduce", "-b", "2M", "-e", "1M"], "is more than"),
        (["all_reduce", "-b", "many"], "give bytes, or a number with K, M or G"),
        (["all_reduce", "-G", "1"], "-G of nccl-tests (CUDA graphs) is not there"),
        (["all_reduce", "--cta_policy", "1"], "is not there"),
        (["broadcast", "-b", "8", "-e", "8", "-r", "5"], "there are 0 to 0"),
        (["broadcast", "-r", "first"], "give a number"),
        (["all_reduce", "-i", "0"], "is less than 1"),
        (["all_reduce", "-f", "nan"], "is no number"),
        (["all_reduce", "-J", "/nowhere/x.json"], "/nowhere is no directory that can be written to"),
        (["all_reduce", "--plot", "/nowhere/x.png"], "/nowhere is no directory that can be written to"),
        (["all_reduce", "--plot", "x.foo"], "there are .png"),
        (["all_reduce", "-b", "100000G", "-e", "100000G"], "the largest size that fits the free memory"),
        (["all_reduce", "--compare", "nobody"], "there are mpi, gloo"),
    ):
        ended = bench(*words)
        assert ended.exit_code == 6 and said in ended.output, (words, ended.output)


def test_unknown_types_and_operators_are_replaced() -> None:
    """As in nccl-tests an unknown type means float and an unknown operator sum, and that is said."""
    ended = bench("all_reduce", "-b", "64", "-e", "64", "-n", "1", "-d", "quad", "-o", "xor")
    assert ended.exit_code == 0
    assert "invalid type quad, using float" in ended.output and "invalid op xor, using sum" in ended.output
    assert rows(ended.stdout)[0][2:4] == ["float", "sum"]


def test_a_rank_that_does_not_come_is_a_timeout() -> None:
    """-T: a wait that takes longer ends the program with status 4 and the library's words."""
    ended = program("all_reduce", "-b", "64", "-e", "64", "-T", "0.2", "--ranks", "2", NICKEL_FAULT="delay:rank=1,call=5,ms=600")
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert "WaitTimeoutError" in ended.stderr


def test_sizes_and_numbers() -> None:
    """Sizes take binary units and decimals; numbers lose decimals to fit their column, then get an exponent."""
    assert [size_of(text) for text in ("8", "1K", "1.5M", "2g")] == [8, 1024, 3 << 19, 2 << 30]
    assert [table.fit(value, 7) for value in (1.234, 12345.678, 123456.78, 1234567.8, 123456789.0)] == [
        "1.23", "12345.7", "123457", "1234568", "1.2e+08",
    ]  # fmt: skip
    half = Half(1.5e-3, 10.0, 20.0, None)
    assert table.line(Row(8, 2, "float", "sum", -1, half, None)) == (
        "           8             2     float     sum      -1  1500.00   10.00   20.00     N/A      N/A     N/A     N/A     N/A"
    )


def test_data_are_exact() -> None:
    """What is sent is exact in every type, and so is every sum of a few of many ranks, for up to 300 ranks."""
    for element in DataType:
        for op in ("sum", "prod", "max", "mulsum"):
            for nranks in (1, 2, 7, 300):
                for rank in (0, nranks - 1):
                    sent = values.numbers(element, op, rank, nranks)
                    assert (values.decode(values.encode(sent, element), element) == sent).all()
                if values.is_float(element) and op in ("sum", "max"):
                    total = values.reduced(element, op, nranks)
                    assert (values.decode(values.encode(total, element), element) == total).all(), (element, op, nranks)


def test_float8_is_ml_dtypes() -> None:
    """Our decoder of 8-bit floats agrees with ml_dtypes on all 256 codes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(256, dtype=np.uint8)
    for element, kind in ((DataType.float8e4m3, ml_dtypes.float8_e4m3fn), (DataType.float8e5m2, ml_dtypes.float8_e5m2)):
        assert np.array_equal(values.decode(codes, element), codes.view(kind).astype(np.float64), equal_nan=True)


def test_comparison_table() -> None:
    """The peers' times stand beside ours with the ratio; a size that a peer has not is N/A."""
    made = [Row(size, size // 4, "float", "sum", -1, Half(2e-6, 1.0, 1.0, 0), None) for size in (8, 16)]
    text = compare.table("all_reduce", made, {"mpi": ("Some MPI 1.0", {8: 5e-6})})
    assert rows(text) == [["8", "2.00", "5.00", "2.50"], ["16", "2.00", "N/A", "N/A"]]
    assert "# mpi: Some MPI 1.0" in text


def test_environment_is_filtered() -> None:
    """Only variables that bear on the measurement are written, and never what looks like a secret."""
    given = {"NCCL_ALGO": "RING", "HOME": "/h", "PYNICKEL_KEY": "k", "NCCL_API_TOKEN": "t", "SLURM_NNODES": "2", "SLURM_JWT": "j"}
    assert output.environment(given) == {"NCCL_ALGO": "RING", "SLURM_NNODES": "2"}


@pytest.mark.slow
def test_plot(tmp_path: Path) -> None:
    """--plot writes a picture."""
    pytest.importorskip("matplotlib")
    file = tmp_path / "out.png"
    ended = bench("all_reduce", "-t", "2", "-b", "64", "-e", "4K", "-f", "8", "-n", "1", "--plot", str(file))
    assert ended.exit_code == 0 and file.read_bytes().startswith(b"\x89PNG")


def test_json_instead_of_the_table() -> None:
    """--json: nothing but JSON on stdout, and #wrong in the exit status as ever."""
    ended = bench("all_reduce", "-t", "2", "-b", "64", "-e", "64", "-n", "1", "--json")
    found = json.loads(ended.stdout)
    assert ended.exit_code == 0 and found["results"][0]["size"] == 64 and "free" not in found["config"]["devices"][0]


def test_sizes_fit_the_memory() -> None:
    """Sizes are cut to a third of the free memory (half without check) of each rank; ranks of one machine share, devices do not."""
    cpu = {"hostname": "a", "device_hex": "cpu", "device": 0, "free": 16 << 20}
    gpu = {"hostname": "a", "device_hex": "0000:01:00.0", "device": 0, "free": 16 << 20}
    assert room.most_bytes([cpu], checked=True) == (15 << 20) // 3
    assert room.most_bytes([cpu], checked=False) == (15 << 20) // 2
    assert room.most_bytes([cpu, {**cpu, "device": 1}], checked=True) == (15 << 20) // 2 // 3
    assert room.most_bytes([gpu, {**gpu, "device": 1}], checked=True) == (15 << 20) // 3
    assert room.most_bytes([{**cpu, "free": 0}], checked=True) is None
    assert start.fitted(settings(max_bytes=1 << 40), [cpu]).max_bytes == (15 << 20) // 3
    assert "# Reducing maxBytes to 5 due to memory limitation" in table.heading(settings(max_bytes=5), [], "", asked=9)


def settings(max_bytes: int) -> Settings:
    """What the command makes of few options."""
    return Settings("all_reduce", 1, 8, max_bytes, 1 << 20, 2, 1, 0, 1, 1, 1, ("sum",), ("float",), 0, 1, 0, 0, None, None)


def test_large_data_are_compared_in_pieces() -> None:
    """A wrong element is found wherever it is, also behind the first piece, whatever part of the data the buffer begins with."""
    element = DataType.float32
    for start_at, count in ((0, 3 * values.PIECE + 5), (77, values.PIECE), (3, 10)):
        got = values.spread(values.encode(values.numbers(element, "sum", 1, 2), element), start_at, count)
        for off in (0.0, 1e-9):
            assert values.wrong(got, values.numbers(element, "sum", 1, 2), start_at, element, off) == 0
        got[count - 1] ^= 1 << 30
        assert values.wrong(got, values.numbers(element, "sum", 1, 2), start_at, element, 0.0) == 1


def test_ended_by_its_user_or_by_nobody_reading() -> None:
    """-N 0 goes on until SIGINT, to the launcher alone (status 130) or until nobody reads the table (status 0); no rank is left."""
    command = [sys.executable, "-m", "pynickel", "bench", "all_reduce", "-b", "8", "-e", "8", "-n", "1", "-N", "0", "--ranks", "2"]
    for how in ("signal", "close"):
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert run.stdout is not None and run.stderr is not None
        lines = [run.stdout.readline() for _ in range(14)]
        ranks = [int(line.split()[6]) for line in lines if line.startswith("#  Rank")]
        assert len(ranks) == 2, lines
        if how == "signal":
            run.send_signal(signal.SIGINT)
            said = run.communicate(timeout=30)[1]
            assert run.returncode == 130 and said == "# interrupted\n", said
        else:
            run.stdout.close()
            assert run.wait(30) == 0
            run.stderr.close()
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)


# Two ranks, kept as those of the command are. Rank 0 ends at SIGINT, once rank 1 has; that one ends in the way that is given.
KEPT = """
import os, signal, sys, time
from pynickel.tools import keep, watch

how, note = sys.argv[1:3]
def others_end(*_):
    while os.path.exists(f"/proc/{open(note).read()}"): time.sleep(0.01)

if "RANK" not in os.environ:
    environments = [{**os.environ, "RANK": str(rank)} for rank in range(2)]
    ranks = keep.Ranks([sys.executable, __file__, how, note], environments, prefix=False, grace=60, tells=True)
    sys.exit(watch.run(ranks.keep))
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGINT, lambda *_: (others_end(), os._exit(130)))
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL if how == "dies" else lambda *_: os._exit(3))
    with open(note + "+", "w") as file: file.write(str(os.getpid()))
    os.rename(note + "+", note)
    if how == "before": os._exit(3)
while not os.path.exists(note): time.sleep(0.01)
if how == "before": others_end()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("how", "status"), [("fails", 130), ("dies", 130), ("before", 3)])
def test_which_end_is_told(how: str, status: int, tmp_path: Path) -> None:
    """A rank that ends because another one has heard SIGINT first is no failure; one that had ended before that is."""
    (script := tmp_path / "kept.py").write_text(KEPT)
    command = [sys.executable, str(script), how, str(tmp_path / "note")]
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for _ in range(1 if how == "before" else 2):
        assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGINT)
    assert (run.communicate(timeout=30)[1], run.returncode) == ("", status)


@pytest.mark.slow
def test_progress_on_a_terminal(tmp_path: Path) -> None:
    """While the table goes into a file, a bar on the terminal counts the rows, and its line is cleared in the end; else there is none."""
    for to_file in (True, False):
        ours, theirs = pty.openpty()
        with (tmp_path / "table").open("w") as file:
            command = [sys.executable, "-m", "pynickel", "bench", "all_reduce", "-b", "8", "-e", "32", "-f", "2", "-n", "1", "--ranks", "2"]
            run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file if to_file else theirs, stderr=theirs)
            assert run.wait(30) == 0
        os.close(theirs)
        shown = ""
        with contextlib.suppress(OSError):  # EIO is a terminal's end
            while data := os.read(ours, 65536):
                shown += data.decode()
        os.close(ours)
        if to_file:
            assert "3/3" in shown and shown.endswith("\r\x1b[K") and "size" not in shown
            assert len(rows((tmp_path / "table").read_text())) == 3
        else:
            assert "\x1b" not in shown and len(rows(shown)) == 3
