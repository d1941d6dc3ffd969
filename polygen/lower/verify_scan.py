"""Checks that what lies between a chain's products is the scan that was derived and proved.

1. Terms are statements of the program, in an order in which each finds what it reads, from the
   score and the reference to what the scan combines and the second product multiplies; of a layer,
   from its sum to what the next product multiplies.
2. States, their monoids and the correction are the scan's.
3. What rows store is made of the registers of their own states, and of what layers have left.
4. Results that are made of sums between products are the program's, and all of them.

Which rows and keys threads have is proved of texts (`polygen/emit/proofs/scan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.errors import VerifyError
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.monoids import MONOIDS
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Finish
from polygen.lower.ring_tiles import extents_of
from polygen.lower.scan_work import PartStore, RowStore, Scan, ScanState, Terms, score_names
from polygen.poly.chain_match import VALUES, ChainMatch
from polygen.poly.key_tiles import FIRST
from polygen.poly.pointwise import Compute, Element, Pointwork

_FAST_BITS, _SHORT = 16, "short"


def check_scan(plan: KernelPlan, scan: Scan) -> None:
    """Check one scan of a chain's plan.

    Raises:
        VerifyError: with what differs.
    """
    found = plan.chained
    assert found is not None
    if scan.layer:
        _check_layer(plan, scan, found)
        return
    keys, tile = plan.match.depths[0], plan.tiles.cta[2]
    if (scan.keys, scan.columns, scan.products) != (keys, tile, len(found.sums)):
        raise VerifyError(f"tiles have {scan.columns} of {scan.keys} keys", where=plan.entry)
    at = "k" if plan.key_tiles is None else f"({FIRST} + k)"
    if not scan.first_key.startswith(f"{at} * {tile} + "):
        raise VerifyError(f"tiles begin at {scan.first_key}", where=plan.entry)
    _check_again(plan, scan, found.again)
    if found.whole and not (isinstance(keys, int) and keys <= tile):
        raise VerifyError(f"{scan.again} have other columns than keys", where=plan.entry)
    chain = found.chain
    states = tuple(
        ScanState(s.value, s.monoid, "" if s.value == chain.reference else s.term, s.rescaled)
        for s in chain.states
    )
    if (scan.states, scan.factors) != (states, chain.correction):
        raise VerifyError(f"states are {scan.states}", where=plan.entry)
    _check_terms(plan, scan, found)
    _check_returned(plan, scan, found.returned)
    made, kind = found.before.statements, plan.match.operand(VALUES).tensor.dtype
    _check_kept(plan, made, (chain.kept, chain.weight), kind)
    rounded = [one.dtype.bits for one in found.results]
    if scan.fast and max(rounded, default=0) > _FAST_BITS:
        raise VerifyError("functions take short forms, and results are long", where=plan.entry)
    if scan.short and not (scan.fast and plan.schedule.functions == _SHORT):
        raise VerifyError("functions take forms that nobody asked for", where=plan.entry)


def scored_by(plan: KernelPlan, scan: Scan) -> Pointwork:
    """What the program computes at every (row, key), or of a layer at every (row, column)."""
    found = plan.scored
    assert found is not None
    if scan.layer:
        assert plan.chained is not None
        found = next(one.work for one in plan.chained.layers if one.name == scan.layer)
    return found


def check_layers(plan: KernelPlan) -> None:
    """Every layer of a chain has its registers between the products, and leaves work on their own;
    every result is stored by one of them, or behind the last product.

    Raises:
        VerifyError: with those that there are, or with the leaf.
    """
    for leaf in plan.leaves:
        if isinstance(leaf.work, Scan) and leaf.statement != leaf.work.called(leaf.op):
            raise VerifyError(f"{leaf.statement} works on {leaf.work.scores}", where=plan.entry)
    layers = plan.chained.layers if plan.chained is not None else ()
    made = [scan.layer for scan in plan.of(Scan) if scan.layer]
    if list(dict.fromkeys(made)) != [one.name for one in layers]:
        raise VerifyError(f"layers are {', '.join(made) or 'none'}", where=plan.entry)
    if plan.chained is None or plan.following is not None:
        return
    stored = [one.tensor for one in plan.work.writes]
    stored += [one.tensor for scan in dict.fromkeys(plan.of(Scan)) for one in scan.returned]
    if {one.name for one in stored} != {one.name for one in plan.program.outputs}:
        raise VerifyError(f"{', '.join(map(str, stored))} are stored", where=plan.entry)


def _check_layer(plan: KernelPlan, scan: Scan, found: ChainMatch) -> None:
    """What is between a layer's sums and the next product is what the program says of each sum."""
    one = next((one for one in found.layers if one.name == scan.layer), None)
    alone = not (scan.states or scan.factors or scan.inside)
    if one is None or scan.advance is not None or not alone:
        raise VerifyError(f"{scan.layer} is no layer of the program", where=plan.entry)
    extents = (one.columns, extents_of(plan, one.name)[0])
    if (scan.keys, scan.columns, scan.products) != (*extents, len(one.sums)):
        raise VerifyError(f"{scan.layer} has {scan.keys} of {scan.columns} columns",
                          where=plan.entry)  # fmt: skip
    if not scan.first_key.startswith("0 + "):  # it has one tile, of all its columns
        raise VerifyError(f"{scan.layer} begins at {scan.first_key}", where=plan.entry)
    _check_again(plan, scan, one.again)
    wanted = tuple(dict.fromkeys((one.kept, *(write.name for write in one.returned))))
    _check_part(plan, scan.weigh, score_names(one.scored), wanted, one.work)
    _check_returned(plan, scan, one.returned)
    kind = plan.match.operand(VALUES).tensor.dtype
    _check_kept(plan, one.work.statements, (one.kept, one.made), kind)
    if scan.short and not (scan.fast and plan.schedule.functions == _SHORT):
        raise VerifyError("functions take forms that nobody asked for", where=plan.entry)


