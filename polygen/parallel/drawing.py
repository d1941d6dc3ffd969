"""`Plan` -> a picture of it: a row to a rank, a column to a tick, bubbles left empty."""

from __future__ import annotations

from html import escape

from polygen.parallel.proved import Proved
from polygen.parallel.timetable import PHASES
from polygen.parallel.turns import Plan, Work

_LETTERS = dict(zip(PHASES, "FBW", strict=True))
_COLOURS = dict(zip(PHASES, ("#4c78a8", "#e4873b", "#5aa469"), strict=True))
_CELL, _ROW, _LEFT, _TOP = 26, 26, 64, 30
_MOST_COLUMNS = 200  # of text; more are cut


def text(proved: Proved, plan: Plan) -> str:
    """The timetable, its proofs and its timeline, for a terminal.

    A cell says phase and microbatch, and the stage where a rank has several: ``F3``, ``B0/2``.
    """
    several = len(proved.home) > proved.timetable.ranks
    rows = _rows(plan)
    width = max(len(_label(work, several)) for row in rows for work in row.values())
    shown = min(plan.ticks, _MOST_COLUMNS)
    lines = []
    for rank, row in enumerate(rows):
        cells = (_label(row[n], several) if n in row else "." for n in range(shown))
        more = " …" if shown < plan.ticks else ""
        lines.append(f"rank {rank:>2} |" + " ".join(f"{c:^{width}}" for c in cells) + more)
    return f"{proved}\n\n{summary(plan)}\n" + "\n".join(lines) + "\n"


def summary(plan: Plan) -> str:
    """How long it is and how much of that is waiting, at ticks of one length."""
    return (
        f"{plan.microbatches} microbatches: {plan.ticks} ticks, bubble {plan.bubble:.1%}, "
        f"{len(plan.messages)} messages"
    )


def svg(proved: Proved, plan: Plan) -> str:
    """The timeline as SVG that stands alone."""
    several = len(proved.home) > proved.timetable.ranks
    rows = _rows(plan)
    wide = _LEFT + plan.ticks * _CELL + 10
    high = _TOP + len(rows) * _ROW + 10
    title = escape(f"{proved.timetable} | {summary(plan)}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="10">',
        f'<text x="8" y="18" font-size="12">{title}</text>',
    ]
    for rank, row in enumerate(rows):
        top = _TOP + rank * _ROW
        parts.append(f'<text x="8" y="{top + 17}">rank {rank}</text>')
        parts.append(
            f'<rect x="{_LEFT}" y="{top}" width="{plan.ticks * _CELL}" height="{_ROW - 3}" '
            'fill="#eeeeee"/>'
        )
        for tick, work in sorted(row.items()):
            left = _LEFT + tick * _CELL
            shade = 1 - 0.45 * (work.stage // max(1, proved.timetable.ranks) % 2) * several
            parts.append(
                f'<g><title>{work}, tick {work.tick}</title><rect x="{left}" y="{top}" '
                f'width="{_CELL - 1}" height="{_ROW - 3}" fill="{_COLOURS[work.phase]}" '
                f'fill-opacity="{shade:.2f}"/><text x="{left + _CELL / 2 - 0.5}" y="{top + 15}" '
                f'text-anchor="middle" fill="#ffffff">{work.microbatch}</text></g>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def page(proved: Proved, plan: Plan) -> str:
    """The timeline and the proofs as one HTML page."""
    return (
        f"<!doctype html>\n<meta charset='utf-8'>\n<title>{escape(str(proved.timetable))}</title>\n"
        f"<body style='font-family: sans-serif'>\n<div style='overflow-x: auto'>\n"
        f"{svg(proved, plan)}</div>\n<p>"
        + " ".join(f"<span style='color:{_COLOURS[p]}'>■</span> {p}" for p in proved.phases)
        + f"</p>\n<pre>{escape(str(proved))}</pre>\n"
    )


def _rows(plan: Plan) -> list[dict[int, Work]]:
    first = min(work.tick for works in plan.works for work in works)
    return [{work.tick - first: work for work in works} for works in plan.works]


def _label(work: Work, several: bool) -> str:
    return f"{_LETTERS[work.phase]}{work.microbatch}" + (f"/{work.stage}" if several else "")
