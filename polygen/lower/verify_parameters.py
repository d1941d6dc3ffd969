"""Checks that a kernel's parameters are those of its program, and its tensor maps the program's.

1. Parameters stand in the order that the launcher and the documents name: arrays and numbers,
   sizes, strides, the workspace, tensor maps; each once.
2. A tensor map has an axis for every term of what indexes an array's axes, as far as the dim goes:
   what lies outside is read as zeros, and not written.
3. A box follows one dim of the tile along each axis, from one element of the array that is read to
   the next, and its rows are as long as the swizzle of its buffer.
"""

from __future__ import annotations

from collections import Counter

from polygen.errors import VerifyError
from polygen.frontend.indices import named_in, size_value
from polygen.frontend.program import Dim
from polygen.hardware.matrix_layout import swizzle_bytes
from polygen.lower.accesses import row_step
from polygen.lower.launch import Argument, MapAxis, stride_argument, workspace_argument
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Store
from polygen.lower.work import Boxes, Locate, Move
from polygen.poly.match import Along


def moved(plan: KernelPlan) -> list[Boxes]:
    """What the copy engine moves, in the order of the leaves."""
    found: list[Boxes] = []
    for leaf in plan.leaves:
        if isinstance(leaf.work, Move):
            found += leaf.work.boxes
        elif isinstance(leaf.work, Store):
            found += (boxes for _, boxes in leaf.work.panels)
    return found


def check_parameters(plan: KernelPlan) -> None:
    """Check the parameters of a kernel.

    Raises:
        VerifyError: with those it has, and those it should have.
    """
    program, arrays = plan.program, (*plan.program.inputs, *plan.program.outputs)
    numbers = {one.name for one in program.inputs if not one.dims}
    wanted = [(one.name, "scalar" if one.name in numbers else "pointer", one.name, 0, "")
              for one in arrays]  # fmt: skip
    wanted += [(name, "size", "", 0, name) for name in program.sizes]
    wanted += [
        (stride_argument(one, axis), "stride", one.name, axis, "")
        for one in arrays
        for axis in one.order[:-1]
    ]
    if plan.following is not None:
        wanted.append((workspace_argument(program), "workspace", "", 0, ""))
    section = plan.of(Locate) and plan.of(Locate)[0].sections and not plan.sections
    plain = [_said(one) for one in plan.arguments if one.kind != "map"]
    if section:
        wanted = plain if set(wanted) <= set(plain) else wanted
    if plain != wanted or [_said(one) for one in plan.arguments][: len(plain)] != plain:
        raise VerifyError(f"parameters are {plain}", where=plan.entry, why=f"not {wanted}")
    if any(one.axes or one.swizzle for one in plan.arguments if one.kind != "map"):
        raise VerifyError("what is no map has boxes", where=plan.entry)
    maps = {one.name: one for one in plan.arguments if one.kind == "map"}
    names = [one.map for one in moved(plan)]
    if len(maps) + len(plain) != len(plan.arguments) or not set(names) <= set(maps):
        raise VerifyError(f"maps are {', '.join(maps)} and not {', '.join(names)}",
                          where=plan.entry)  # fmt: skip
    unused = set(maps) - set(names) if not section else set()
    if unused or (not plan.sections and len(set(names)) != len(names)):  # sections may share some
        raise VerifyError(f"{len(maps)} maps for {len(names)} boxes", where=plan.entry)
    for one in moved(plan):
        _check_map(plan, maps[one.map], one)


def _said(one: Argument) -> tuple[str, str, str, int, str]:
    return (one.name, one.kind, one.tensor, one.axis, one.dim)


def _check_map(plan: KernelPlan, argument: Argument, of: Boxes) -> None:
    """The parameter is the map of the boxes, with the swizzle of their buffer."""
    made = (argument.tensor, argument.axis, argument.dim, argument.swizzle)
    if made != (of.tensor.name, 0, "", swizzle_bytes(of.span)) or argument.axes != of.axes:
        raise VerifyError(f"{argument.name} is no map of {of.tensor.name}", where=plan.entry)
    if of.axes[-1].box * of.tensor.dtype.bytes != of.span or of.axes[-1].every != 1:
        raise VerifyError(
            f"boxes of {of.axes[-1].box} elements in rows of {of.span} bytes",
            where=f"{plan.entry}, {of.map}",
        )


def check_map_axes(
    plan: KernelPlan, of: Boxes, index: tuple[Along, ...], extents: dict[str, Dim]
) -> None:
    """The axes of a map are the terms of an index, each as long as its dim goes.

    Args:
        plan: the plan.
        of: boxes of the map.
        index: what indexes each axis of the array.
        extents: of the dims.

    Raises:
        VerifyError: with the axis, and what it should be.
    """
    where = f"{plan.entry}, {of.map}"
    axes: dict[int, list[MapAxis]] = {}
    rows = [one for one in of.axes if one.axis is None]  # of a vector
    for one in of.axes:
        if one.axis is not None:
            axes.setdefault(one.axis, []).append(one)
        if one.every < 1 or one.step < 1 or (one.every > 1 and one.box == 1):
            raise VerifyError(f"boxes take every {one.every}th of {one}", where=where)
    for one in rows:
        if (one.extent, one.start, one.step, one.every) != (1, 0, 1, 1):
            raise VerifyError(f"{of.tensor.name} has no such axis: {one}", where=where)
    if set(axes) != set(range(len(index))):
        raise VerifyError(f"the map has axes {sorted(map(str, axes))}", where=where)
    names = sorted({name for dim in (*extents.values(), *of.tensor.dims) for name in named_in(dim)})
    # Sizes that tell one from another, and are multiples of all digits that are numbers.
    sizes = {name: 5040 * (11 + 2 * number) for number, name in enumerate(names)}
    for axis, own in axes.items():
        along, whole = index[axis], size_value(of.tensor.dims[axis], sizes)
        if along.together or along.places:
            every = row_step((along,), next((t.dim for t in along.terms if t.dim == "m"), ""))
            said = (own[0].extent, own[0].start, own[0].step)
            if len(own) > 1 or said != (of.tensor.dims[axis], 0, 1):
                raise VerifyError(f"windows lie on {own[0]}", where=where)
            if along.together and own[0].every not in (1, *(t.scale for t in along.terms), every):
                raise VerifyError(f"windows lie on {own[0]}", where=where)
            continue
        terms = along.terms or (Along("", 1),)
        wanted = Counter((one.scale, _count(one, extents, sizes, whole, len(terms)))
                         for one in terms)  # fmt: skip
        unknown = {name for one in own for name in named_in(one.extent)} - set(sizes)
        if unknown:
            raise VerifyError(f"no size is called {', '.join(unknown)}", where=where)
        found = Counter((one.step, size_value(one.extent, sizes)) for one in own)
        if found != wanted or sum(one.start for one in own) != along.offset:
            raise VerifyError(
                f"axis {axis} of {of.tensor.name} is {', '.join(map(str, own))}",
                where=where,
                why=f"it is read at {along}",
            )
        if any(one.every != 1 for one in own):
            raise VerifyError(f"elements of {of.tensor.name} are left out", where=where)


def _count(
    term: Along, extents: dict[str, Dim], sizes: dict[str, int], whole: int, terms: int
) -> int:
    """How many indices a term of an index has; of a run that is cut short, those of the axis."""
    if not term.dim:
        return 1
    count = term.modulo or -(-size_value(extents[term.dim], sizes) // term.per)
    return min(count, whole) if terms == 1 and term.modulo else int(count)
