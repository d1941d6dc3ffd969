"""Parts of the keys of a row, in the launch that follows: references, states and sums become one.

Every thread has the reference and the states of the row, and sums of columns of its own.
"""

from __future__ import annotations

from polygen.emit.folds import (
    combined,
    counts_text,
    extent_text,
    identities,
    offset_text,
    workspace_name,
)
from polygen.emit.leaf.scan_correction import correction_lines
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import extent_names, matrix_coordinates
from polygen.lower.follow_work import MergeKeys
from polygen.lower.key_parts import part_row
from polygen.lower.launch import Results
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.scan_work import PartStore, Scan, ScanState
from polygen.poly.follow_program import ELEMENT, ELEMENTS, OWN, PART, parts_of

_ROW = part_row(PART, "fold_rows", "fold_result")


def row_of_keys(plan: KernelPlan, group: Results) -> list[str]:
    """Which row a block has, and where its parts are.

    Args:
        plan: the kernel.
        group: the rows.
    """
    (work,) = plan.of(PartStore)
    extents = extent_names(plan)
    lines = [
        f"const long long fold_rows = {extent_text(group.extents)}, fold_result = fold_block;",
        f"const long long {parts_of(0)} = {counts_text(work.total)};",
        f"const long long {ELEMENTS} = {extents['n']};",
        f"const int row = fold_result % {extents['m']};",
    ]
    if plan.batches:
        lines.append(f"const int matrix = fold_result / {extents['m']};")
        lines += [f"const int {one};" for one in matrix_coordinates(plan.batches)]
    arrays = [("part_sums", work.total.value)]
    arrays += [(f"part_{state.register}", parts.value) for state, parts in work.states]
    named = ((name, offset_text(plan, of, 0)) for name, of in arrays)
    return lines + [f"const long long {name} = {text};" for name, text in named]


def merge_helpers(plan: KernelPlan) -> list[str]:
    """Files of functions that a part's worth calls."""
    return list(correction_lines(plan.of(Scan)[0])[2]) if plan.of(PartStore) else []


@leaf("begin_keys", "threads", MergeKeys)
def _(plan: KernelPlan, one: Leaf, work: MergeKeys) -> Text:
    note = f"{one.statement}: nothing is combined yet"
    if work.what == "sum":
        return Text(block("sum = 0.0f;"), note, ("float sum;",))
    states = _states(work)
    declared = [f"float {', '.join(map(_whole, states))};"]
    begun = [f"{_whole(state)} = {_nothing(state)};" for state in states]
    if work.what == "reference":
        declared += _worth_of_a_part(work.scan, states[0])
    return Text(block(*begun), note, tuple(declared))


@leaf("merge_keys", "threads", MergeKeys, (ELEMENT, PART), (PART,))
def _(plan: KernelPlan, one: Leaf, work: MergeKeys) -> Text:
    parameters = ", ".join(f"const long long {name}" for name in one.loops)
    reference = work.scan.reference
    if work.what == "sum":
        each = _read(plan, f"part_sums + ({_ROW}) * {ELEMENTS} + column")
        lines = [
            # Lanes beyond the last column read it, and store nothing.
            f"const long long column = min({OWN.format(ELEMENT)}, {ELEMENTS} - 1);",
            *_worth(plan, reference),
            f"sum += {each}{' * part' if reference is not None else ''};",
        ]
        note = f"{one.statement}: part {PART} of the sums, a column for each lane, from {ELEMENT}"
        return Text(block(*lines), note, parameters=parameters)
    lines, scaled = [], False
    for state in _states(work):
        own = state.rescaled and work.what == "states" and reference is not None
        value = f"{_part_of(plan, state)}{' * part' if own else ''}"
        lines.append(combined(state.monoid, [_whole(state)], [value]))
        scaled |= own
    note = f"{one.statement}: part {PART} of {', '.join(s.value for s in _states(work))}"
    return Text(
        block(*(_worth(plan, reference) if scaled else []), *lines), note, parameters=parameters
    )


@leaf("finish_keys", "threads", MergeKeys, (ELEMENT,))
def _(plan: KernelPlan, one: Leaf, work: MergeKeys) -> Text:
    named = {value: f"whole_{register}" for value, register in work.store.named}
    given = ", ".join(named.get(total, "sum") for _, total in work.store.epilogue.sums)
    lines = [
        f"const long long column = {OWN.format(ELEMENT)};",
        f"if (column < {ELEMENTS}) finish_element(row, column, 0, {given});",
    ]
    note = f"{one.statement}: what the program makes of a row's sums and states"
    return Text(block(*lines), note, parameters=f"const long long {ELEMENT}")


def _states(work: MergeKeys) -> tuple[ScanState, ...]:
    reference = work.scan.reference
    if work.what == "reference":
        assert reference is not None
        return (reference,)
    return work.scan.summed


def _whole(state: ScanState) -> str:
    return f"whole_{state.register}"


def _nothing(state: ScanState) -> str:
    (nothing,) = identities(state.monoid)
    return nothing


def _read(plan: KernelPlan, offset: str) -> str:
    """What lies in the workspace; addresses are made behind the wait for the kernel."""
    return f"__ldcg({workspace_name(plan)} + ({offset}))"


def _part_of(plan: KernelPlan, state: ScanState) -> str:
    return _read(plan, f"part_{state.register} + {_ROW}")


def _worth_of_a_part(scan: Scan, reference: ScanState) -> list[str]:
    """What a part under its own reference is worth under the row's, as a function."""
    nothing, whole = _nothing(reference), _whole(reference)
    lines, value, _ = correction_lines(scan)
    return [
        "auto worth = [&](const float before) {",
        f"  const float after = {whole} == {nothing} ? 0.0f : {whole};",
        *(f"  {line}" for line in lines),
        f"  return before == {nothing} ? 0.0f : {value};",
        "};",
    ]


def _worth(plan: KernelPlan, reference: ScanState | None) -> list[str]:
    """What the part is worth, as a variable; nothing where every part is worth what it is."""
    return [] if reference is None else [f"const float part = worth({_part_of(plan, reference)});"]
