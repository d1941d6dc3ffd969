"""Tunes the rows of suites one after another, with one crew of processes.

Rows take turns as in a run, so that one that ends early has tuned the most telling rows of each
suite. What was measured before is not measured again: the next sweep continues an interrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polygen.api import Fused
from polygen.bench.rows import Row
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.tune.crew import Crew
from polygen.tune.search import Progress, Tuning
from polygen.tune.tuner import tune


def sweep(
    rows: Sequence[Row],
    budget: float | None,
    report: Callable[[Progress], None] = lambda _: None,
    *,
    arch: str | None = None,
    replay: Path | None = None,
    records: Path | None = None,
) -> Iterator[tuple[Row, Tuning | PolygenError]]:
    """Tune rows.

    Args:
        rows: what, in order.
        budget: seconds for each; None: until every schedule is measured.
        report: called after every step.
        arch: target; None: the GPU present.
        replay: a record to take times from; None: the GPU.
        records: the file that measurements go to; None: the one that automatic choices read.

    Yields:
        Each row with what was found, or why it could not be tuned; ends after an interrupted one.
    """
    with Crew() as crew:
        for row in rows:
            op = row.operation
            fused = Fused(parse_expression(op.expression, op.names), op.name, op.expression, False)
            try:
                found = tune(
                    fused, *row.signature, sizes=row.sizes | row.pitches, acc_dtype=row.acc,
                    out_dtype=row.out_dtype, budget=budget, arch=arch, replay=replay,
                    records=records, crew=crew, report=report,
                )  # fmt: skip
            except PolygenError as error:
                yield row, error
                continue
            yield row, found
            if found.interrupted:
                return
