"""Jinja2, as this package uses it."""

from __future__ import annotations

import functools

import jinja2


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja2 for CUDA text: undefined names are errors, nothing is escaped, no blank lines."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("polygen.emit"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # templates compute nothing that could be folded
    )
