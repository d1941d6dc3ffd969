"""The launch that follows, on whole rows: elements that use results of their own row.

A block has a row. Its threads combine the parts of the kernel's folds, and every one of them gets
the result. Then they walk the row, element after element, once for the folds of each further level
and once for what is stored; what they need of a row's elements they compute again, from what the
kernel has kept.

    level 0   v1: largest, from parts              softmax
    level 1   v4: sum of exp(v0 - v1)
    last      y0 = exp(v0 - v1) / v4
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from polygen.emit.ctext import PointwiseWriter, definition
from polygen.emit.folds import (
    UNROLLED,
    appended,
    array_text,
    combined,
    counts_text,
    exchanged,
    extent_text,
    identities,
    result_address,
    split_of,
    stored,
)
from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaves import plus, scaled, size_name
from polygen.emit.names import c_name
from polygen.frontend.forms import Form
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import (
    Access,
    Affine,
    Constant,
    Coordinate,
    Extent,
    Fold,
    Gathered,
    Index,
    Pointwise,
    Tensor,
    Within,
)
from polygen.lower.accesses import Step
from polygen.lower.launch import Following, Results, stride_argument, workspace_argument
from polygen.lower.plan import KernelPlan
from polygen.poly.folds import Split
from polygen.poly.pointwise import Compute
from polygen.poly.whole_rows import Rows, iterator

_C_TYPES = {2: "unsigned short", 4: "float"}


def kept_declared(plan: KernelPlan) -> list[str]:
    """Where matrices lie in the workspace that the kernel keeps: pointers, steps, and the end.

    Both launches have them, so that they are arrays like others to what reads and writes them.
    """
    after = plan.following
    if after is None or not after.kept:
        return []
    workspace, before, lines = c_name(workspace_argument(plan.program)), ["0LL"], []
    tensors = {one.tensor.name: one.tensor for one in split_of(plan).kept}
    for one in after.kept:
        tensor, kind = tensors[one.name], _C_TYPES[one.item]
        sizes = [size_name(extent) for extent in tensor.dims] or ["1"]
        steps = [stride_argument(tensor, axis) for axis in range(len(sizes) - 1)]
        row = f"({sizes[-1]} + {one.multiple - 1}LL) / {one.multiple} * {one.multiple}"
        values = [f"{size} * {step}" for size, step in _both(sizes[1:-1], steps[1:])]
        values += [row] if steps else []
        for name, value in reversed(list(_both(steps, values))):
            lines.append(f"const long long {name} = {value};")
        room = f"reinterpret_cast<unsigned char*>({workspace}) + {' + '.join(before)}"
        lines.append(f"{kind}* const {one.name} = reinterpret_cast<{kind}*>({room});")
        before.append(f"{sizes[0]} * {steps[0]} * {one.item}" if steps else f"{row} * {one.item}")
    return [*lines, f"const long long kept_end = ({' + '.join(before)}) / 4;"]


@dataclass
class _Scope:
    """What the block knows of its row."""

    writer: PointwiseWriter
    lines: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    left: list[Pointwise] = field(default_factory=list)  # over results, not computed yet


def row_results(plan: KernelPlan, after: Following, group: Results) -> tuple[list[str], list[str]]:
    """A group of results whose rows have elements to compute; with the helpers.

    Args:
        plan: the kernel.
        after: the launch.
        group: with `rows`.
    """
    split = split_of(plan)
    rows = next(r for r in split.rows if tuple(s.name for s in r.statements) == group.rows)
    written = {name: f"{name}_result" for name in group.outputs}
    own = [s for s in split.after if s.name in group.after]
    scope = _Scope(PointwiseWriter({}, written, fast=False), left=own)
    scope.lines += [
        "const long long fold_result = fold_block;",
        f"const long long fold_results = {extent_text(group.extents)};",
        *_coordinates("fold_result", [(at, rows.axes[at]) for at in rows.own]),
        *(f"float {name};" for name in written.values()),
    ]
    for fold in group.folds:
        _combine_parts(plan, after, scope, fold)
    _settle(scope)
    level = _levels(rows)
    for number in sorted({level[f.write.name] for f in rows.folds}):
        folds = [f for f in rows.folds if level[f.write.name] == number]
        _walk(plan, after, split, rows, scope, number, folds)
        for one in folds:
            _meet(after, scope, one.write.name, one.function)
        _settle(scope)
    assert not scope.left
    if rows.outputs:
        _walk(plan, after, split, rows, scope, 0, [])
    if written:
        scope.lines.append("if (threadIdx.x != 0) return;")
        tensors = plan.program.tensors
        places = [f"const long long fold_at{n} = {iterator(at)};" for n, at in enumerate(rows.own)]
        scope.lines += places if any(len(tensors[name].dims) > 1 for name in written) else []
        for name, value in written.items():
            place = result_address(tensors[name], group.extents)
            scope.lines.append(f"*({place}) = {stored(tensors[name].dtype, value)};")
    return scope.lines, list(dict.fromkeys((*scope.helpers, *scope.writer.helpers)))


def _levels(rows: Rows) -> dict[str, int]:
    """Per value of a row, how many walks have to be over before it is known."""
    level: dict[str, int] = {}
    for one in rows.statements:
        read = max((level.get(access.name, 0) for access in one.reads), default=0)
        level[one.write.name] = read + isinstance(one, Fold)
    return level


# --- folds ---------------------------------------------------------------------------------------
def _names(fold: str, monoid: str) -> list[str]:
    return [f"{fold}_part{at}" for at in range(len(MONOIDS[monoid].identity))]


def _begin(scope: _Scope, fold: str, monoid: str) -> list[str]:
    names = _names(fold, monoid)
    given = (f"{n} = {v}" for n, v in zip(names, identities(monoid), strict=True))
    scope.lines.append(f"float {', '.join(given)};")
    return names


def _combine_parts(plan: KernelPlan, after: Following, scope: _Scope, fold: str) -> None:
    """The parts that the kernel's warps have made of a row."""
    part = next(one for one in plan.epilogue.folds if one.value == fold)
    names = _begin(scope, fold, part.monoid)
    arrays = [f"fold_from{at}" for at in range(len(names))]
    reads = [f"__ldcg({array} + fold_q * fold_results)" for array in arrays]
    scope.lines += [
        "{",
        *(
            f"  const float* {array} = {array_text(plan, fold, at)} + fold_result;"
            for at, array in enumerate(arrays)
        ),
        f"  const long long fold_parts = {counts_text(part.parts)};",
        f"#pragma unroll {UNROLLED}",
        f"  for (long long fold_q = threadIdx.x; fold_q < fold_parts; fold_q += {after.threads})",
        f"    {combined(part.monoid, names, reads)}",
        "}",
    ]
    _meet(after, scope, fold, part.monoid)