def _check_again(plan: KernelPlan, scan: Scan, again: tuple[tuple[str, str], ...]) -> None:
    """What layers before have left is read where it is."""
    if scan.again != tuple(layer for _, layer in again):
        raise VerifyError(f"{scan.scores} are made of {scan.again}", where=plan.entry)


def _check_kept(
    plan: KernelPlan, statements: Sequence[Compute], both: tuple[str, str], kind: DType
) -> None:
    """What is left is what is made, or that before it is rounded, as the operand is."""
    kept, made = both
    last = next(s for s in statements if s.result == made)
    rounded = (last.function, last.args, last.dtype) == ("cast", (kept,), kind)
    if kept != made and not rounded:
        raise VerifyError(f"{kept} is left, {made} is multiplied", where=plan.entry)


def _check_returned(plan: KernelPlan, scan: Scan, returned: Sequence[Element]) -> None:
    """Results that are made of sums are all of those that the program has there."""
    made = [(one.name, one.tensor, one.kind) for one in scan.returned]
    if made != [(one.name, one.tensor, one.kind) for one in returned]:
        raise VerifyError(f"{scan.scores} are stored as {made}", where=plan.entry)
    if any(tensor not in plan.program.outputs for _, tensor, _ in made):
        raise VerifyError(f"{made} are no results", where=plan.entry)


def check_stores(plan: KernelPlan) -> None:
    """Check what the rows of a chain store.

    Raises:
        VerifyError: with the states that they take.
    """
    if plan.chained is None:
        return
    registers, behind = dict(plan.chained.states), dict(plan.chained.behind)
    stores: list[RowStore | PartStore | Finish] = [
        *plan.of(RowStore), *plan.of(PartStore), *plan.of(Finish)
    ]  # fmt: skip
    for work in stores:
        states = work.named if isinstance(work, PartStore) else work.states
        names = [name for name, _ in work.epilogue.sums if name in registers]
        wanted = tuple((name, f"state_{registers[name]}") for name in names)
        if states != wanted:
            raise VerifyError(f"rows store {states}", where=plan.entry)
    for leaf in plan.leaves:
        if not isinstance(leaf.work, RowStore):
            continue
        left = [total for name, total in leaf.work.epilogue.sums if name in behind]
        cells = plan.tile_program.statement(leaf.statement).reads
        if not {*left} <= {cell.partition("[")[0] for cell in cells}:
            raise VerifyError(f"{leaf.statement} reads {left}", where=plan.entry)


