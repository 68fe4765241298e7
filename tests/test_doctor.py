"""`pynickel doctor`: it finds what is wrong, says the remedy, and ends with 1 only for problems."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pynickel
from pynickel.tools.doctor import compare, limits, network, variables
from pynickel.tools.doctor.finding import NOTE, OK, PROBLEM, Finding
from pynickel.tools.doctor.known import KNOWN, nearest

LIMIT = 60.0


def doctor(*words: str, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a program."""
    command = [*before, sys.executable, "-m", "pynickel", "doctor", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_"))} | env
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False)


def found(ended: subprocess.CompletedProcess[str], topic: str) -> list[dict[str, str]]:
    """The findings on a topic."""
    return [one for one in json.loads(ended.stdout) if one["topic"] == topic]


def test_this_machine() -> None:
    """On a machine that is fine there is no problem, the library and the reason for it are named, and two ranks add up."""
    ended = doctor()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 problems" in ended.stdout and "\x1b" not in ended.stdout
    assert "libnickel_host.so" in ended.stdout and "PYNICKEL_LIBRARY=host" in ended.stdout
    assert "right on both" in ended.stdout


def test_what_is_wrong_is_found() -> None:
    """Scenario 74: a wrong library path, a misspelt variable and a bad interface are problems with remedies; status 1."""
    ended = doctor(
        "--json", PYNICKEL_LIBRARY="/nowhere/libnccl.so", NCCL_DEBGU="INFO", NCCL_SOCKET_IFNAME="eth77", CUDA_MPS_PIPE_DIRECTORY="/nowhere"
    )
    assert ended.returncode == 1
    (library,) = found(ended, "library")
    assert library["level"] == PROBLEM and "/nowhere/libnccl.so" in library["text"] and "PYNICKEL_LIBRARY" in library["remedy"]
    misspelt = [one for one in found(ended, "variable") if "NCCL_DEBGU" in one["text"]]
    assert misspelt[0]["level"] == PROBLEM and misspelt[0]["remedy"] == "did you mean NCCL_DEBUG?"
    (interface,) = found(ended, "network")
    assert interface["level"] == PROBLEM and "eth77 matches no interface" in interface["text"] and "lo (" in interface["text"]
    (mps,) = found(ended, "MPS")
    assert mps["level"] == PROBLEM and "pynickel mps start" in mps["remedy"]


def test_two_copies_of_nccl(tmp_path: Path) -> None:
    """Two libnccl in one process are a problem that names both."""
    copies = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        copies.append(Path(shutil.copy(pynickel.load("host").path, tmp_path / name / "libnccl.so.2")))
    ended = doctor("--json", "--no-self-test", PYNICKEL_LIBRARY=str(copies[0]), LD_PRELOAD=str(copies[1]))
    (both,) = found(ended, "two NCCLs")
    assert ended.returncode == 1 and all(str(copy) in both["text"] for copy in copies) and "uninstall" in both["remedy"]


def test_ranks_are_compared() -> None:
    """Under a launcher only what differs is printed, by rank, and a problem of any rank ends with 1."""
    script = 'if [ "$RANK" = 1 ]; then export NCCL_DEBGU=INFO; fi; exec "$0" -m pynickel doctor'
    ended = doctor_under("run", "-n", "3", "--no-prefix", "--", "sh", "-c", script, sys.executable)
    assert ended.returncode == 1
    assert "ranks 0, 2: nothing of the kind" in ended.stdout and "problem on rank 1: variable: NCCL_DEBGU" in ended.stdout
    assert "libnickel_host" not in ended.stdout
    ended = doctor_under("run", "-n", "2", "--no-prefix", "--", sys.executable, "-m", "pynickel", "doctor")
    assert ended.returncode == 0 and ended.stdout == "all 2 ranks agree, and none has a problem\n", ended.stdout + ended.stderr


def test_report_that_takes_long() -> None:
    """The ranks with nothing to print end with the one that prints: a launcher ends that one soon after the first that fails."""
    script = """
import os, time
from pynickel.tools.doctor import command as doctor
if os.environ["RANK"] == "0":
    doctor.show_ranks = lambda *given, shown=doctor.show_ranks: (time.sleep(1.5), shown(*given))
doctor.command()
"""
    ended = doctor_under("run", "-n", "2", "--no-prefix", "--", "env", "NCCL_DEBGU=INFO", sys.executable, "-c", script)
    assert ended.returncode == 1 and "problem on ranks 0-1: variable: NCCL_DEBGU" in ended.stdout, ended.stdout + ended.stderr


def doctor_under(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of pynickel, without variables that would count."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_"))}
    command = [sys.executable, "-m", "pynickel", *words]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.slow
