"""How large records show themselves at a prompt and in a notebook: one line, or a small table.

A generated repr of a report would print every proof, every array and every line of code.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Brief:
    """A record whose repr is one line of its class' own, and whose HTML is its whole text."""

    __slots__ = ()

    def brief(self) -> str:
        """The record in some words."""
        return str(self).partition("\n")[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.brief()}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def table(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values as an HTML table."""
    rows = (
        f'<tr><th style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f"<table>{''.join(rows)}</table>"
