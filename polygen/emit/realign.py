"""The copy before a kernel, as records for its template and for the host launcher."""

from __future__ import annotations

from typing import Any

from polygen.emit.conditions import given_step
from polygen.emit.leaves import c_type, size_name
from polygen.emit.names import c_name
from polygen.frontend.program import Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.build import arguments
from polygen.lower.plan import KernelPlan
from polygen.schedule.realign import ROUNDS, TOGETHER, WARPS, Realign, line_bytes, segment_chunks


def copy(plan: KernelPlan) -> dict[str, Any] | None:
    """What ``realign.cu.j2`` and the launcher need; None: nothing is copied."""
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
        "lanes": plan.device.warp_size,
        "warps": WARPS,
        "warps_less_1": WARPS - 1,
        "threads": found.threads,
        "together": TOGETHER,
        "rounds": ROUNDS,
        "chunks": segment_chunks(),
        "round_chunks": segment_chunks() // ROUNDS,
        "segment": segment,
        "segment_less_1": segment - 1,
        "line": line_bytes(),
        "all_blocks": " + ".join(f"blocks_{at}" for at in range(len(tensors))),
        "sources": ", ".join(
            f'"+l"({side}_{at})' for at in range(len(tensors)) for side in ("from", "to")
        ),
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


def _tensor(at: int, tensor: Tensor) -> dict[str, Any]:
    outer, row = tensor.order[:-1], tensor.order[-1]
    length, size = size_name(tensor.dims[row]), tensor.dtype.bytes
    line = line_bytes() // size
    rows = " * ".join(["1LL", *(size_name(tensor.dims[axis]) for axis in outer)])
    pairs = [(size_name(tensor.dims[a]), given_step(tensor, a)) for a in reversed(outer)]
    start = f"copies + end_{at - 1}" if at else "copies"
    values = (f"blocks_{at}", length, *(value for pair in pairs for value in pair))
    axes = range(len(outer))
    return {
        "bytes": size,
        "line": line,
        "before": f"end_{at - 1} + " if at else "",
        "line_less_1": line - 1,
        "length": length,
        "rows": rows,
        "axes": list(axes),
        "parameters": ", ".join(
            (
                f"const unsigned char* __restrict__ from_{at}",
                f"unsigned char* __restrict__ to_{at}",
                f"unsigned blocks_{at}",
                f"int length_{at}",
                *(f"int extent_{at}_{axis}, int step_{at}_{axis}" for axis in axes),
            )
        ),
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
