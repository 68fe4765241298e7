"""How the site is built: `sphinx-build -W -b html docs docs/_build`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
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
autodoc_mock_imports = ["torch", "mpi4py", "cupy"]
default_role = "code"  # docstrings use single backquotes for names
python_maximum_signature_line_length = 90
MODULE = """## pynickel.{name}

```{{eval-rst}}
.. automodule:: pynickel.{name}
   :members:
```
"""


def complete(app: Any, name: str, source: list[str]) -> None:
    """On the page on the API put a section for each public module; in the index leave out pages of parts that are not there."""
    sections = [MODULE.format(name=module) for module in pynickel.MODULES]
    source[0] = source[0].replace("<!-- public modules -->", "\n".join(sections))
    if name == "index":
        pages = {path.stem for path in Path(app.srcdir).glob("*.md")}
        source[0] = re.sub(r"^(\w+)\n", lambda line: line[0] if line[1] in pages else "", source[0], flags=re.M)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete)
