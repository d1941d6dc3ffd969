"""The copy before a kernel: its blocks, and records for the host launcher.

The blocks of each array run the leaves and loops of the copy's tile program, which is derived and
proved as the kernel's own (`polygen.lower.realign`).
"""

from __future__ import annotations

from typing import Any

from polygen.emit.conditions import given_step
from polygen.emit.ctext import loops
from polygen.emit.leaf import render
from polygen.emit.leaves import c_type, size_name
from polygen.emit.names import c_name
from polygen.frontend.program import Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.build import arguments
from polygen.lower.plan import CopyPlan, KernelPlan
from polygen.lower.realign_work import RowCopy
from polygen.poly.realign_program import CHUNKS, FIRST, LAST, ROWS, WARP
from polygen.schedule.realign import WARPS, Realign, line_bytes, segment_chunks


def copy(plan: KernelPlan) -> dict[str, Any] | None:
    """What the launcher needs; None: nothing is copied."""
    found = plan.realign
    if found is None:
        return None
    tensors = [_tensor(at, tensor) for at, tensor in enumerate(found.tensors)]
    segment = segment_chunks() * chunk_bytes()
    extents = (size_name(dim) for tensor in found.tensors for dim in tensor.dims)
    sizes = dict.fromkeys(name for name in extents if not name.isdigit())
    return {
        "entry": found.entry,
        "names": ", ".join(found.names),
        "tensors": tensors,
        "warps": WARPS,
        "warps_less_1": WARPS - 1,
        "threads": found.threads,
        "segment": segment,
        "segment_less_1": segment - 1,
        "line": line_bytes(),
        "all_blocks": " + ".join(f"blocks_{at}" for at in range(len(tensors))),
        "arguments": ", ".join(one["arguments"] for one in tensors),
        "too_far": [
            _steps(at, tensor, tensor.order[0])
            for at, tensor in enumerate(found.tensors)
            if len(tensor.order) > 2
        ],
        "passed": ", ".join(_passed(plan, found)),
        "size_parameters": ", ".join(f"int {name}" for name in sizes),
        "workspace": " + ".join(one["room"] for one in tensors),
    }


def copying(plan: KernelPlan) -> dict[str, Any] | None:
    """The kernel of the copy; None: nothing is copied."""
    found = plan.realign
    if found is None:
        return None
    lanes = plan.device.warp_size
    lines = [f"const int lane = threadIdx.x % {lanes}, {WARP} = threadIdx.x / {lanes};"]
    lines.append("unsigned block = blockIdx.x;")
    for at, own in enumerate(plan.copies):
        inside = _lines(plan, at, own)
        if own is not plan.copies[-1]:
            inside = [f"if (block < blocks_{at}) {{", *map(_deeper, inside), "  return;", "}"]
            inside.append(f"block -= blocks_{at};")
        lines += inside
    each = (_parameters(at, tensor) for at, tensor in enumerate(found.tensors))
    return {
        "title": f"The copy before it: {', '.join(found.names)}, to rows that start at multiples "
        f"of {line_bytes()} bytes.",
        "entry": found.entry,
        "threads": found.threads,
        "parameters": ", ".join(each),
        "lines": lines,
    }


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
    shape, size, item = work.shape, work.shape.size, work.item
    axes = range(len(own.tensor.order) - 1)
    rows = " * ".join(["1LL", *(f"extent_{at}_{axis}" for axis in axes)])
    line = line_bytes() // item
    lines = [
        f"const long long bytes = length_{at} * {item}LL;",
        f"const int {CHUNKS} = (int)((bytes + {size - 1}) / {size});",
        f"const unsigned segments = ({CHUNKS} + {shape.segment - 1}) / {shape.segment};",
        "const unsigned block_rows = block / segments, segment = block % segments;",
        f"const int {FIRST} = {shape.first('segment')};",
        f"const unsigned row = {shape.row('block_rows')};",
        f"const int {ROWS} = (int)({rows} - {shape.first_row('block_rows')});",
    ]
    lines += ["unsigned rest = row;", "long long start = 0;"]
    for axis in axes:
        extent, step = f"extent_{at}_{axis}", f"step_{at}_{axis}"
        lines.append(f"start += (long long)(rest % {extent}) * {step}, rest /= {extent};")
    lines += [
        f"unsigned long long begin = (unsigned long long)from_{at} + start * {item};",
        f"unsigned long long base = begin & ~{size - 1}ULL;",
        "const unsigned long long end = begin + bytes;",
        f"const unsigned shift = begin % {size};",
        f"const int {LAST} = (int)((shift + bytes - 1) / {size});",
        f"const long long pitch = (length_{at} + {line - 1}LL) / {line} * {line_bytes()};",
        f"unsigned char* to = to_{at} + row * pitch;",
    ]
    for one in own.leaves:
        lines += render(plan, one, 0)
    lines.append("// The loops, generated by isl from the schedule tree.")
    return lines + loops(own.place.loops, {}, 0)


def _tensor(at: int, tensor: Tensor) -> dict[str, Any]:
    outer, row = tensor.order[:-1], tensor.order[-1]
    length, size = size_name(tensor.dims[row]), tensor.dtype.bytes
    line = line_bytes() // size
    rows = " * ".join(["1LL", *(size_name(tensor.dims[axis]) for axis in outer)])
    pairs = [(size_name(tensor.dims[a]), given_step(tensor, a)) for a in reversed(outer)]
    start = f"copies + end_{at - 1}" if at else "copies"
    values = (f"blocks_{at}", length, *(value for pair in pairs for value in pair))
    return {
        "bytes": size,
        "line": line,
        "before": f"end_{at - 1} + " if at else "",
        "line_less_1": line - 1,
        "length": length,
        "rows": rows,
        "arguments": ", ".join((f"(const unsigned char*){c_name(tensor.name)}", start, *values)),
        "room": f"{rows} * (({length} + {line - 1}LL) / {line}) * {line_bytes()}",
        "refusals": [
            *(f"{size_name(dim)} < 1" for dim in tensor.dims if isinstance(dim, str)),
            *(f"{given_step(tensor, axis)} < 0" for axis in outer if tensor.dims[axis] != 1),
            f"(unsigned long long){c_name(tensor.name)} % {size}",
        ],
    }


def _passed(plan: KernelPlan, found: Realign) -> list[str]:
    """The arguments of the launcher that the copies are given to."""
    names, values = found.names, []
    for argument in arguments(plan.program):
        name = c_name(argument.name)
        if argument.tensor in names and argument.kind in ("pointer", "stride"):
            at = names.index(argument.tensor)
            tensor = found.tensors[at]
            if argument.kind == "pointer":
                start = f" + end_{at - 1}" if at else ""
                name = f"(const {c_type(tensor.dtype)}*)(copies{start})"
            else:
                name = f"(int)({_steps(at, tensor, argument.axis)})"
        values.append(name)
    return values


def _steps(at: int, tensor: Tensor, axis: int) -> str:
    """Elements per step along an axis of a copy, in 64 bits."""
    faster = tensor.order[tensor.order.index(axis) + 1 : -1]
    extents = "".join(f" * {size_name(tensor.dims[one])}" for one in faster)
    return f"pitch_{at}{extents}"
