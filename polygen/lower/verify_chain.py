"""Checks that the leaves of a chain compute on what the program says, where it says.

1. What is read at a score is at the program's address, whatever strides and coordinates.
2. Coordinates are the program's.
3. Bounds of rows' keys that arrays hold are elements that the mask reads.
4. Every pair that becomes a register of the second product's operand is what the fragments say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polygen.errors import VerifyError
from polygen.frontend.program import Tensor
from polygen.lower.accesses import steps_text
from polygen.lower.carried import carried
from polygen.lower.plan import KernelPlan
from polygen.lower.scan_work import Scan
from polygen.lower.verify_scan import check_scan, check_stores
from polygen.lower.work import LocateRows
from polygen.poly.match import Along

Check = Callable[[KernelPlan, Tensor, tuple[Along, ...], str, Mapping[str, str]], None]


def check_scans(plan: KernelPlan, check: Check) -> None:
    """Check every scan of a plan.

    Args:
        plan: of a chain, or of anything else.
        check: that a text is the address of an index.

    Raises:
        VerifyError: with what differs.
    """
    check_stores(plan)
    for rows in plan.of(LocateRows):
        if plan.key_tiles is None or (rows.first, rows.count) != plan.key_tiles.of_rows():
            raise VerifyError("blocks visit other tiles of keys than was proved", where=plan.entry)
    for scan in plan.of(Scan):
        check_scan(plan, scan)
        _check_reads(plan, scan, check)
        _check_bounds(plan, check)
        groups = plan.atom.k // plan.atom.n
        wanted = tuple(
            tuple((step * groups + group, element) for group, element in carried(plan.atom))
            for step in range(plan.tiles.k_steps)
        )
        if scan.fragment != wanted or (scan.rows, scan.tile) != (
            plan.tiles.atoms[0],
            plan.tiles.cta[2],
        ):
            raise VerifyError("scores are not the operand of the next product", where=plan.entry)


def _check_bounds(plan: KernelPlan, check: Check) -> None:
    """Bounds that arrays hold are read where the mask reads them."""
    visited = plan.key_tiles
    wanted = visited.range.arrays if visited is not None and visited.range is not None else ()
    if tuple(one for one, _ in plan.key_bounds) != wanted:
        raise VerifyError("keys are bounded by other arrays than the mask", where=plan.entry)
    assert plan.scored is not None or not plan.key_bounds
    for one, read in plan.key_bounds:
        elements = [e for e in plan.scored.reads if e.tensor.name == one.array]  # type: ignore[union-attr]
        if len(elements) != 1 or read.n:
            raise VerifyError(f"{one} is no bound of a row", where=plan.entry)
        text = " + ".join([*read.base, *steps_text("row", read.m)]) or "0"
        check(plan, read.tensor, elements[0].index, text, {"m": "row"})


def _check_reads(plan: KernelPlan, scan: Scan, check: Check) -> None:
    assert plan.scored is not None
    elements = {element.name: element for element in plan.scored.reads}
    coordinates = dict(plan.scored.coordinates)
    for terms in (scan.advance, scan.weigh):
        if terms is None:
            continue
        for read in terms.reads:
            if read.tensor.dims:
                text = " + ".join(
                    [*read.base, *steps_text("row", read.m), *steps_text("column", read.n)]
                )
                index = elements[read.name].index
                check(plan, read.tensor, index, text, {"m": "row", "n": "column"})
        for name, along in terms.coordinates:
            if coordinates.get(name) != along:
                raise VerifyError(f"{name} is {along}", where=plan.entry)
