"""The host launcher's records: parameters, checks, the grid, and the tensor maps it encodes.

The launcher takes what a caller has: pointers and scalars, sizes, strides. Tensor maps are no
parameters of it; it encodes them from the others, and passes them in the kernel's order. What it
refuses is what `polygen.emit.conditions` lists, as for calls from Python.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.conditions import Condition, conditions, given_step, refusals
from polygen.emit.leaves import c_type
from polygen.emit.names import c_name
from polygen.frontend.program import Dim
from polygen.lower.build import arguments
from polygen.lower.epilogue import stride_argument
from polygen.lower.plan import Argument, KernelPlan, Launch

# cuda.h's names for element types; fp8 travels as bytes.
_MAP_TYPES = {
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "tf32": "TFLOAT32",
    "e4m3": "UINT8",
    "e5m2": "UINT8",
    "s8": "UINT8",
}


def launcher(plan: KernelPlan) -> dict[str, Any]:
    """Everything that ``launcher.cu.j2`` needs."""
    launch = plan.launch
    maps = [_tensor_map(plan, argument) for argument in plan.arguments if argument.kind == "map"]
    # A kernel with maps may leave out a pointer or a stride that the maps are made of.
    host = arguments(plan.program) if maps else plan.arguments
    return {
        "entry": plan.entry,
        "threads": launch.threads,
        "shared_bytes": launch.shared_bytes,
        "group": launch.group,
        "tile_along": launch.tile_along,
        "tile_across": launch.tile_across,
        "extent_along": _size(launch.along),
        "extent_across": _size(launch.across),
        "persistent": _persistent(launch),
        "host_parameters": ", ".join(parameter(plan, argument) for argument in host),
        "host_arguments": ", ".join(_passed(plan, argument) for argument in plan.arguments),
        "host_refusals": refusals(plan_conditions(plan), launch, plan.program.tensors),
        "host_maps": maps,
        "grid_parameters": _grid_parameters(launch),
        "parameter_comments": [_comment(plan, argument) for argument in plan.arguments],
    }


def plan_conditions(plan: KernelPlan) -> tuple[Condition, ...]:
    """What the arguments of a plan's launches must satisfy."""
    whole = [c.tensor.name for c in plan.copies if c.asynchronous and not c.ragged]
    return conditions(plan.program, whole, plan.launch)


def parameter(plan: KernelPlan, argument: Argument) -> str:
    """The declaration of a parameter, of the kernel or of the launcher."""
    name = c_name(argument.name)
    if argument.kind in ("size", "stride"):
        return f"int {name}"
    if argument.kind == "scalar":
        return f"float {name}"
    if argument.kind == "map":
        return f"const __grid_constant__ TensorMap {name}"
    tensor = plan.program.tensors[argument.tensor]
    constant = "" if tensor in plan.program.outputs else "const "
    return f"{constant}{c_type(tensor.dtype)}* __restrict__ {name}"


def _grid_parameters(launch: Launch) -> str:
    dims = dict.fromkeys(d for d in (launch.along, launch.across) if isinstance(d, str))
    resident = ["unsigned resident"] if launch.persistent else []
    return ", ".join([*(f"int {_size(dim)}" for dim in dims), *resident, "unsigned grid[2]"])


def _comment(plan: KernelPlan, argument: Argument) -> str:
    """One parameter of the kernel, for those who launch the cubin."""
    tensor = plan.program.tensors.get(argument.tensor)
    what = {
        "size": "int",
        "scalar": "float",
        "pointer": f"address of {tensor}",
        "stride": f"int, elements from one index of axis {argument.axis} of {argument.tensor} to "
        "the next; 0 where there is one index",
        "map": f"128 bytes by value, the tensor map of {tensor}: boxes of "
        f"{argument.box[0]} x {argument.box[1]} elements along the stored axes, swizzle "
        f"{argument.swizzle} bytes",
    }
    return f"{c_name(argument.name)}: {what[argument.kind]}"


def _size(dim: Dim) -> str:
    return c_name(str(dim))


def _passed(plan: KernelPlan, argument: Argument) -> str:
    name = c_name(argument.name)
    if argument.kind == "stride":
        return given_step(plan.program.tensors[argument.tensor], argument.axis)
    return f"*reinterpret_cast<const TensorMap*>(&{name})" if argument.kind == "map" else name


def _tensor_map(plan: KernelPlan, argument: Argument) -> dict[str, Any]:
    tensor = plan.program.tensors[argument.tensor]
    outer, inner = tensor.order
    swizzle = f"{argument.swizzle}B" if argument.swizzle else "NONE"
    return {
        "name": c_name(argument.name),
        "type": f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[tensor.dtype.name]}",
        "element_bytes": tensor.dtype.bytes,
        "tensor": c_name(tensor.name),
        "inner": _size(tensor.dims[inner]),
        "outer": _size(tensor.dims[outer]),
        "stride": c_name(stride_argument(tensor, outer)),
        "box_inner": argument.box[1],
        "box_outer": argument.box[0],
        "swizzle": f"CU_TENSOR_MAP_SWIZZLE_{swizzle}",
    }


def _persistent(launch: Launch) -> dict[str, int]:
    """Blocks of a cluster, and the extent of its tiles; or nothing."""
    if not launch.persistent:
        return {}
    blocks = launch.cluster[0] * launch.cluster[1]
    return {
        "blocks": blocks,
        "tile_along": launch.tile_along * launch.cluster[0],
        "tile_across": launch.tile_across * launch.cluster[1],
    }