def test_under_mpirun() -> None:
    """Under mpirun with one rank different, rank 0 shows the difference and the remedy."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    script = 'if [ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 1 ]; then export NCCL_SOCKET_IFNAME=eth77; fi; exec "$0" -m pynickel doctor'
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    ended = subprocess.run(
        [mpirun, "-n", "2", "sh", "-c", script, sys.executable], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ended.returncode != 0 and "problem on rank 1: network: NCCL_SOCKET_IFNAME=eth77" in ended.stdout, ended.stdout + ended.stderr


def test_nearest_names() -> None:
    """The nearest known name is suggested for a slip, nothing for what is far from all; a library's own list counts."""
    assert nearest("NCCL_SOKET_IFNAME") == "NCCL_SOCKET_IFNAME"
    assert nearest("PYNICKEL_LIBARY") == "PYNICKEL_LIBRARY"
    assert nearest("NICKEL_TIMEOTU") == "NICKEL_TIMEOUT"
    assert nearest("NCCL_MY_OWN_THING_OF_SOME_KIND") is None
    assert nearest("NCCL_NEW_PARAMETR", ["NCCL_NEW_PARAMETER"]) == "NCCL_NEW_PARAMETER"


def test_a_misspelt_beginning() -> None:
    """A name whose very beginning is misspelt, or in small letters, is a problem if the rest is known; names of others are none."""
    wrong = {"NCLL_DEBUG": "INFO", "nccl_algo": "Ring", "PYNICKLE_LIBRARY": "host"}
    right = {"RCCL_DEBUG": "1", "CUDNN_PATH": "/x", "NVIDIA_VISIBLE_DEVICES": "all", "HOME": "/h", "ROCR_VISIBLE_DEVICES": "0", "NICE": "1"}
    found = list(variables.check({**wrong, **right}, None))
    assert {one.remedy for one in found} == {f"did you mean {name}?" for name in ("NCCL_DEBUG", "NCCL_ALGO", "PYNICKEL_LIBRARY")}
    assert all(one.level == PROBLEM for one in found) and len(found) == 3


def test_known_names_are_those_that_are_read() -> None:
    """Every NICKEL_ and PYNICKEL_ variable in the sources is known, and no other."""
    root = Path(pynickel.__file__).resolve().parents[1]
    if not (root / "host").is_dir():
        pytest.skip("the sources are not here")
    names: set[str] = set()
    for path in (*root.glob("host/*.c"), *root.glob("pynickel/**/*.py")):
        names |= set(re.findall(r"""["'](P?Y?NICKEL_[A-Z]+)["']""", path.read_text(encoding="utf-8")))
    known = {name for name in KNOWN if name.startswith(("PYNICKEL_", "NICKEL_"))}
    assert names == known


def test_secrets_are_not_shown() -> None:
    """The value of a key is never printed."""
    (finding,) = variables.check({"PYNICKEL_KEY": "0123456789abcdef"}, None)
    assert "0123" not in finding.text and finding.level == OK


def test_interfaces() -> None:
    """NCCL_SOCKET_IFNAME's forms: prefixes, exact names, exclusions, lists."""
    names = ["lo", "eth0", "eth1", "docker0", "eth10"]
    for pattern, chosen in (
        ("eth", ["eth0", "eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("^docker", ["lo", "eth0", "eth1", "eth10"]),
        ("^=eth1", ["lo", "eth0", "docker0", "eth10"]),
        ("docker,lo", ["lo", "docker0"]),
        ("ib", []),
        ("", names),
    ):
        assert network.chosen(pattern, names) == chosen, pattern
    (finding,) = network.check({}, {"lo": ["127.0.0.1"]})
    assert finding.level == NOTE


def test_limits() -> None:
    """Low limits are told with how to raise them: problems where nothing would work, notes where much would not."""
    assert limits.open_files(64).level == PROBLEM and limits.open_files(512).level == NOTE and limits.open_files(4096).level == OK
    assert limits.open_files(resource.RLIM_INFINITY).level == OK
    assert limits.shared_memory(64 << 20, 10 << 20, "nvidia").level == PROBLEM
    assert limits.shared_memory(64 << 20, 10 << 20, "host").level == OK
    assert limits.shared_memory(64 << 20, 10 << 20, "host") == limits.shared_memory(64 << 20, 9 << 20, "host"), "ranks look one by one"
    assert limits.shared_memory(8 << 30, 8 << 30, "nvidia").level == OK
    assert "ulimit" in limits.open_files(64).remedy and "--shm-size" in limits.shared_memory(1, 1, "nvidia").remedy


def test_what_differs() -> None:
    """Topics on which all agree are left out, also where one rank has several findings; ranks are shortened to runs."""
    same = Finding(OK, "cores", "2")
    ranks = [[same, Finding(OK, "variable", "A=1"), Finding(OK, "variable", f"B={rank // 3}")] for rank in range(4)]
    assert compare.differing(ranks) == [("variable", {"OK: B=0": [0, 1, 2], "OK: B=1": [3]})]
    assert compare.ranks([5, 0, 1, 2, 7]) == "ranks 0-2, 5, 7" and compare.ranks([3]) == "rank 3"
    assert compare.report([[same], [same]]) == ["all 2 ranks agree, and none has a problem"]
