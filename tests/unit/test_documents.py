"""Documents that a reader follows: links and anchors lead somewhere, snippets run and print that.

How snippets are run and compared is in `snippets`.
"""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import pytest
from snippets import (
    ANYWHERE,
    APART,
    FENCE,
    ON_A_GPU,
    OTHERS,
    as_printed,
    pages,
    run_page,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "schedules").glob("*.md")]

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


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


@pytest.mark.parametrize("name", pages(ANYWHERE))
def test_snippets_run_and_print_what_the_page_says(name, tmp_path):
    assert run_page(name, tmp_path, ANYWHERE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_is_fenced_is_a_snippet_or_has_a_language_that_none_has(path):
    """So that what a reader would paste is run: by a page, or apart for a reason."""
    languages = {language for language, _ in FENCE.findall(path.read_text())}
    assert languages <= {*ON_A_GPU, *OTHERS}
    here = {DOCS / name for name in pages(ON_A_GPU)} | {DOCS / name for name in APART}
    assert not languages & set(ON_A_GPU) or path in {page.resolve() for page in here}


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
