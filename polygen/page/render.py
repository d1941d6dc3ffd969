"""`Content` -> HTML: a template, with its style and its script inside."""

from __future__ import annotations

import functools

import jinja2

from polygen.page.content import content
from polygen.page.sequence import SequenceContent
from polygen.pipeline import Passes


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja2 for pages: undefined names are errors, what is printed is escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("polygen.page"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )


def page(passes: Passes, sizes: dict[str, int]) -> str:
    """A kernel as one HTML page.

    Args:
        passes: of the kernel.
        sizes: that it was optimised for.

    Returns:
        The text of a file that needs no other, in UTF-8.
    """
    return environment().get_template("page.html.j2").render(page=content(passes, sizes))


def sequence_page(found: SequenceContent) -> str:
    """Kernels that run one after another as one HTML page; as `page`."""
    return environment().get_template("sequence.html.j2").render(page=found)
