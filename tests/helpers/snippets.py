"""The snippets of README.md and docs/*.md, and how a page's run: its Python in one process, its commands in one folder.

A fence at the start of a line opens a snippet. What it prints stands in a `text` fence behind it; there `...` is any text.
```python   runs behind the earlier ones of the page; with a first line `# NAME.py` it is a file for the page's commands instead
```sh       is run by bash
```console  the same for each `$ ` line, with what it prints below it
A first line `# needs THING` (see NEEDS) names what must be there; without it the snippet is skipped, which pytest counts.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from helpers import processes

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
LANGUAGES = {"python", "sh", "console", "text", "c", "yaml", "toml", "ini"}
MARK = "\x1e"  # printed before each Python snippet, to tell whose output is whose
EXEC = "import os, sys; os.execvp('bash', ['bash', '-eu', '-c', *sys.argv[1:]])"

# What a snippet can need, by name, and whether it is here. Nothing in these tests can say yes for two machines.
NEEDS: dict[str, Callable[[], bool]] = {
    "a GPU": lambda: any(Path("/dev").glob("nvidia[0-9]*")),
    "two machines": lambda: False,
    "Slurm": lambda: shutil.which("srun") is not None and "SLURM_CONF" in os.environ,  # the packages alone are no cluster
    "a network": lambda: False,
    "Open MPI": lambda: shutil.which("mpirun") is not None and find_spec("mpi4py") is not None,
    "torch": lambda: find_spec("torch") is not None,
    "nccl4py": lambda: find_spec("nccl") is not None,
    "CuPy": lambda: find_spec("cupy") is not None,
    "vLLM": lambda: find_spec("vllm") is not None,
}


class Snippet(NamedTuple):
    """One fence: its page, the line that opens it, its language and text, and what the next fence says it prints."""

    page: Path
    line: int
    language: str
    text: str
    shown: str | None

    @property
    def name(self) -> str:
        """README.md:12"""
        return f"{self.page.name}:{self.line}"

    @property
    def need(self) -> str | None:
        """What its first line says it needs; commands that set up an environment need a network."""
        if found := re.match(r"# needs (.+)", self.text):
            return found[1]
        fetches = self.language in ("sh", "console") and re.search(r"\b(pip|apt|apt-get|dnf) install\b", self.text)
        return "a network" if fetches else None

    @property
    def runs(self) -> bool:
        """Whether what it needs is here."""
        return self.need is None or NEEDS[self.need]()

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        found = re.match(r"# ([\w.]+\.py)$", self.text.split("\n", 1)[0]) if self.language == "python" else None
        return found[1] if found else None


def snippets(page: Path) -> list[Snippet]:
    """All fences of a page but those that show output."""
    fences = re.compile(r"^```([\w{}+-]*)[^\n]*\n(.*?)^```$", re.M | re.S)
    source = page.read_text()
    found = []
    matches: list[re.Match[str] | None] = [*fences.finditer(source), None]
    for match, following in pairwise(matches):
        if match is not None and match[1] in ("python", "sh", "console"):
            is_output = following is not None and following[1] == "text" and not source[match.end() : following.start()].strip()
            shown = following[2] if following is not None and is_output else None
            found.append(Snippet(page, source.count("\n", 0, match.start()) + 1, match[1], match[2], shown))
    return found


def in_process(page: Path) -> list[Snippet]:
    """The Python that runs, in one process."""
    return [s for s in snippets(page) if s.language == "python" and s.file is None and s.runs]


def commands(page: Path) -> list[Snippet]:
    """The commands that run."""
    return [s for s in snippets(page) if s.language in ("sh", "console") and s.runs]


def is_slow(page: Path) -> bool:
    """Whether the page says that its Python takes long."""
    return "<!-- slow -->" in page.read_text()


def says_more_with_torch(page: Path) -> bool:
    """Whether the page has Python that needs torch."""
    return any(s.language == "python" and s.need == "torch" for s in snippets(page))


def matches(shown: str, printed: str) -> bool:
    """Whether the texts are the same but for blanks and line ends, and for what stands in the place of each `...`."""
    left = " ".join(printed.split())
    first, *pieces = re.split(r" ?\.\.\. ?", " ".join(shown.split()))
    if not pieces or not left.startswith(first):
        return left == first
    left = left[len(first) :]
    for piece in pieces[:-1]:
        _, found, left = left.partition(piece) if piece else ("", "...", left)
        if not found:
            return False
    return left.endswith(pieces[-1])


def compare(shown: str, printed: str, name: str) -> None:
    """Raise if the output is another one than the page shows."""
    if not matches(shown, printed):
        raise AssertionError(f"{name} prints\n{printed}\nbut the page shows\n{shown}")


def run_in(folder: Path, command: str, seconds: float) -> processes.Result:
    """Run a bash command in a folder, as a user whose python is this one; it must end well and leave nobody behind."""
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONWARNINGS": "error::ResourceWarning"}
    env |= {"PYTHONUNBUFFERED": ""}  # with it a line is written in pieces, which the lines of other ranks can part
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = processes.run(EXEC, f"cd {shlex.quote(str(folder))}\n{command}", deadline=seconds, env=env)
    if done.returncode or done.left:
        raise AssertionError(f"{command}\nended with {done.returncode}, left {done.left}\n{done.stdout}\n{done.stderr}")
    return done


def run_python(page: Path, folder: Path, seconds: float) -> None:
    """Run a page's Python in order, as one program whose line numbers are the page's."""
    parts = in_process(page)
    lines = [""] * (page.read_text().count("\n") + 1)
    for part in parts:
        body = part.text.splitlines()
        lines[part.line - 1] = f"print({MARK!r}, flush=True)"
        lines[part.line : part.line + len(body)] = body
    program = folder / f"{page.stem}_page.py"  # a page may have the name of a module
    program.write_text("\n".join(lines) + "\n")
    done = run_in(folder, f"exec python {program.name}", seconds)
    if done.stderr:
        raise AssertionError(f"{page.name} writes to stderr:\n{done.stderr}")
    for part, printed in zip(parts, done.stdout.split(f"{MARK}\n")[1:], strict=True):
        compare(part.shown or "", printed, part.name)


def run_commands(page: Path, folder: Path, seconds: float) -> None:
    """Run a page's commands in order, in a folder with the page's files and the checkout's."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    for snippet in snippets(page):
        if snippet.file:
            (folder / snippet.file).write_text(snippet.text)
    for part in commands(page):
        if part.language == "sh":
            compare_if_shown(part, run_in(folder, f"set -o pipefail\n{part.text}", seconds).stdout)
            continue
        for dialog in re.split(r"^\$ ", part.text, flags=re.M)[1:]:
            command, _, shown = dialog.partition("\n")
            compare(shown, run_in(folder, command, seconds).stdout, f"{part.name}: {command}")


def compare_if_shown(part: Snippet, printed: str) -> None:
    """The same for a command, whose output a page may leave out."""
    if part.shown is not None:
        compare(part.shown, printed, part.name)
