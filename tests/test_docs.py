"""README.md and docs/: every snippet runs and prints what the page shows, every link leads somewhere, the site builds."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import snippets

from pynickel import errors, report

WITH_PYTHON = [page for page in snippets.PAGES if snippets.in_process(page)]
WITH_COMMANDS = [page for page in snippets.PAGES if snippets.commands(page)]
NOT_HERE = [s for page in snippets.PAGES for s in snippets.snippets(page) if not s.runs]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b\n", "a  b\n", True), ("a b\n", "a c\n", False), ("", "a", False), ("", "", True), ("...", "", True),
        ("a\n...\nb\n", "a\nb\n", True), ("a\n...\nb\n", "a\nx y\nb\n", True), ("a\n...\nb\n", "a\nx\n", False),
        ("at 0x... of ... end", "at 0x12 of 3 end", True), ("a ... b ... c", "a b b c", True), ("a ... b ... c", "a c b", False),
        ("x...", "y", False), ("...x", "y x", True), ("... a ... a", "a", False),
    ],
)  # fmt: skip
def test_comparison(shown: str, printed: str, same: bool) -> None:
    """Output has to be what the page shows; only `...` stands for any text."""
    assert snippets.matches(shown, printed) is same


def name(page: Path) -> str:
    """The page's name, for the report."""
    return page.name


def marks(page: Path) -> list[pytest.MarkDecorator]:
    """How long a page's Python takes, and whether torch adds to it."""
    return [pytest.mark.slow] * snippets.is_slow(page) + [pytest.mark.torch] * snippets.says_more_with_torch(page)


@pytest.mark.parametrize("page", [pytest.param(p, id=p.name, marks=marks(p)) for p in WITH_PYTHON])
def test_python(page: Path, tmp_path: Path) -> None:
    """A page's Python runs from top to bottom in one process, prints what the page shows, and nothing else."""
    snippets.run_python(page, tmp_path, 45)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands(page: Path, tmp_path: Path) -> None:
    """A page's commands run from top to bottom and print what the page shows."""
    snippets.run_commands(page, tmp_path, 45)


@pytest.mark.parametrize("snippet", NOT_HERE, ids=lambda s: s.name)
def test_what_cannot_run_here(snippet: snippets.Snippet) -> None:
    """A snippet that needs what this machine lacks says so, and is at least no nonsense to Python or to bash."""
    if snippet.language == "python":
        compile(snippet.text, snippet.name, "exec")
    elif snippet.language == "sh":
        subprocess.run(["bash", "-n", "-c", snippet.text], check=True, timeout=10)
    pytest.skip(f"{snippet.name} was not run: it needs {snippet.need}")


@pytest.mark.parametrize("page", snippets.PAGES, ids=name)
def test_fences(page: Path) -> None:
    """Nothing escapes these tests: no fence without a language, none that is indented, no file that no command uses."""
    source = page.read_text()
    opened = re.findall(r"^```([\w{}+-]+)", source, re.M)
    assert set(opened) - snippets.LANGUAGES <= {word for word in opened if word.startswith("{")}
    assert len(re.findall(r"^```", source, re.M)) == 2 * len(opened), "a fence without a language"
    assert re.findall(r"^[ >]+(```|~~~)|^~~~", source, re.M) == []
    found = snippets.snippets(page)
    for file in filter(None, (snippet.file for snippet in found)):
        assert any(file in s.text for s in found if s.language in ("sh", "console")), file


@pytest.mark.parametrize("page", snippets.PAGES, ids=name)
def test_links(page: Path) -> None:
    """A link or picture of a page names a file that exists."""
    source = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", source) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None or find_spec("furo") is None, reason="the site needs pip install -e '.[docs]'")
def test_site(tmp_path: Path) -> None:
    """The site builds without a warning."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, "docs", str(tmp_path / "html")], cwd=snippets.ROOT, capture_output=True, text=True, timeout=55)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (tmp_path / "html" / "index.html").exists()


def test_errors_page() -> None:
    """The table has every exception of the package, with the class that it also is and the result that it stands for."""
    page = (snippets.ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? *\| (\d*) *\|", page, re.M)
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.NCCLError)}
    assert sorted(name for name, _, _ in rows) == sorted(classes)
    for name, also, code in rows:
        bases = {base.__name__ for base in classes[name].__mro__}
        assert not also or also in bases, name
        stands_for = [str(int(number)) for number, kind in report.CLASSES.items() if issubclass(classes[name], kind) and 0 < number < 9]
        assert code in ("", *stands_for), name


def test_drawings() -> None:
    """The drawings of all-reduce are those that their script makes."""
    images = snippets.ROOT / "docs" / "images"
    drawn = runpy.run_path(str(images / "all_reduce.py"))
    assert drawn["ring"]() == (images / "ring.svg").read_text()
    assert drawn["tree"]() == (images / "tree.svg").read_text()
