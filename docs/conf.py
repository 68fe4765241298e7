"""How the site is built: `sphinx-build -W -b html docs docs/_build`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pynickel

os.environ["PYNICKEL_LIBRARY"] = "host"  # docstrings are the same whatever this machine has
project = "pynickel"
author = "the pynickel contributors"
version = release = pynickel.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pynickel {release}"
html_static_path = ["_static"]
html_css_files = ["pynickel.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 3
pygments_style = "friendly"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_mock_imports = [name for name in ("torch", "mpi4py", "cupy") if find_spec(name) is None]
default_role = "code"  # docstrings use single backquotes for names
python_maximum_signature_line_length = 90
MODULE = """## pynickel.{name}

```{{eval-rst}}
.. automodule:: pynickel.{name}
   :members:
   :inherited-members: BaseException, tuple, list, dict, Mapping, Module
{lazy}```
"""
LAZY = """
.. autoclass:: {name}
   :members:
"""


def complete(app: Any, name: str, source: list[str]) -> None:
    """On the page on the API put a section for each public module; in the index leave out pages of parts that are not there."""
    sections = []
    for module in pynickel.MODULES:
        here = import_module(f"pynickel.{module}")
        lazy = [LAZY.format(name=f"pynickel.{module}.{member}") for member in here.__all__ if member not in dir(here)]
        sections.append(MODULE.format(name=module, lazy="".join(lazy)))
    source[0] = source[0].replace("<!-- public modules -->", "\n".join(sections))
    if name == "index":
        pages = {path.stem for path in Path(app.srcdir).glob("*.md")}
        source[0] = re.sub(r"^(\w+)\n", lambda line: line[0] if line[1] in pages else "", source[0], flags=re.M)


def only_ours(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what Python writes by itself: the fields of named tuples, which the signature has already."""
    return True if str(getattr(member, "__doc__", "")).startswith("Alias for field number") else None


def plain_text(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: an indented block behind a colon is a program, and an underscore at the end of a name is a letter."""
    for number, line in enumerate(lines):
        lines[number] = re.sub(r"(?<![\w`.])(\w+_)(?![\w`])", r"`\1`", line)
        if re.search(r"[^:]:$", line) and re.match(r"\n\n    ", "\n".join(["", *lines[number + 1 : number + 3]])):
            lines[number] = line + ":"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete)
    app.connect("autodoc-skip-member", only_ours)
    app.connect("autodoc-process-docstring", plain_text)
    app.connect("env-get-outdated", lambda *_: ["index", "api"])  # they depend on which others there are