def _check_terms(plan: KernelPlan, scan: Scan, found: ChainMatch) -> None:
    chain, scores = found.chain, score_names(found.scored)
    scored = scored_by(plan, scan)
    reference = {name: "reference" for name, value in found.states if value == chain.reference}
    summed = [s for s in chain.states if s.value != chain.reference]
    returned = (one.name for one in found.returned)
    weighed = tuple(dict.fromkeys((chain.kept, *(s.term for s in summed), *returned)))
    if any(s.term == chain.weight and MONOIDS[s.monoid].identity != (0.0,) for s in summed):
        raise VerifyError(f"{chain.weight} is 0 where its fold has something", where=plan.entry)
    if (scan.advance is None) == bool(chain.reference):
        raise VerifyError("terms have no reference, or one too many", where=plan.entry)
    if scan.advance is None:
        _check_part(plan, scan.weigh, scores, weighed, scored)
        return
    (own,) = (s.term for s in chain.states if s.value == chain.reference)
    _check_part(plan, scan.advance, scores, (own,), scored)
    _check_part(plan, scan.weigh, {own: "score"} | reference, weighed, scored)


def _check_part(
    plan: KernelPlan,
    made: Terms,
    given: dict[str, str],
    wanted: tuple[str, ...],
    scored: Pointwork,
) -> None:
    """Statements make what is wanted of what is given, each as the program has it."""
    program = {one.result: one for one in scored.statements}
    passed = dict(made.given)
    if len(passed) != len(made.given) or any(given.get(name) != v for name, v in passed.items()):
        raise VerifyError(f"terms are given {made.given}", where=plan.entry)
    if next(iter(passed.values()), "") != "score":
        raise VerifyError(f"terms are made of {made.given}", where=plan.entry)
    known = {*passed, *(read.name for read in made.reads), *(name for name, _ in made.coordinates)}
    _check_statements(plan, made.statements, program, known, wanted)
    casts = {one.result for one in made.statements if one.function == "cast"}
    for name, result in zip(wanted, made.results, strict=False):
        if result not in casts or result not in (name, f"{name}_kept"):
            raise VerifyError(f"{result} is not {name}", where=plan.entry)
    if len(made.results) != len(wanted):
        raise VerifyError(f"{', '.join(made.results)} are not {wanted}", where=plan.entry)
    inside = plan.key_tiles.range if plan.key_tiles is not None else None
    if made.unmasked:
        if inside is None or not inside.inside:
            raise VerifyError("no key is masked", where=plan.entry)
        # Where the mask lets everything through its value is what it would keep.
        open_ = _with_value(program, inside.value, inside.inside)
        _check_statements(plan, made.unmasked, open_, known, wanted)
        if not set(made.results) <= {one.result for one in made.unmasked}:
            raise VerifyError("terms without a mask are others", where=plan.entry)


def _with_value(program: dict[str, Compute], value: str, by: str) -> dict[str, Compute]:
    """Statements, by result, of which one takes another's value."""
    if value not in program:
        return program
    return program | {value: Compute(value, "cast", (by,), F32)}


def _check_statements(
    plan: KernelPlan,
    statements: Sequence[Compute],
    program: dict[str, Compute],
    known: set[str],
    wanted: tuple[str, ...],
) -> None:
    """Statements are the program's, or keep a value; each comes behind what it reads."""
    there = set(known)
    for one in statements:
        kept = one.function == "cast" and one.args[0] in wanted and one.dtype == F32
        kept = kept and one.result == f"{one.args[0]}_kept"
        missing = {arg for arg in one.args if isinstance(arg, str)} - there
        if (program.get(one.result) != one and not kept) or missing or one.result in there:
            raise VerifyError(f"{one} is no statement of the scan", where=plan.entry)
        there.add(one.result)
    used = {arg for one in statements for arg in one.args}
    extra = [one.result for one in statements
             if one.result not in used and one.result not in wanted
             and one.result.removesuffix("_kept") not in wanted]  # fmt: skip
    if extra:
        raise VerifyError(f"nobody reads {', '.join(extra)}", where=plan.entry)
