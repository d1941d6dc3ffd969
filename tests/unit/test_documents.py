"""Documents that a reader follows: links and anchors lead somewhere, snippets run and print that.

On the pages of `TUTORIALS` every ```python and ```sh snippet runs, in order: Python in one
namespace, the shell in one folder. A ```text block right behind a snippet is what it prints, with
"…" for what was left out. ```py is Python that is not run here: it needs a GPU.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import pydoc
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from polygen import knobs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "schedules").glob("*.md")]
TUTORIALS = ("tutorial.md", "coming-from.md", "page.md")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
RUN = ("python", "sh")


def prose(path):
    """The text of a page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text()))


def slug(heading):
    """The anchor that a heading gets."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(path):
    return {
        slug(found) for found in re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.M)
    }


# --- links
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_anchors_lead_somewhere(path):
    wrong = []
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_links_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One's `two`, three\n[a](b.md#c) ![d](e.png)\n```\n[f](g.md)\n```\n`[h](i)`\n"
    )
    assert LINK.findall(prose(page)) == ["b.md#c", "e.png"]
    assert anchors(page) == {"ones-two-three"}


# --- snippets
def as_printed(wanted, printed):
    """Whether a text was printed, with "…" standing for anything; lines may be broken anywhere."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in wanted.split("…")]
    return re.search(r"(?s)" + r"\s*.*?\s*".join(parts), printed) is not None


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a … c\n", "a b c\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\nb c\n", "a b\nc\n", True),
        ("a\nc\n", "a\nb\nc\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_what_is_printed_is_compared(wanted, printed, same):
    assert as_printed(wanted, printed) is same


def in_python(code, module):
    """Run; functions find their source, as they do in a file."""
    out, name = io.StringIO(), f"<snippet {hash(code)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), vars(module))
    return out.getvalue()


def in_a_shell(code, folder):
    """Run by bash, which stops at the first command that fails; `polygen` is this one."""
    home = folder / "bin"
    home.mkdir(exist_ok=True)
    command = home / "polygen"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m polygen "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{home}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    words = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", TUTORIALS)
def test_snippets_run_and_print_what_the_page_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("tutorial")
    monkeypatch.setitem(sys.modules, "tutorial", module)
    blocks = FENCE.findall((DOCS / name).read_text())
    assert any(language in RUN for language, _ in blocks)
    assert {language for language, _ in blocks} <= {*RUN, "text", "py"}
    printed = None
    with knobs.scope(arch=None, schedule=None):
        for language, code in blocks:
            if language == "python":
                printed = in_python(code, module)
            elif language == "sh":
                printed = in_a_shell(code, tmp_path)
            elif language == "text" and printed is not None:
                assert as_printed(code, printed), f"{code}\nis not what is printed:\n{printed}"
                printed = None
            else:
                printed = None


def test_every_page_can_be_reached():
    """From the first page of the site, over the links of pages."""
    seen, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or page.parent != DOCS:
            continue
        seen.add(page)
        for link in LINK.findall(prose(page)):
            file = link.partition("#")[0]
            if file and not re.match(r"[a-z]+:", file):
                todo.append((page.parent / file).resolve())
    assert {path.name for path in DOCS.glob("*.md")} - {path.name for path in seen} == set()


def test_what_the_reference_lists_exists_and_is_documented():
    listed = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", (DOCS / "reference.md").read_text(), re.M)
    assert len(listed) > 20
    for name in listed:
        if name.startswith(("polygen.adapters.torch.", "polygen.adapters.jax.")):
            continue  # importing them imports those libraries
        assert pydoc.locate(name) is not None, name
        assert (pydoc.locate(name).__doc__ or "").strip(), name
