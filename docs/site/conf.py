"""How Sphinx builds the site: `make html`. The pages are the repository's own Markdown files."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import polygen  # noqa: E402 (found on the path above)

project = "polygen"
author = "The polygen developers"
release = polygen.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "schedules/README.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
myst_heading_anchors = 4
# The README and its like are found by links alone.
suppress_warnings = ["toc.not_included"]

html_theme = "furo"
html_title = "polygen"

default_role = "code"  # `x` in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_mock_imports = ["torch", "jax", "cupy"]
napoleon_google_docstring = True
napoleon_use_rtype = False
# Attributes are in the docstrings; fields of records need no second entry.
napoleon_use_ivar = True

REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'


def document_functions(app: Any) -> None:
    """Give the functions of the vocabulary the docstrings that `help` shows."""
    document = importlib.import_module("polygen.vocabulary").document
    functions = importlib.import_module("polygen.frontend.functions")
    for name in polygen.__all__:
        found = getattr(functions, name, None)
        if found is not None:
            document(found)


def add_contents(app: Any, page: str, source: list[str]) -> None:
    """Give the first page a table of contents made of its own links, which the sidebar shows."""
    if page != root_doc:
        return
    for section in source[0].split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        pages = "\n".join(re.findall(r"\]\(([\w-]+)\.md\)", text))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"


def escape_bars(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Take the bars of |x| for bars; reStructuredText takes them for a substitution."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def redirect(app: Any, exception: Exception | None) -> None:
    """Lead from the folder itself to the first page."""
    if exception is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(REDIRECT)


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("builder-inited", document_functions)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("build-finished", redirect)
