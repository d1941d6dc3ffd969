"""Checks that the leaves of a chain compute on what the program says, where it says.

1. What is read at a score, or stored, is at the program's address, whatever strides and
   coordinates.
2. Coordinates are the program's.
3. Bounds of rows' keys that arrays hold are elements that the mask reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polygen.errors import VerifyError
from polygen.frontend.program import Tensor
from polygen.lower.accesses import steps_text
from polygen.lower.plan import KernelPlan
from polygen.lower.scan_work import Scan
from polygen.lower.verify_scan import check_layers, check_scan, check_stores, scored_by
from polygen.lower.work import LocateRows
from polygen.poly.key_tiles import KeyTiles
from polygen.poly.match import Along

_PAIR = 2  # adjacent keys that a thread has, and reads at once where it may
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
    check_layers(plan)
    for rows in plan.of(LocateRows):
        if plan.key_tiles is None or (rows.first, rows.count) != plan.key_tiles.of_rows():
            raise VerifyError("blocks visit other tiles of keys than was proved", where=plan.entry)
    for scan in plan.of(Scan):
        check_scan(plan, scan)
        _check_reads(plan, scan, check)
        _check_writes(plan, scan, check)
        _check_bounds(plan, check)


def _check_bounds(plan: KernelPlan, check: Check) -> None:
    """Tiles of keys are those of the mask, and bounds that arrays hold are where it reads them."""
    visited, part = plan.key_tiles, plan.schedule.tile.part
    range_ = plan.chained.chain.range if plan.chained is not None else None
    rows, _, keys = plan.tiles.cta
    tiles = KeyTiles(range_, rows, keys, part // keys) if range_ is not None or part else None
    if visited != tiles:
        raise VerifyError(f"blocks visit {visited} and not {tiles}", where=plan.entry)
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


def _check_writes(plan: KernelPlan, scan: Scan, check: Check) -> None:
    elements = {element.name: element for element in scored_by(plan, scan).writes}
    for one in scan.returned:
        element, size = elements[one.name], one.tensor.dtype.bytes
        whole = one.width in (size, _PAIR * size)
        if one.kind == "vector" and (not whole or max(element.alignment, size) % one.width):
            raise VerifyError(f"{one.name} by {one.width} bytes", where=plan.entry)
        if any(step.per < 1 or step.modulo < 0 for step in (*one.m, *one.n)) or one.by_index:
            raise VerifyError(f"{one.name} goes by {one.m} and {one.n}", where=plan.entry)
        steps = [*steps_text("row", one.m), *steps_text("column", one.n)]
        text = " + ".join([*one.base, *steps]) or "0"
        check(plan, one.tensor, element.index, text, {"m": "row", "n": "column"})


def _check_reads(plan: KernelPlan, scan: Scan, check: Check) -> None:
    scored = scored_by(plan, scan)
    elements = {element.name: element for element in scored.reads}
    for terms in (scan.advance, scan.weigh):
        if terms is None:
            continue
        named = {read.name for read in terms.reads}
        wanted = [(e.name, e.tensor, e.kind) for e in scored.reads if e.name in named]
        if [(read.name, read.tensor, read.kind) for read in terms.reads] != wanted:
            raise VerifyError(f"terms read {terms.reads}", where=plan.entry)
        for read in terms.reads:
            size, alignment = read.tensor.dtype.bytes, elements[read.name].alignment
            whole = read.width in (size, _PAIR * size) and max(alignment, size) % read.width == 0
            if read.kind == "vector" and not whole:
                raise VerifyError(f"{read.name} by {read.width} bytes", where=plan.entry)
            if any(step.per < 1 or step.modulo < 0 for step in (*read.m, *read.n)):
                raise VerifyError(f"{read.name} goes by {read.m} and {read.n}", where=plan.entry)
            if read.tensor.dims:
                text = " + ".join(
                    [*read.base, *steps_text("row", read.m), *steps_text("column", read.n)]
                )
                index = elements[read.name].index
                check(plan, read.tensor, index, text, {"m": "row", "n": "column"})
        named = {name for name, _ in terms.coordinates}
        if terms.coordinates != tuple(c for c in scored.coordinates if c[0] in named):
            raise VerifyError(f"coordinates are {terms.coordinates}", where=plan.entry)
