"""Launches one after the other on one stream, some of them dependent: begun before others end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.machine.grids import Array, Behind
from polygen.machine.report import Report
from polygen.machine.run import Launch, arrays_of, run


@dataclass(frozen=True, slots=True)
class Link:
    """One launch of a chain.

    Attributes:
        ptx: its text.
        launch: how.
        writes: the arrays among its arguments that it writes; the others it only reads.
        dependent: whether it may begin while those before it run.
    """

    ptx: str
    launch: Launch
    writes: tuple[Array, ...]
    dependent: bool = False


def chain(
    links: Sequence[Link], before: Behind | None = None, **options: Any
) -> tuple[Report, ...]:
    """Run launches in their order; what they write is in their arrays afterwards.

    Args:
        links: the launches; arrays that two of them share are arrays that share memory.
        before: what may still run when a dependent first one begins.
        options: for `run`.

    Returns:
        A report of each. `before-grid-wait` is found where a dependent launch touches what an
        earlier one uses before it has waited: the one before need not be complete, nor need those
        before that.
    """
    reports = []
    writes = before.writes if before is not None else ()
    reads = before.reads if before is not None else ()
    for link in links:
        behind = Behind(writes, reads) if link.dependent else None
        report = run(link.ptx, link.launch, behind=behind, **options)
        for array, after in zip(arrays_of(link.launch), report.arrays, strict=True):
            if any(np.may_share_memory(array, one) for one in link.writes):
                array[...] = after
        reports.append(report)
        writes, reads = (*writes, *link.writes), (*reads, *arrays_of(link.launch))
    return tuple(reports)
