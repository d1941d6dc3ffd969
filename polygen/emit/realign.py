"""The launch before a kernel: its blocks, and records for the host launcher.

The blocks of each array run the leaves and loops of its tile program, which is derived and proved
as the kernel's own (`polygen.lower.realign`). Of arrays that are copied the launch is told all that
it has to know; where operands are made it has the kernel's parameters besides, but for tensor maps.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.conditions import given_step
from polygen.emit.ctext import assigned, loops
from polygen.emit.following import row_lines
from polygen.emit.leaf import render
from polygen.emit.leaves import c_type, parameter, size_name
from polygen.emit.names import c_name
from polygen.frontend.program import Tensor
from polygen.lower.build import arguments
from polygen.lower.plan import Argument, CopyPlan, KernelPlan, MakePlan, MakeRowsPlan
from polygen.lower.realign import plain_shape
from polygen.lower.realign_work import RowCopy, RowMake
from polygen.poly.digits import peeled
from polygen.poly.follow_program import ELEMENT, result_of
from polygen.poly.realign_program import CHUNKS, FIRST, LAST, ROWS, WARP
from polygen.poly.realign_rows import BlockShape, RowTexts, of_block, row_texts
from polygen.schedule.realign import AT_ONCE, Realign, line_bytes

_VISITS = 1  # of a warp to a row that is made, whose elements are on their way at once


def copy(plan: KernelPlan) -> dict[str, Any] | None:
    """What the launcher needs; None: nothing goes before."""
    found = plan.realign
    if found is None:
        return None
    every = found.every
    tensors = [_tensor(plan, at, tensor) for at, tensor in enumerate(found.tensors)]
    tensors += [_made(plan, at, one) for at, one in enumerate(found.made, len(tensors))]
    extents = (size_name(dim) for tensor in every for dim in tensor.dims)
    passed = _passed(plan, found)
    sizes = dict.fromkeys(name for name in extents if not name.isdigit())
    return {
        "entry": found.entry,
        "names": ", ".join(found.names),
        "made": ", ".join(tensor.name for tensor in found.made),
        "does": _does(found),
        "tensors": tensors,
        "threads": found.threads,
        "line": line_bytes(),
        "all_blocks": " + ".join(f"blocks_{at}" for at in range(len(tensors))),
        "arguments": ", ".join(
            [*(one["arguments"] for one in tensors), *(_to_making(plan, found, passed))]
        ),
        "parameters": ", ".join(
            parameter(plan, one) for one in passed if not _is_of(found.made, one)
        ),
        "too_far": [
            _steps(at, tensor, tensor.order[0])
            for at, tensor in enumerate(every)
            if len(tensor.order) > 2
        ],
        "dependent": found.dependent,
        "passed": ", ".join(passed.values()),
        "size_parameters": ", ".join(f"int {name}" for name in sizes),
        "workspace": " + ".join(one["room"] for one in tensors),
    }


def copying(plan: KernelPlan) -> dict[str, Any] | None:
    """The kernel that goes before; None: none does."""
    found = plan.realign
    if found is None:
        return None
    lanes = plan.device.warp_size
    lines = [f"const int lane = threadIdx.x % {lanes}, {WARP} = threadIdx.x / {lanes};"]
    copies = all(isinstance(own, CopyPlan) for own in plan.copies)
    few = plan.device.multiprocessors * AT_ONCE if copies and plan.launch.dependent else 0
    lines.append("unsigned block = blockIdx.x;")
    for at, own in enumerate(plan.copies):
        inside = _inside(plan, at, own)
        if own is not plan.copies[-1]:
            inside = [f"if (block < blocks_{at}) {{", *map(_deeper, inside), "  return;", "}"]
            inside.append(f"block -= blocks_{at};")
        lines += inside
    each = [_parameters(at, tensor) for at, tensor in enumerate(found.tensors)]
    first = len(each)
    each += [f"unsigned blocks_{at}" for at, _ in enumerate(found.made, first)]
    if found.made:
        each += [_of_kernel(plan, found, one) for one in plan.arguments if one.kind != "map"]
    title = "The launch" if found.made else "The copy"
    return {
        "title": f"{title} before it: {_does(found)}, to rows that start at multiples "
        f"of {line_bytes()} bytes.",
        "entry": found.entry,
        "bounds": f"{found.threads}, {AT_ONCE}" if copies else found.threads,
        "few": few,
        "parameters": ", ".join(each),
        "lines": lines,
    }


def _inside(plan: KernelPlan, at: int, own: CopyPlan | MakePlan | MakeRowsPlan) -> list[str]:
    """A block of one array."""
    if isinstance(own, CopyPlan):
        return _lines(plan, at, own)
    return _making(plan, own) if isinstance(own, MakePlan) else _rows(plan, own)


def _rows(plan: KernelPlan, own: MakeRowsPlan) -> list[str]:
    """A block of one operand that is made by rows: its row."""
    head = ["const long long fold_block = block;", f"const long long fold_result = {result_of(1)};"]
    return [*head, *row_lines(plan, own, {ELEMENT: _VISITS})]


def _does(found: Realign) -> str:
    """What the launch is for, in words."""
    names = ", ".join(found.names)
    made = ", ".join(tensor.name for tensor in found.made)
    return "; ".join(part for part in (names, f"makes {made}" if made else "") if part)


def _is_of(tensors: tuple[Tensor, ...], argument: Argument) -> bool:
    """Whether an argument is the address or a step of one of some arrays."""
    return any(argument.tensor == tensor.name for tensor in tensors)


def _of_kernel(plan: KernelPlan, found: Realign, argument: Argument) -> str:
    """A parameter that the kernel has too; what it multiplies is written here."""
    text = parameter(plan, argument)
    written = argument.kind == "pointer" and _is_of(found.made, argument)
    return text.removeprefix("const ") if written else text


def _deeper(line: str) -> str:
    return line if line.startswith("#") else f"  {line}"


def _parameters(at: int, tensor: Tensor) -> str:
    """What `polygen.schedule.realign.constants` says, behind both addresses."""
    axes = range(len(tensor.order) - 1)
    return ", ".join(
        (
            f"const unsigned char* __restrict__ from_{at}",
            f"unsigned char* __restrict__ to_{at}",
            f"unsigned blocks_{at}",
            f"int length_{at}",
            *(f"int extent_{at}_{axis}, int step_{at}_{axis}" for axis in axes),
        )
    )


def _lines(plan: KernelPlan, at: int, own: CopyPlan) -> list[str]:
    """A block of one array: its rows and its segment, the leaves of its tile program, its loops.

    Rows are counted in 32 bits: every row has a line of the workspace.
    """
    work = next(leaf.work for leaf in own.leaves if isinstance(leaf.work, RowCopy))
    shape, item, of = work.shape, work.item, _texts(work.shape, work.item)
    axes = range(len(own.tensor.order) - 1)
    rows = " * ".join(["1LL", *(f"extent_{at}_{axis}" for axis in axes)])
    lines = [
        f"const long long bytes = length_{at} * {item}LL;",
        f"const int {CHUNKS} = (int)({of.chunks.format(bytes='bytes')});",
        *_of_block(of),
        f"const int {FIRST} = {shape.first('segment')};",
        f"const unsigned row = {shape.row('block_rows')};",
        f"const int {ROWS} = (int)({rows} - {shape.first_row('block_rows')});",
    ]
    lines += ["unsigned rest = row;", "long long start = 0;"]
    for axis in axes:
        rest, place = peeled("rest", ["", f"extent_{at}_{axis}"])
        lines.append(f"start += (long long)({place}) * step_{at}_{axis}, {assigned('rest', rest)};")
    lines += [
        f"unsigned long long begin = (unsigned long long)from_{at} + start * {item};",
        f"unsigned long long base = {of.base};",
        "const unsigned long long end = begin + bytes;",
        f"const unsigned shift = {of.shift};",
        f"const int {LAST} = (int)({of.last.format(bytes='bytes')});",
        f"const long long pitch = {of.pitch.format(length=f'length_{at}')};",
        f"unsigned char* to = to_{at} + row * pitch;",
    ]
    for one in own.leaves:
        lines += render(plan, one, 0)
    lines.append("// The loops, generated by isl from the schedule tree.")
    return lines + loops(own.place.loops, {}, 0)


def _making(plan: KernelPlan, own: MakePlan) -> list[str]:
    """A block of one operand: its rows and its segment, the leaves of its tile program, its loops.

    Rows are counted in 32 bits, as those of copies.
    """
    work = next(leaf.work for leaf in own.leaves if isinstance(leaf.work, RowMake))
    shape, item, length = work.shape, work.tensor.dtype.bytes, size_name(work.length)
    rows = " * ".join(["1LL", *(size_name(extent) for _, extent in work.outer)])
    of = _texts(shape, item)
    lines = [
        f"const int {CHUNKS} = (int)({of.chunks.format(bytes=f'{length} * {item}LL')});",
        *_of_block(of, of.groups.format(rows=rows) if work.turns else ""),
        f"const int {FIRST} = {shape.first('segment')};",
        f"const int {ROWS} = (int)({rows} - {shape.first_row('block_rows')});",
        f"unsigned rest = {shape.row('block_rows')};",
        f"const long long pitch = {of.pitch.format(length=length)};",
        f"unsigned char* const to = (unsigned char*){c_name(work.tensor.name)} + rest * pitch;",
    ]
    for dim, extent in work.outer:
        name = "row" if dim == "m" else dim
        rest, place = peeled("rest", ["", size_name(extent)])
        lines += [f"const int {name} = {place};", f"{assigned('rest', rest)};"]
    if not work.outer:
        lines.append("const int row = 0;")
    for one in own.leaves:
        lines += render(plan, one, 0)
    lines.append("// The loops, generated by isl from the schedule tree.")
    return lines + loops(own.place.loops, {}, 0)


def _texts(shape: BlockShape, item: int) -> RowTexts:
    """The formulas of rows of elements of so many bytes."""
    return row_texts(shape, item, line_bytes())


def _of_block(of: RowTexts, groups: str = "") -> list[str]:
    """Which rows a block has, and which segment.

    Args:
        of: the formulas of rows.
        groups: of rows, if those of both halves take turns.
    """
    rows, segment = of_block(turns=bool(groups))
    return [
        f"const unsigned segments = {of.segments};",
        *([f"const unsigned groups = (unsigned)({groups});"] if groups else []),
        f"const unsigned block_rows = {rows}, segment = {segment};",
    ]


def _made(plan: KernelPlan, at: int, tensor: Tensor) -> dict[str, Any]:
    """An operand that is made: where it lies, and how many blocks make it."""
    return _room(plan, at, tensor) | {"arguments": f"blocks_{at}", "refusals": []}


def _room(plan: KernelPlan, at: int, tensor: Tensor) -> dict[str, Any]:
    """Where an array lies in the workspace."""
    length, size = size_name(tensor.dims[tensor.order[-1]]), tensor.dtype.bytes
    shape = next(
        (x.work.shape for x in plan.copies[at].leaves if isinstance(x.work, RowCopy | RowMake)),
        plain_shape(plan.device.warp_size),
    )
    of, by_rows = _texts(shape, size), isinstance(plan.copies[at], MakeRowsPlan)
    rows = " * ".join(["1LL", *(size_name(tensor.dims[axis]) for axis in tensor.order[:-1])])
    return {
        "bytes": size,
        "before": f"end_{at - 1} + " if at else "",
        "step": of.step.format(length=length),
        "blocks": f"rows_{at}"
        if by_rows
        else of.blocks.format(rows=f"rows_{at}", bytes=f"{length} * {size}LL"),
        "rows": rows,
        "room": f"{rows} * ({of.lines.format(length=length)}) * {line_bytes()}",
    }


def _tensor(plan: KernelPlan, at: int, tensor: Tensor) -> dict[str, Any]:
    outer, row = tensor.order[:-1], tensor.order[-1]
    length, size = size_name(tensor.dims[row]), tensor.dtype.bytes
    pairs = [(size_name(tensor.dims[a]), given_step(tensor, a)) for a in reversed(outer)]
    start = f"copies + end_{at - 1}" if at else "copies"
    values = (f"blocks_{at}", length, *(value for pair in pairs for value in pair))
    return _room(plan, at, tensor) | {
        "arguments": ", ".join((f"(const unsigned char*){c_name(tensor.name)}", start, *values)),
        "refusals": [
            *(f"{size_name(dim)} < 1" for dim in tensor.dims if isinstance(dim, str)),
            *(f"{given_step(tensor, axis)} < 0" for axis in outer if tensor.dims[axis] != 1),
            f"(unsigned long long){c_name(tensor.name)} % {size}",
        ],
    }


def _passed(plan: KernelPlan, found: Realign) -> dict[Argument, str]:
    """The arguments of the launcher that the copies are given to, and their values."""
    names, values = [tensor.name for tensor in found.every], {}
    for argument in arguments(plan.program, workspace=plan.following is not None):
        name = c_name(argument.name)
        if argument.tensor in names and argument.kind in ("pointer", "stride"):
            at = names.index(argument.tensor)
            tensor = found.every[at]
            if argument.kind == "pointer":
                start = f" + end_{at - 1}" if at else ""
                name = f"({c_type(tensor.dtype)}*)(copies{start})"
                name = name if tensor in found.made else f"(const {name[1:]}"
            else:
                name = f"(int)({_steps(at, tensor, argument.axis)})"
        values[argument] = name
    return values


def _to_making(plan: KernelPlan, found: Realign, passed: dict[Argument, str]) -> list[str]:
    """The kernel's arguments as a launch that makes operands gets them: of the caller's arrays."""
    if not found.made:
        return []
    every = (one for one in plan.arguments if one.kind != "map")
    return [
        passed[one]
        if _is_of(found.made, one)
        else given_step(plan.program.tensors[one.tensor], one.axis)
        if one.kind == "stride"
        else c_name(one.name)
        for one in every
    ]


def _steps(at: int, tensor: Tensor, axis: int) -> str:
    """Elements per step along an axis of a copy, in 64 bits."""
    faster = tensor.order[tensor.order.index(axis) + 1 : -1]
    extents = "".join(f" * {size_name(tensor.dims[one])}" for one in faster)
    return f"pitch_{at}{extents}"
