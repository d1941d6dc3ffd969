"""Rows of elements in C: where one is along axes, where it lies, where matrices are kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from polygen.emit.folds import extent_text, workspace_name
from polygen.emit.leaves import plus, scaled, size_name
from polygen.emit.names import c_name
from polygen.frontend.forms import Form
from polygen.frontend.program import Affine, Gathered, Index, Tensor, Within
from polygen.lower.accesses import Step
from polygen.lower.launch import KEPT_ALIGNMENT, KeptRows, stride_argument
from polygen.lower.plan import KernelPlan
from polygen.poly.digits import peeled
from polygen.poly.whole_rows import iterator

_C_TYPES = {2: "unsigned short", 4: "float", 8: "double"}


def mapped(plan: KernelPlan) -> frozenset[str]:
    """The kept matrices that the kernel's copy engine stores, by a tensor map."""
    after = plan.following
    maps = {one.tensor for one in plan.arguments if one.kind == "map"}
    return frozenset(one.name for one in after.kept if one.name in maps) if after else frozenset()


def kept_of_maps(plan: KernelPlan) -> list[str]:
    """Where the host finds such matrices: pointers and steps of those that a map is made of."""
    after, maps = plan.following, mapped(plan)
    if after is None or not maps:
        return []
    *found, _ = kept_declared(plan, {one.name for one in after.kept} - maps)
    return found


def kept_declared(plan: KernelPlan, without: Collection[str] = ()) -> list[str]:
    """Where matrices lie in the workspace that the kernel keeps: pointers, steps, and the end.

    Both launches have them, so that they are arrays like others to what reads and writes them.

    Args:
        plan: the kernel.
        without: matrices that nobody there names the pointers of.
    """
    after = plan.following
    if after is None or not after.kept:
        return []
    workspace, before, lines = workspace_name(plan), ["0LL"], []
    for one in after.kept:
        tensor, item = one.tensor, one.tensor.dtype.bytes
        kind = _C_TYPES[item]
        sizes = [size_name(extent) for extent in tensor.dims] or ["1"]
        steps = [stride_argument(tensor, axis) for axis in range(len(sizes) - 1)]
        row = f"({sizes[-1]} + {one.multiple - 1}LL) / {one.multiple} * {one.multiple}"
        values = [f"{size} * {step}" for size, step in _both(sizes[1:-1], steps[1:])]
        values += [row] if steps else []
        for name, value in reversed(list(_both(steps, values))):
            lines.append(f"const long long {name} = {value};")
        room = f"reinterpret_cast<unsigned char*>({workspace}) + {' + '.join(before)}"
        if one.name not in without:
            lines.append(f"{kind}* const {one.name} = reinterpret_cast<{kind}*>({room});")
        before.append(f"{sizes[0]} * {steps[0]} * {item}" if steps else f"{row} * {item}")
    return [*lines, f"const long long kept_end = ({' + '.join(before)}) / {after.real.bytes};"]


def kept_bytes(one: KeptRows) -> str:
    """The room of such a matrix, in C of the host."""
    *rows, row = one.tensor.dims or (1,)
    chunks = f"({size_name(row)} + {one.multiple - 1}LL) / {one.multiple}"
    return f"{extent_text(rows)} * ({chunks}) * {KEPT_ALIGNMENT}"


def _both(one: Iterable[str], other: Iterable[str]) -> Iterable[tuple[str, str]]:
    return zip(one, other, strict=True)


def coordinates(number: str, axes: Sequence[tuple[int, str | int]]) -> list[str]:
    """Where something is along axes, from its number; the last axis counts fastest."""
    found = peeled(number, [size_name(extent) for _, extent in axes])
    named = [f"const long long {iterator(axis)}" for axis, _ in axes]
    return [f"{name} = {at};" for name, at in reversed(list(_both(named, found)))]


def place_text(index: Index) -> str:
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


def address(tensor: Tensor, index: Sequence[Index]) -> str:
    """Where an element lies."""
    terms = []
    for axis, one in enumerate(index):
        if one != 0:
            inner = axis == tensor.contiguous_axis
            step = "1" if inner else c_name(stride_argument(tensor, axis))
            terms.append(scaled(f"({place_text(one)})", step))
    return " + ".join([c_name(tensor.name), *terms])