def _meet(after: Following, scope: _Scope, fold: str, monoid: str) -> None:
    """What all threads have of a fold becomes the result, which every one of them knows."""
    names, warps = _names(fold, monoid), after.threads // after.lanes
    room = [f"fold_{name}" for name in names]
    scope.lines += [f"__shared__ float {', '.join(f'{one}[{warps}]' for one in room)};"]
    scope.lines += exchanged(monoid, names, [1 << b for b in range(after.lanes.bit_length() - 1)])
    at = f"[threadIdx.x / {after.lanes}]"
    write = " ".join(f"{there}{at} = {name};" for there, name in _both(room, names))
    others = [f"{there}[fold_w]" for there in room]
    scope.lines += [
        f"if (threadIdx.x % {after.lanes} == 0) {{ {write} }}",
        "__syncthreads();",
        *(f"{name} = {there}[0];" for there, name in _both(room, names)),
        "#pragma unroll",
        f"for (int fold_w = 1; fold_w < {warps}; ++fold_w)",
        f"  {combined(monoid, names, others)}",
    ]
    finish = MONOIDS[monoid].finish
    body, (value,), needs = definition(lambda *v: (finish(*v),), names, f"{fold}_")
    scope.lines += body
    scope.helpers += needs
    scope.writer.names[fold] = value


def _both(one: Iterable[str], other: Iterable[str]) -> Iterable[tuple[str, str]]:
    return zip(one, other, strict=True)


def _settle(scope: _Scope) -> None:
    """Statements over results, as far as those are known."""
    for one in list(scope.left):
        if all(access.name in scope.writer.names for access in one.reads):
            scope.writer.lines = []
            scope.writer.statement(_computed(one, scope.writer, {}))
            scope.lines += scope.writer.lines
            scope.left.remove(one)


