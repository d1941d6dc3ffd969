"""Walks over the elements of a row, in the launch that follows: terms of folds, or what is stored.

What a walk needs of the kernel's values is computed again, from what the kernel has kept.
"""

from __future__ import annotations

from polygen.emit.ctext import PointwiseWriter
from polygen.emit.folds import appended, split_of, stored
from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaf.finish_folds import arguments, computed, result_variable
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.names import c_name
from polygen.emit.row_places import address, coordinates
from polygen.frontend.program import Access, Fold, Pointwise
from polygen.lower.follow_work import Held, Walk, known
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.follow_program import ELEMENT, ELEMENTS, OWN
from polygen.poly.pointwise import Compute
from polygen.poly.whole_rows import Rows

_OWN, _AT = "fold_own", "fold_at"


@leaf("walk_row", "threads", Walk, (ELEMENT,))
def _(plan: KernelPlan, one: Leaf, work: Walk) -> Text:
    lines, _ = walk_lines(plan, work)
    what = f"terms of {', '.join(f.write.name for f in work.folds)}"
    if not work.folds:
        what = ", ".join(work.rows.outputs)
    note = f"{one.statement}: {what}, one element for each lane, from {ELEMENT}"
    return Text(block(*lines), note, parameters=f"const long long {ELEMENT}")


def walk_lines(plan: KernelPlan, work: Walk) -> tuple[list[str], list[str]]:
    """The elements of a warp, as lines of C; with the helpers that they call."""
    rows, folds, tensors = work.rows, work.folds, plan.program.tensors
    keeps = {one.value: one for one in split_of(plan).kept}
    names = {value: known(value) for value in work.known}
    wanted = [a.name for one in folds for a in one.reads] if folds else list(rows.outputs)
    statements = _needed(rows, wanted, set(names))
    outputs = {} if folds else {name: result_variable(name) for name in rows.outputs}
    writer = PointwiseWriter(names, outputs, fast=False, prefix=f"w{work.number}_")
    reads: dict[Access, str] = {}
    # Lanes beyond the end compute the last element again: what they read is there.
    lines = [
        f"const long long {_OWN} = {OWN.format(ELEMENT)};",
        f"const long long {_AT} = min({_OWN}, {ELEMENTS} - 1);",
        *coordinates(_AT, [(at, rows.axes[at]) for at in rows.inner]),
        *(f"float {name};" for name in outputs.values()),
    ]
    accesses = [access for one in statements for access in one.reads]
    accesses += [access for one in folds for access in one.reads]
    for access in accesses:
        if access.name in keeps and access.name not in writer.names:
            kept = keeps[access.name]
            value = f"from_{epilogue_type(kept.tensor)}(*({address(kept.tensor, kept.index)}))"
            lines.append(f"const float {access.name} = {value};")
            writer.names[access.name] = access.name
        elif access.name in tensors and access not in reads:
            tensor = tensors[access.name]
            reads[access] = f"read_{len(reads)}" if tensor.dims else c_name(tensor.name)
            if tensor.dims:
                value = f"from_{epilogue_type(tensor)}(__ldg({address(tensor, access.index)}))"
                lines.append(f"const float {reads[access]} = {value};")
    for one in statements:
        writer.statement(computed(one, writer, reads))
    lines += writer.lines
    ends = []
    for fold in folds:
        terms = _terms(fold, writer, reads)
        held = Held(fold.write.name, fold.function)
        ends.append(appended(fold.function, held.names, terms))
    for name, value in outputs.items():
        tensor = tensors[name]
        index = next(s.write.index for s in statements if s.write.name == name)
        ends.append(f"*({address(tensor, index)}) = {stored(tensor.dtype, value)};")
    lines += [f"if ({_OWN} < {ELEMENTS}) {{", *(f"  {line}" for line in ends), "}"]
    return lines, writer.helpers


def _needed(rows: Rows, wanted: list[str], there: set[str]) -> list[Pointwise]:
    """The statements over elements that values come of, in order."""
    writers = {s.write.name: s for s in rows.statements if isinstance(s, Pointwise)}
    found: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name in writers and name not in found and name not in there:
            found.add(name)
            stack += [access.name for access in writers[name].reads]
    return [one for name, one in writers.items() if name in found]


def _terms(fold: Fold, writer: PointwiseWriter, reads: dict[Access, str]) -> list[str]:
    """What an element contributes to a fold."""
    given = Compute(fold.write.name, "", arguments(fold.args, writer, reads), fold.dtype)
    return [writer.operand(writer.names.get(a, a) if isinstance(a, str) else a) for a in given.args]
