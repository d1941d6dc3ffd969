"""Results in the launch that follows: what is computed of folds, and stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polygen.emit.ctext import PointwiseWriter, definition
from polygen.emit.element_types import name_of
from polygen.emit.folds import extent_text, result_address, stored
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import real_of, size_name
from polygen.emit.names import c_name
from polygen.emit.row_places import address, place_text
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import (
    Access,
    Constant,
    Coordinate,
    Dim,
    Extent,
    Pointwise,
)
from polygen.lower.follow_work import Settle, StoreResults, known
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.digits import peeled
from polygen.poly.folds import scalars
from polygen.poly.pointwise import Compute


def finish_lines(plan: KernelPlan, work: Settle) -> tuple[list[str], list[str]]:
    """What is computed when a level is there, as lines of C; with the helpers that it calls."""
    lines, reads = _reads(plan, work)
    own, helpers = settling_lines(plan, work, reads)
    return [*lines, *own], helpers


def settling_lines(
    plan: KernelPlan, work: Settle, reads: Mapping[tuple[Pointwise, Access], str]
) -> tuple[list[str], list[str]]:
    """The same, of elements of arguments that have names."""
    written = {name: result_variable(name) for name in work.outputs}
    names = {name: c_name(name) for name in scalars(plan.program)}
    names |= {value: known(value) for value in work.known}
    real = real_of(plan)
    writer = PointwiseWriter(names, written, fast=False, real=real)
    lines: list[str] = []
    helpers: list[str] = []
    for fold in work.folds:
        finish = MONOIDS[fold.monoid].finish
        body, (value,), needs = definition(
            lambda *v, finish=finish: (finish(*v),), fold.names, f"{fold.value}_", real=real
        )
        lines += body
        helpers += needs
        writer.names[fold.value] = value
    for one in work.statements:
        own = {a: reads[s, a] for s, a in work.reads if s == one and (s, a) in reads}
        writer.statement(computed(one, writer, own))
    lines += writer.lines
    lines += [f"{known(name)} = {writer.names[name]};" for name, _ in work.lasting]
    return lines, [*helpers, *writer.helpers]


def _reads(plan: KernelPlan, work: Settle) -> tuple[list[str], dict[tuple[Pointwise, Access], str]]:
    """Elements of arguments at the result's place, as lines of C, and their names.

    Threads without a result of their own, behind the last, read what the last one has.
    """
    tensors, real = plan.program.tensors, real_of(plan)
    read = [(s, a) for s, a in work.reads if tensors[a.name].dims]
    if not read:
        return [], {}
    sizes = [size_name(extent) for extent in work.extents]
    own = [f"fold_own{at}" for at in range(len(sizes))]
    found = peeled("fold_there", sizes)
    lines = [f"const long long {name} = {text};" for name, text in zip(own, found, strict=True)]
    if sizes:
        lines.append("const long long fold_there = min(fold_result, fold_results - 1);")
    lines, names = lines[::-1], dict[tuple[Pointwise, Access], str]()
    for statement, access in read:
        axes = [iterator for iterator, extent in statement.domain if extent != 1]
        places = dict(zip(axes, own, strict=True))
        index = tuple(places.get(at, 0) if isinstance(at, str) else at for at in access.index)
        tensor, name = tensors[access.name], f"given_{len(names)}"
        names[statement, access] = name
        value = f"from_{name_of(tensor.dtype)}(*({address(tensor, index)}))"
        lines.append(f"const {real} {name} = {value};")
    return lines, names


@leaf("finish_folds", "threads", Settle)
def _(plan: KernelPlan, one: Leaf, work: Settle) -> Text:
    real = real_of(plan)
    declared = [f"{'bool' if truth else real} {known(name)};" for name, truth in work.lasting]
    declared += [f"{real} {result_variable(name)};" for name in work.outputs]
    note = f"{one.statement}: results, and what is computed of them"
    return Text(block(*finish_lines(plan, work)[0]), note, tuple(declared))


@leaf("store_results", "threads", StoreResults)
def _(plan: KernelPlan, one: Leaf, work: StoreResults) -> Text:
    tensors = plan.program.tensors
    lines = []
    if work.extents and any(len(tensors[name].dims) > 1 for name in work.outputs):
        lines = _along(work.extents)
    for name in work.outputs:
        place = result_address(tensors[name], work.extents)
        value = stored(tensors[name].dtype, result_variable(name))
        lines.append(f"*({place}) = {value};")
    condition = "lane == 0" if work.shared else "fold_result < fold_results"
    lines = [f"if ({condition}) {{", *(f"  {line}" for line in lines), "}"]
    return Text(block(*lines), f"{one.statement}: {', '.join(work.outputs)}")


def result_variable(output: str) -> str:
    """The value that is stored in an array."""
    return f"{output}_result"


def _along(extents: Sequence[Dim]) -> list[str]:
    """Where a result is along its axes, the last fastest."""
    found = peeled("fold_result", [size_name(extent) for extent in extents])
    lines = [f"const long long fold_at{at} = {text};" for at, text in enumerate(found)]
    return lines[::-1]


def computed(statement: Pointwise, writer: PointwiseWriter, reads: dict[Access, str]) -> Compute:
    """A statement whose arguments are names that the writer knows."""
    args = arguments(statement.args, writer, reads)
    return Compute(statement.write.name, statement.function, args, statement.dtype)


def arguments(
    given: Sequence[Access | Constant | Coordinate | Extent],
    writer: PointwiseWriter,
    reads: dict[Access, str],
) -> tuple[str | float, ...]:
    """Names of arguments, which the writer knows from then on; numbers as they are."""
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
            writer.names[name] = f"({writer.real})({extent_text(arg.dims)})"
        else:
            name = f"coordinate {arg}"
            writer.names[name] = f"({writer.real})({place_text(arg.index)})"
        found.append(name)
    return tuple(found)
