"""Keys in parts, in the launch that follows: all parts of a row -> its results.

A block has a row. Every thread combines the references of all parts, and the states under them;
then it has columns of its own, whose sums it combines the same way and hands to the program's
statements.
"""

from __future__ import annotations

from polygen.emit.folds import array_text, combined, counts_text, extent_text, identities
from polygen.emit.leaf.scan_correction import correction_lines
from polygen.emit.leaf.table import render
from polygen.emit.leaves import extent_names, matrix_coordinates
from polygen.lower.key_parts import AFTER, part_row
from polygen.lower.launch import Results
from polygen.lower.plan import KernelPlan
from polygen.lower.scan_work import PartStore, Scan, ScanState

_AHEAD = 4  # parts that are on their way to a thread


def merged_rows(plan: KernelPlan, group: Results) -> tuple[list[str], list[str]]:
    """A row of a block: parts -> results; with the helpers that it calls.

    Args:
        plan: the kernel.
        group: the rows.
    """
    (work,), (scan, *_) = plan.of(PartStore), plan.of(Scan)
    assert plan.following is not None
    extents, threads = extent_names(plan), plan.following.threads
    lines = [
        f"const long long fold_rows = {extent_text(group.extents)}, fold_result = fold_block;",
        f"const long long fold_parts = {counts_text(work.total)};",
        f"const int row = fold_result % {extents['m']};",
    ]
    if plan.batches:
        lines.append(f"const int matrix = fold_result / {extents['m']};")
        lines += [f"const int {one};" for one in matrix_coordinates(plan.batches)]
    lines += _arrays(plan, work)
    reference = scan.reference
    lines += _reference(scan, reference) if reference is not None else []
    for state in scan.summed:
        lines += _state(state, reference)
    for one in plan.leaves:
        if one.place == AFTER:
            lines += render(plan, one, 0)
    named = {value: f"whole_{register}" for value, register in work.named}
    given = ", ".join(named.get(total, "sum") for _, total in work.epilogue.sums)
    place = part_row("fold_q", "fold_rows", "fold_result")
    each = f"__ldcg(part_sums + ({place}) * {extents['n']} + column)"
    worth = _worth(reference, "part")
    lines += [
        f"for (int column = threadIdx.x; column < {extents['n']}; column += {threads}) {{",
        "  float sum = 0.0f;",
        f"#pragma unroll {_AHEAD}",
        "  for (long long fold_q = 0; fold_q < fold_parts; ++fold_q) {",
        *(f"    {line}" for line in worth),
        f"    sum += {each}{' * part' if worth else ''};",
        "  }",
        f"  finish_element(row, column, 0, {given});",
        "}",
    ]
    return lines, list(correction_lines(scan)[2])


def _arrays(plan: KernelPlan, work: PartStore) -> list[str]:
    arrays = [("part_sums", work.total.value)]
    arrays += [(f"part_{state.register}", parts.value) for state, parts in work.states]
    return [f"const float* const {name} = {array_text(plan, of, 0)};" for name, of in arrays]


def _part_of(state: ScanState) -> str:
    return f"__ldcg(part_{state.register} + {part_row('fold_q', 'fold_rows', 'fold_result')})"


def _each_part(*lines: str) -> list[str]:
    return [
        f"#pragma unroll {_AHEAD}",
        "for (long long fold_q = 0; fold_q < fold_parts; ++fold_q) {",
        *(f"  {line}" for line in lines),
        "}",
    ]


def _reference(scan: Scan, state: ScanState) -> list[str]:
    """The reference of the row, and what a part under its own is worth under it."""
    (nothing,) = identities(state.monoid)
    whole = f"whole_{state.register}"
    lines, value, _ = correction_lines(scan)
    return [
        f"float {whole} = {nothing};",
        *_each_part(combined(state.monoid, [whole], [_part_of(state)])),
        f"const float after = {whole} == {nothing} ? 0.0f : {whole};",
        "auto worth = [&](const float before) {",
        *(f"  {line}" for line in lines),
        f"  return before == {nothing} ? 0.0f : {value};",
        "};",
    ]


def _worth(reference: ScanState | None, name: str) -> list[str]:
    """What part q is worth, as a variable; nothing where every part is worth what it is."""
    return [] if reference is None else [f"const float {name} = worth({_part_of(reference)});"]


def _state(state: ScanState, reference: ScanState | None) -> list[str]:
    """A state of the row."""
    (nothing,) = identities(state.monoid)
    whole = f"whole_{state.register}"
    scaled = _worth(reference, "part") if state.rescaled else []
    value = f"{_part_of(state)}{' * part' if scaled else ''}"
    return [
        f"float {whole} = {nothing};",
        *_each_part(*scaled, combined(state.monoid, [whole], [value])),
    ]
