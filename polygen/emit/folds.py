"""Folds in C: how components are combined, where parts and results lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polygen.emit.doubles import literal_of
from polygen.emit.element_types import name_of
from polygen.emit.functions import FAST_BITS, is_relative
from polygen.emit.leaves import scaled, size_name
from polygen.emit.names import c_name
from polygen.frontend.dtypes import DType
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Constant, Dim, Pointwise, Tensor
from polygen.lower.launch import Count, Parts, Results, stride_argument
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import FoldPart
from polygen.poly.digits import numbered
from polygen.poly.elements import Compute


def section_of(plan: KernelPlan, group: Results) -> KernelPlan:
    """Whose results a group of the launch that follows makes: a section's, or the kernel's."""
    every = ((one, {fold.value for fold in one.epilogue.folds}) for one in plan.sections)
    return next((one for one, made in every if made & {*group.folds}), plan)


def workspace_name(plan: KernelPlan) -> str:
    """What the kernel calls its workspace, in C."""
    return c_name(next(one.name for one in plan.arguments if one.kind == "workspace"))


def extent_text(extents: Sequence[Dim]) -> str:
    """How many elements there are along some dims, in 64 bits."""
    return " * ".join(["1LL", *(size_name(extent) for extent in extents)])


def count_text(count: Count) -> str:
    """A number of parts along one dim."""
    extent = size_name(count.extent)
    if count.step > 1:
        extent = f"({extent} + {count.step - 1}) / {count.step}"
    return f"{extent} * {count.times}" if count.times > 1 else extent


def counts_text(parts: Parts) -> str:
    """The number of a result's parts, in 64 bits."""
    return " * ".join(["1LL", *(f"({count_text(count)})" for count in parts.counts)])


def array_text(plan: KernelPlan, fold: str, component: int) -> str:
    """Where the parts of a fold's component begin."""
    return f"{workspace_name(plan)} + {offset_text(plan, fold, component)}".removesuffix(" + 0LL")


def offset_text(plan: KernelPlan, fold: str, component: int) -> str:
    """Behind how many elements of the workspace the parts of a fold's component begin."""
    assert plan.following is not None
    before = ["kept_end"] if plan.following.kept else []
    for parts in plan.following.parts:
        each = f"{counts_text(parts)} * {extent_text(parts.results).removeprefix('1LL * ')}"
        if parts.value == fold:
            before += [each] * component
            break
        before += [each] * parts.components
    return " + ".join(before) or "0LL"


def part_number(part: FoldPart) -> str:
    """The number of a warp's part, in 64 bits."""
    counts = map(count_text, part.parts.counts[1:])
    return numbered(f"(long long)({part.part[0]})", list(zip(counts, part.part[1:], strict=True)))


def combined(monoid: str, into: Sequence[str], values: Sequence[str]) -> str:
    """A statement that combines values into variables."""
    return f"combine_{monoid}({', '.join((*into, *values))});"


def appended(monoid: str, into: Sequence[str], values: Sequence[str]) -> str:
    """The same of a term that comes behind all that have been combined."""
    return combined(f"{monoid}_later" if MONOIDS[monoid].later else monoid, into, values)


def identities(monoid: str, real: str = "float") -> list[str]:
    """The components of nothing, in the C type in which terms are combined."""
    return [literal_of(value, real) for value in MONOIDS[monoid].identity]


def exchanged(monoid: str, names: Sequence[str], masks: Sequence[int]) -> list[str]:
    """Statements by which lanes combine what those have whose numbers differ in one bit."""
    return [
        combined(monoid, names, [f"__shfl_xor_sync(0xffffffffu, {name}, {mask})" for name in names])
        for mask in masks
    ]


def result_address(tensor: Tensor, extents: Sequence[Dim]) -> str:
    """Where a result goes; axes of extent 1 have one place."""
    own = [axis for axis, dim in enumerate(tensor.dims) if dim != 1]
    if len(tensor.dims) <= 1:
        return " + ".join([c_name(tensor.name), *(["fold_result"] if extents else [])])
    terms = []
    for at, axis in enumerate(own):
        step = c_name(stride_argument(tensor, axis)) if axis != tensor.order[-1] else "1"
        terms.append(scaled(f"fold_at{at}", step))
    return " + ".join([c_name(tensor.name), *terms])


def short_beside_folds(
    plan: KernelPlan,
    statements: Iterable[Compute | Pointwise],
    folded: bool,
    written: Sequence[Tensor] = (),
) -> bool:
    """Whether pointwise code of a program with folds takes short forms.

    It does where all results have 16 bits or fewer; terms of folds only where the errors of all
    forms are parts of their values.

    Args:
        plan: the kernel.
        statements: the code.
        folded: whether it makes terms.
        written: what comes of it; none: the program's results.
    """
    results = written or plan.program.outputs
    narrow = all(tensor.dtype.bits <= FAST_BITS for tensor in results)
    if not folded or not narrow:
        return narrow
    return all(is_relative(one.function, list(map(_written, one.args))) for one in statements)


def _written(argument: object) -> str | float:
    """An argument as forms of functions are asked for: a number, or some value."""
    value = argument.value if isinstance(argument, Constant) else argument
    return float(value) if isinstance(value, (int, float)) else "value"


def stored(dtype: DType, value: str) -> str:
    """A value as it is stored in an array."""
    return f"to_{name_of(dtype)}({value})"
