"""Sums in fragments: staged in the scratch area, or stored two adjacent results at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polygen.emit.fold_terms import gathered, kept, together
from polygen.emit.leaf.elements import (
    arguments,
    does_nothing,
    folded,
    inside,
    only_words,
    outcomes,
    vector_record,
)
from polygen.emit.leaf.table import Text, filled, leaf
from polygen.emit.leaves import areas, extent_names, pair_of_sums, plus, real_of
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue


@leaf("stage", "threads", Epilogue, ("m",), needs=("words", "places"))
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    scratch = plan.buffer("scratch")
    record = {
        "area": f"shared + {scratch.offset} + warp * {scratch.owner_bytes}",
        "scratch": scratch.name,
        "atoms_n": plan.tiles.atoms[1],
        "pairs": _pairs(plan, e),
        "areas": areas(scratch, len(e.sums)),
    }
    comment = f"{one.statement}[m]: sums of one row of instructions -> this warp's scratch area"
    return Text(filled("stage_threads", record), comment)


@leaf("store_pairs", "threads", Epilogue, ("m",))
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    if does_nothing(e):
        return Text("", f"{one.statement}[m]: no terms of rows")
    does = "terms of rows" if e.suffix else "straight"
    comment = f"{one.statement}[m]: {does} from the fragments, two adjacent results at a time"
    return Text(pairs_text(plan, e, {}), comment, held_declared(plan, e))


def held_declared(plan: KernelPlan, e: Epilogue) -> tuple[str, ...]:
    """The registers in which a pass leaves values of elements, if it does."""
    if e.holds is None:
        return ()
    atoms = f"[{plan.tiles.atoms[0]}][{plan.tiles.columns // plan.atom.n}]"
    return (f"{real_of(plan)} {e.holds[1]}{atoms}[{len(e.element_offsets)}];",)


def pairs_text(plan: KernelPlan, e: Epilogue, states: Mapping[str, str]) -> str:
    """Two neighbours of a row after the other: results that are stored, terms that are folded.

    Args:
        plan: the kernel.
        e: what becomes of them.
        states: of a chain, the sums that are states of rows, and their registers.
    """
    record = pairs_record(plan, e, _pairs(plan, e, states))
    text = filled("store_pairs_threads", record)
    if e.folds and not e.writes:
        # The compiler would keep addresses that it has clamped for the next pass, in registers that
        # the sums leave none of: where no column is outside, it has none to clamp. And where no
        # element is, terms wait for no branch.
        whole = f"{e.column_base} + {plan.tiles.columns} <= {record['n_extent']}"
        if not e.suffix:
            last = max(row for row, _ in e.element_offsets)
            own = f"m * {plan.atom.m} + {plus(e.row_of_lane, last)}"
            whole = f"{e.row_base} + {own} < {record['m_extent']} && {whole}"
        prepared = [*record["declarations"], *record["fetches"], *record["results"]]
        text = filled("row_terms_threads", _inside_record(plan, e, record, whole, prepared)) + text
        text += "".join(f"  {line}\n" for line in together(e))
    return text


def _inside_record(
    plan: KernelPlan, e: Epilogue, record: dict[str, Any], whole: str, prepared: list[str]
) -> dict[str, Any]:
    """The same where no element is outside, and terms of a lane may be combined at once."""
    found = record | {"whole": whole, "prepared": prepared}
    if e.suffix:  # rows may end outside
        return found | {"gathers": (), "combines": ()}
    if only_words(e):  # at constants from a lane's first one
        words = vector_record(e, real_of(plan), "place")
        prepared = [*words["declarations"], *words["fetches"], *words["results"]]
        found |= {"in_words": True, "prepared": prepared}
    pairs = [
        pair | {"folds": [_kept(plan, e, 2 * number + at, at) for at in range(2)]}
        for number, pair in enumerate(record["pairs"])
    ]
    # The place of a column among all is a constant behind a lane's first: one conversion for all.
    given = arguments(e, "lane_column", f"(n * {plan.atom.n} + e)", real=real_of(plan))
    return found | gathered(plan, e) | {"pairs": pairs, "arguments": given}


def _kept(plan: KernelPlan, e: Epilogue, element: int, at: int) -> list[str]:
    """What becomes of the terms of an element: some are kept until all of a row are there."""
    alone = [fold for fold in e.folds if fold not in e.at_once]
    together = [line for fold in e.at_once for line in kept(plan, e, fold, element, at)]
    return [*folded(e, element, at, alone, real=real_of(plan)), *together]


def _held(e: Epilogue, first: int) -> list[str]:
    """What two elements leave for the passes behind."""
    if e.holds is None:
        return []
    value, registers = e.holds
    return [f"{registers}[m][n][{first + at}] = {value}_out[{at}];" for at in range(2)]


def pairs_record(plan: KernelPlan, e: Epilogue, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the template needs of pairs of neighbours that leave the fragments."""
    extents = extent_names(plan)
    # Terms are made of words that lie at constants from a lane's first one, if this is one number.
    in_words = bool(e.suffix) and only_words(e)
    column = "place" if in_words else "column"
    return vector_record(e, real_of(plan), column) | {
        "m_extent": extents["m"],
        "n_extent": extents["n"],
        "row_base": e.row_base,
        "column_base": e.column_base,
        "atoms_n": plan.tiles.columns // plan.atom.n,
        "pairs": pairs,
        "terms": [f"{name}_out" for name in outcomes(e)[len(e.writes) :]],
        "suffix": e.suffix,
        "in_words": in_words,
        "fetches_inside": inside(e, column, extents["n"]) if only_words(e) else [],
        "known": [fold.value for fold in e.known],
    }


def _pairs(
    plan: KernelPlan, e: Epilogue, states: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Accumulator elements two by two: neighbours in a row, by every instruction's fragment map.

    With each pair come the states of its row, if sums are some.
    """
    named = states or {}
    found, real = [], real_of(plan)
    for first in range(0, len(e.element_offsets), 2):
        (row, column), (row_next, column_next) = e.element_offsets[first : first + 2]
        assert (row_next, column_next) == (row, column + 1)
        found.append(
            {
                "row": f"m * {plan.atom.m} + {plus(e.row_of_lane, row)}",
                "first": plus(e.column_of_lane, column),
                "step": f"n * {plan.atom.n}",
                "column": f"n * {plan.atom.n} + {plus(e.column_of_lane, column)}",
                "known": [
                    f"const {real_of(plan)} {fold.value} = {fold.known}[m][{fold.slots[first]}];"
                    for fold in e.known
                ],
                "folds": [folded(e, first + at, at, real=real) for at in range(2)]
                if e.folds
                else [],
                "held": _held(e, first),
                "sums": [
                    {"name": f"{total}s", "elements": _sums(plan, total, first, named.get(total))}
                    for _, total in e.sums
                ],
            }
        )
    return found


def _sums(plan: KernelPlan, total: str, first: int, state: str | None) -> tuple[str, ...]:
    """Two elements of sums, or the state of their row, which is in the registers of that name."""
    if state is not None:
        return (f"{state}[m][{plan.atom.c.of_thread[first][0]}]",) * 2
    pair = (first, first + 1)
    return tuple(pair_of_sums(plan.atom.c.dtype, f"{total}[m][n]", pair, first // 2))
