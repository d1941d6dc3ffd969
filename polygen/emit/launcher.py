"""The host launcher's records: parameters, checks, the grid, and the tensor maps it encodes.

The launcher takes what a caller has: pointers and scalars, sizes, strides. Tensor maps are no
parameters of it; it encodes them from the others, and passes them in the kernel's order. What it
refuses is what `polygen.emit.conditions` lists, as for calls from Python.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.conditions import (
    Condition,
    conditions,
    given_step,
    matrices,
    refusals,
    rounded_up,
    rounds,
    work_items,
)
from polygen.emit.following import following
from polygen.emit.leaves import parameter
from polygen.emit.names import c_name, c_size
from polygen.emit.realign import copy
from polygen.emit.row_places import kept_of_maps
from polygen.errors import VerifyError
from polygen.frontend.indices import named_in
from polygen.frontend.program import Tensor
from polygen.hardware.device import common_facts
from polygen.lower.build import arguments
from polygen.lower.launch import KEPT_ALIGNMENT, stride_argument
from polygen.lower.plan import Argument, KernelPlan, Launch, MapAxis
from polygen.lower.row_ends import check_row_ends, whole_rows

# cuda.h's names for element types; fp8 travels as bytes.
_MAP_TYPES = {
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "tf32": "TFLOAT32",
    "e4m3": "UINT8",
    "e5m2": "UINT8",
    "s8": "UINT8",
    "u8": "UINT8",
    "bool": "UINT8",
    "s32": "INT32",
}


def launcher(plan: KernelPlan) -> dict[str, Any]:
    """Everything that ``launcher.cu.j2`` needs."""
    launch = plan.launch
    maps = [_tensor_map(plan, argument) for argument in plan.arguments if argument.kind == "map"]
    # A kernel with maps may leave out a pointer or a stride that the maps are made of.
    host = arguments(plan.program, workspace=plan.following is not None) if maps else plan.arguments
    return {
        "entry": plan.entry,
        "threads": launch.threads,
        "shared_bytes": launch.shared_bytes,
        "group": launch.group,
        "tile_along": launch.tile_along,
        "tile_across": launch.tile_across,
        "extent_along": c_size(launch.along),
        "extent_across": c_size(launch.across),
        "rounded_along": rounded_up(launch, "along", launch.tile_along, ""),
        "rounded_across": rounded_up(launch, "across", launch.tile_across, ""),
        "wide_along": rounded_up(launch, "along", launch.tile_along),
        "wide_across": rounded_up(launch, "across", launch.tile_across),
        "persistent": _persistent(launch),
        "dependent": launch.dependent,
        "realign": copy(plan),
        "work_items": work_items(launch),
        "matrices": matrices(launch) if launch.batches else "",
        "rounds": rounds(launch) if launch.layers else "",
        "layers": launch.layers,
        "host_parameters": ", ".join(parameter(plan, argument) for argument in host),
        "host_arguments": ", ".join(_passed(plan, argument) for argument in plan.arguments),
        "host_refusals": refusals(plan_conditions(plan), launch, plan.program.tensors),
        "host_kept": kept_of_maps(plan),
        "host_maps": maps,
        "maps_leave_out": any(axis["every"] > 1 for one in maps for axis in one["axes"]),
        "following": following(plan),
        "map_step_bytes": common_facts()["tensor_map_row_bytes"],
        "map_step_less_1": common_facts()["tensor_map_row_bytes"] - 1,
        "map_step_most": common_facts()["tensor_map_step_most"],
        "grid_parameters": _grid_parameters(launch),
        "parameter_comments": [_comment(plan, argument) for argument in plan.arguments],
    }


def plan_conditions(plan: KernelPlan) -> tuple[Condition, ...]:
    """What the arguments of a plan's launches must satisfy.

    Raises:
        VerifyError: rows that do end where a leaf moves another part of them.
    """
    covered = dict.fromkeys((one.match.n, one.tiles.row) for one in plan.each if one.folds_rows)
    return checked(plan, conditions(plan.program, whole_rows(plan), plan.launch, tuple(covered)))


def checked(plan: KernelPlan, found: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """The conditions, if they are what the plan's leaves rely on.

    Accesses are as wide as arrays are aligned (`polygen.lower.verify_accesses`), and so addresses
    and steps have to be.

    Raises:
        VerifyError: arrays may be less aligned than the program says, or a leaf moves more of a
            row, or less, than launches have.
    """
    multiples = {(one.kind, one.tensor, one.axis): one.multiple for one in found}
    for tensor in (*plan.program.inputs, *plan.program.outputs):
        axes = [axis for axis in tensor.order[:-1] if tensor.dims[axis] != 1]
        asked = [("step", axis, tensor.dtype.bytes) for axis in axes]
        if tensor.dims:
            asked.append(("address", 0, 1))
        for kind, axis, size in asked:
            if multiples.get((kind, tensor.name, axis), 1) * size % tensor.alignment:
                raise VerifyError(
                    f"{tensor.name}: nothing asks for {kind}s of {tensor.alignment} bytes",
                    where=plan.entry,
                    why="leaves access as many at once",
                )
    check_row_ends(plan, {one.tensor: one.multiple for one in found if one.kind == "row"})
    return found


def _grid_parameters(launch: Launch) -> str:
    own = ((one.along, one.across, *one.batches) for one in launch.sections)
    wanted = (*(dim for extents in own for dim in extents), launch.groups)
    dims = dict.fromkeys(name for dim in wanted for name in named_in(dim))
    resident = ["unsigned resident"] if launch.persistent else []
    blocks = f"unsigned grid[{3 if launch.batches else 2}]"
    return ", ".join([*(f"int {c_size(dim)}" for dim in dims), *resident, blocks])


def _comment(plan: KernelPlan, argument: Argument) -> str:
    """One parameter of the kernel, for those who launch the cubin."""
    tensor = _described(plan).get(argument.tensor)
    what = {
        "size": "int",
        "scalar": "float",
        "pointer": f"address of {tensor}",
        "stride": f"int, elements from one index of axis {argument.axis} of {argument.tensor} to "
        "the next; 0 where there is one index",
        "workspace": f"address of room for parts of folds, {plan.program.real}, written and read "
        "by both launches",
        "map": f"128 bytes by value, the tensor map of {tensor}: boxes of "
        f"{' x '.join(map(str, argument.box))} elements along {_axes(argument, tensor)}, swizzle "
        f"{argument.swizzle} bytes{_kept_at(plan, argument)}",
    }
    return f"{c_name(argument.name)}: {what[argument.kind]}"


def _passed(plan: KernelPlan, argument: Argument) -> str:
    name = c_name(argument.name)
    if argument.kind == "stride":
        return given_step(plan.program.tensors[argument.tensor], argument.axis)
    return f"*reinterpret_cast<const TensorMap*>(&{name})" if argument.kind == "map" else name


def _kept_at(plan: KernelPlan, argument: Argument) -> str:
    """Where a matrix lies that is a part of the workspace, as more words on its map."""
    names = [one.name for one in plan.following.kept] if plan.following else []
    if argument.tensor not in names:
        return ""
    before = names[: names.index(argument.tensor)]
    place = f"behind {' and '.join(before)}" if before else "at the beginning of the workspace"
    return f"; it lies {place}, with rows of whole {KEPT_ALIGNMENT} bytes"


def _described(plan: KernelPlan) -> dict[str, Tensor]:
    """What arguments may be of: the program's tensors, and matrices kept in the workspace."""
    kept = plan.following.kept if plan.following else ()
    return plan.program.tensors | {one.name: one.tensor for one in kept}