# --- elements ------------------------------------------------------------------------------------
def _walk(
    plan: KernelPlan,
    after: Following,
    split: Split,
    rows: Rows,
    scope: _Scope,
    number: int,
    folds: Sequence[Fold],
) -> None:
    """One walk over a row: terms of folds, or with number 0 what is stored."""
    tensors = plan.program.tensors
    keeps = {one.value: one for one in split.kept}
    wanted = [a.name for one in folds for a in one.reads] if folds else list(rows.outputs)
    statements = _needed(rows, wanted, set(scope.writer.names))
    outputs = {} if folds else {name: f"{name}_result" for name in rows.outputs}
    writer = PointwiseWriter(dict(scope.writer.names), outputs, fast=False, prefix=f"w{number}_")
    reads: dict[Access, str] = {}
    body = [f"float {name};" for name in outputs.values()]
    accesses = [access for one in statements for access in one.reads]
    accesses += [access for one in folds for access in one.reads]
    for access in accesses:
        if access.name in keeps and access.name not in writer.names:
            kept = keeps[access.name]
            value = f"from_{epilogue_type(kept.tensor)}(*({_address(kept.tensor, kept.index)}))"
            body.append(f"const float {access.name} = {value};")
            writer.names[access.name] = access.name
        elif access.name in tensors and access not in reads:
            tensor = tensors[access.name]
            reads[access] = f"read_{len(reads)}" if tensor.dims else c_name(tensor.name)
            if tensor.dims:
                value = f"from_{epilogue_type(tensor)}(__ldg({_address(tensor, access.index)}))"
                body.append(f"const float {reads[access]} = {value};")
    for one in statements:
        writer.statement(_computed(one, writer, reads))
    body += writer.lines
    scope.helpers += writer.helpers
    for fold in folds:
        names = _begin(scope, fold.write.name, fold.function)
        terms = _terms(fold, writer, reads)
        body.append(appended(fold.function, names, terms))
    for name, value in outputs.items():
        tensor = plan.program.tensors[name]
        index = next(s.write.index for s in statements if s.write.name == name)
        body.append(f"*({_address(tensor, index)}) = {stored(tensor.dtype, value)};")
    inner = [(at, rows.axes[at]) for at in rows.inner]
    scope.lines += [
        "#pragma unroll 4",
        f"for (long long fold_e = threadIdx.x; fold_e < {extent_text([e for _, e in inner])}; "
        f"fold_e += {after.threads}) {{",
        *(f"  {line}" for line in (*_coordinates("fold_e", inner), *body)),
        "}",
    ]


def _needed(rows: Rows, wanted: list[str], known: set[str]) -> list[Pointwise]:
    """The statements over elements that values come of, in order."""
    writers = {s.write.name: s for s in rows.statements if isinstance(s, Pointwise)}
    found: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name in writers and name not in found and name not in known:
            found.add(name)
            stack += [access.name for access in writers[name].reads]
    return [one for name, one in writers.items() if name in found]


def _terms(fold: Fold, writer: PointwiseWriter, reads: dict[Access, str]) -> list[str]:
    """What an element contributes to a fold."""
    given = Compute(fold.write.name, "", _arguments(fold.args, writer, reads), fold.dtype)
    return [writer.operand(writer.names.get(a, a) if isinstance(a, str) else a) for a in given.args]


def _computed(statement: Pointwise, writer: PointwiseWriter, reads: dict[Access, str]) -> Compute:
    """A statement whose arguments are names that the writer knows."""
    args = _arguments(statement.args, writer, reads)
    return Compute(statement.write.name, statement.function, args, statement.dtype)


def _arguments(
    given: Sequence[Access | Constant | Coordinate | Extent],
    writer: PointwiseWriter,
    reads: dict[Access, str],
) -> tuple[str | float, ...]:
    found: list[str | float] = []
    for arg in given:
        if isinstance(arg, Constant):
            found.append(arg.value)
            continue
        if isinstance(arg, Access):
            name = reads.get(arg, arg.name)
            writer.names.setdefault(name, name)
        elif isinstance(arg, Extent):
            name = str(arg)
            writer.names[name] = f"(float)({extent_text(arg.dims)})"
        else:
            name = f"coordinate {arg}"
            writer.names[name] = f"(float)({_place(arg.index)})"
        found.append(name)
    return tuple(found)


# --- places --------------------------------------------------------------------------------------
def _coordinates(number: str, axes: Sequence[tuple[int, str | int]]) -> list[str]:
    """Where something is along axes, from its number; the last axis counts fastest."""
    lines = []
    for at in reversed(range(len(axes))):
        axis, extent = axes[at]
        inside = f" % {size_name(extent)}" if at else ""
        lines.append(f"const long long {iterator(axis)} = {number}{inside};")
        number = f"{number} / {size_name(extent)}"
    return lines


def _place(index: Index) -> str:
    """C text of an index."""
    assert not isinstance(index, (Within, Gathered))
    if isinstance(index, Form):
        digits = [(Step("", t.per, t.modulo).of(str(t.of)), t.scale) for t in index.terms]
        terms = [digit if scale == 1 else f"{digit} * {scale}" for digit, scale in digits]
        return plus(" + ".join(terms), index.offset)
    if not isinstance(index, Affine):
        return str(index)
    inner = index.iterator if index.per == 1 else f"{index.iterator} / {index.per}"
    text = inner if index.scale == 1 else f"({inner}) * {index.scale}"
    return f"{text} + {index.offset}" if index.offset else text


def _address(tensor: Tensor, index: Sequence[Index]) -> str:
    """Where an element lies."""
    terms = []
    for axis, one in enumerate(index):
        if one != 0:
            inner = axis == tensor.contiguous_axis
            step = "1" if inner else c_name(stride_argument(tensor, axis))
            terms.append(scaled(f"({_place(one)})", step))
    return " + ".join([c_name(tensor.name), *terms])