def _axes(argument: Argument, tensor: Tensor | None) -> str:
    """The axes of a map in words."""
    if tensor is None or argument.axes == tuple(
        MapAxis(axis, tensor.dims[axis], side)
        for axis, side in zip(tensor.order, argument.box, strict=False)
    ):
        return "the stored axes"
    return f"({'; '.join(map(str, argument.axes))})"


def _tensor_map(plan: KernelPlan, argument: Argument) -> dict[str, Any]:
    """What the launcher says of a tensor to the driver: its axes, innermost first."""
    tensor, most = _described(plan)[argument.tensor], common_facts()["tensor_map_axes_most"]
    if not 1 <= len(argument.axes) <= most or argument.axes[-1].step != 1:
        raise VerifyError(
            f"{argument.name}: no tensor map has the axes ({'; '.join(map(str, argument.axes))})",
            where="emit",
            nearest=f"1 to {most} axes, whose innermost has step 1",
        )
    axes = argument.axes[::-1]
    starts = [_elements(tensor, axis.axis, axis.start) for axis in axes if axis.start]
    swizzle = f"{argument.swizzle}B" if argument.swizzle else "NONE"
    return {
        "name": c_name(argument.name),
        "type": f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[tensor.dtype.name]}",
        "element_bytes": tensor.dtype.bytes,
        "tensor": " + ".join([c_name(tensor.name), *starts]),
        "axes": [
            {
                "size": c_size(axis.extent),
                "step": _elements(tensor, axis.axis, axis.step),
                "box": axis.box * axis.every,
                "every": axis.every,
            }
            for axis in axes
        ],
        "swizzle": f"CU_TENSOR_MAP_SWIZZLE_{swizzle}",
    }


def _elements(tensor: Tensor, axis: int | None, count: int) -> str:
    """The elements that lie between an index of an axis and the `count`-th behind it."""
    if axis is None or axis == tensor.order[-1]:
        return str(count)
    step = c_name(stride_argument(tensor, axis))
    return step if count == 1 else f"{count}LL * {step}"


def _persistent(launch: Launch) -> dict[str, Any]:
    """Blocks of a cluster, and the extent of its tiles; or nothing."""
    if not launch.persistent:
        return {}
    along = launch.tile_along * launch.cluster[0]
    across = launch.tile_across * launch.cluster[1]
    return {
        "blocks": launch.blocks,
        "per_multiprocessor": launch.per_multiprocessor,
        "tile_along": along,
        "tile_across": across,
        "rounded_along": rounded_up(launch, "along", along, ""),
        "rounded_across": rounded_up(launch, "across", across, ""),
        "all": work_items(launch) if launch.further else "",
    }
