# ruff: noqa: E501 - CUDA text
"""A kernel with no pointers: it copies x to y box by box, through two tensor maps of any rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matrix import case, small

from polygen.emit.conditions import conditions
from polygen.emit.environment import environment
from polygen.emit.launcher import launcher, plan_conditions
from polygen.emit.source import Argument, KernelSource, Launch, MapAxis
from polygen.frontend.dtypes import NAMED
from polygen.frontend.program import Program, Tensor
from polygen.lower.build import arguments
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Copy

ARCH = "sm_90a"
ROWS = 8  # rows of a box
SPAN = 128  # bytes of a row of a box, and of its swizzle
OUTER = ((), (ROWS,), (2, 4), (2, 1, 4), (2, 1, 2, 2))  # of a box, by how many axes there are
DIMS = ("D", "C", "B", "M", "N")

_TEXT = """\
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void ENTRY(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_mapSIZES) {
  __shared__ __align__(1024) unsigned char box[BYTES];
  __shared__ __align__(8) unsigned long long barrier[1];
  const unsigned at = (unsigned)__cvta_generic_to_shared(box), full = (unsigned)__cvta_generic_to_shared(barrier);
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const int blocks = gridDim.x * gridDim.y * gridDim.z;
  unsigned parity = 0;
  for (int t = blockIdx.x + (blockIdx.y + blockIdx.z * gridDim.y) * gridDim.x; t < TILES; t += blocks, parity ^= 1) {
    int rest = t;
POSITIONS
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(full), "r"(BYTES) : "memory");
    asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {PLACES}], [%2];"
                 :: "r"(at), "l"(&x_map), "r"(full), CORNER : "memory");
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" :: "r"(full), "r"(parity) : "memory");
    asm volatile("cp.async.bulk.tensor.RANKd.global.shared::cta.tile.bulk_group [%1, {PLACES}], [%0];"
                 :: "r"(at), "l"(&y_map), "r"(0), CORNER : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""

# A name; shape of x, its map, what that shows of it; the same of y, where the copy goes.
WINDOWS = [
    (
        "rows of every second matrix into a larger one",
        (7, 20, 72), (MapAxis(0, 3, 2, 1, 2), MapAxis(1, 20, 4), MapAxis(2, 72, 64)),
        lambda x: x[1:6:2],
        (3, 50, 136), (MapAxis(0, 3, 2), MapAxis(1, 20, 4, 5, 2), MapAxis(2, 72, 64, 16)),
        lambda y: y[:, 5:44:2, 16:88],
    ),
    (
        "one matrix of a stack into a stack stored otherwise",
        (4, 9, 64), (MapAxis(0, 1, 2, 3), MapAxis(1, 9, 4), MapAxis(2, 64, 64)),
        lambda x: x[3:],
        (9, 5, 64), (MapAxis(1, 1, 2, 2), MapAxis(0, 9, 4), MapAxis(2, 64, 64)),
        lambda y: y[:, 2:3].transpose(1, 0, 2),
    ),
    (  # the box of the array's end lies outside of y
        "every second row of a box",
        (2, 9, 72), (MapAxis(0, 2, 1), MapAxis(1, 9, 5, every=2), MapAxis(2, 72, 64)),
        lambda x: x[:, ::2],
        (2, 5, 72), (MapAxis(0, 2, 1), MapAxis(1, 5, 5), MapAxis(2, 72, 64)),
        lambda y: y,
    ),
    (
        "a vector into a row",
        (100,), (MapAxis(None, 1, 8), MapAxis(0, 88, 64, 8)), lambda x: x[None, 8:96],
        (3, 88), (MapAxis(0, 1, 8, 1), MapAxis(1, 88, 64)), lambda y: y[1:2],
    ),
]  # fmt: skip


def box(dtype: str, rank: int = 2) -> tuple[int, ...]:
    """The box along the stored axes, outermost first."""
    return (*OUTER[rank - 1], SPAN // NAMED[dtype].bytes)


def tile(dtype: str, order: tuple[int, ...]) -> tuple[int, ...]:
    """Elements along each axis of the array that one box holds."""
    stored = box(dtype, len(order))
    return tuple(stored[order.index(axis)] for axis in range(len(order)))


def stored_axes(tensor: Tensor) -> tuple[MapAxis, ...]:
    """A map of the whole tensor."""
    sides = box(tensor.dtype.name, len(tensor.order))
    pairs = zip(tensor.order, sides, strict=True)
    return tuple(MapAxis(axis, tensor.dims[axis], side) for axis, side in pairs)


def text_of(axes: Sequence[MapAxis], dtype: str, sizes: Sequence[str], entry: str) -> str:
    """The kernel for two maps of these extents and boxes.

    Args:
        axes: of either map.
        dtype: of the elements.
        sizes: the parameters.
        entry: its name.
    """
    rank, counts = len(axes), []
    positions = []
    for number, axis in enumerate(reversed(axes)):
        counts.append(f"(({axis.extent} + {axis.box - 1}) / {axis.box})")
        positions.append(
            f"    const int c{number} = rest % {counts[-1]} * {axis.box}; rest /= {counts[-1]};"
        )
    words = {
        "ENTRY": entry,
        "SIZES": "".join(f", int {size}" for size in sizes),
        "BYTES": str(math.prod(axis.box for axis in axes) * NAMED[dtype].bytes),
        "TILES": " * ".join(counts),
        "POSITIONS": "\n".join(positions),
        "RANK": str(rank),
        "PLACES": ", ".join(f"%{3 + number}" for number in range(rank)),
        "CORNER": ", ".join(f'"r"(c{number})' for number in range(rank)),
    }
    found = _TEXT
    for word, value in words.items():
        found = found.replace(word, value)
    return found


def text(dtype: str, entry: str = "copy_boxes") -> str:
    """The kernel for matrices."""
    x = program(dtype).inputs[0]
    return text_of(stored_axes(x), dtype, x.dims, entry)


def program(dtype: str, order: tuple[int, ...] = (0, 1)) -> Program:
    """Input and output of the copy, y = x; no statements."""
    dims = DIMS[-len(order) :]
    x, y = (Tensor(name, NAMED[dtype], dims, order) for name in "xy")
    return Program("copy", "x", (x,), (y,), ())


def source(dtype: str, order: tuple[int, ...] = (0, 1), persistent: int = 0) -> KernelSource:
    """The kernel as the emitter would hand it over."""
    made = program(dtype, order)
    (x,), (y,) = made.inputs, made.outputs
    return copy_of(made, stored_axes(x), stored_axes(y), persistent)


def copy_of(
    made: Program, x_axes: tuple[MapAxis, ...], y_axes: tuple[MapAxis, ...], persistent: int = 0
) -> KernelSource:
    """The kernel that copies what one map shows of x to what another shows of y."""
    (y,) = made.outputs
    outer = () if len(y_axes) > 1 else (1,)  # of a vector, the one row
    *batches, along, across = (*outer, *(axis.extent for axis in y_axes))
    *_, rows, columns = (*outer, *(axis.box for axis in y_axes))
    launch = Launch(along, across, rows, columns, 1, 32, 0, persistent, batches=tuple(batches))
    return KernelSource(
        entry="copy_boxes",
        text=text_of(y_axes, y.dtype.name, made.sizes, "copy_boxes"),
        header="",
        arch=ARCH,
        arguments=(
            Argument("x_map", "map", "x", axes=x_axes, swizzle=SPAN),
            Argument("y_map", "map", "y", axes=y_axes, swizzle=SPAN),
            *(Argument(size, "size", dim=size) for size in made.sizes),
        ),
        launch=launch,
        conditions=conditions(made, (), launch),
    )


def plan_with_maps(persistent: int = 0, cluster: tuple[int, int] = (1, 1)) -> KernelPlan:
    """A plan whose kernel copies x to y0 through maps, and takes no pointers."""
    plan = case("maps", "nn", "bf16", "plain", schedule=small()).kernel().passes.plan
    tensors = plan.program.tensors
    rows, columns = tile("bf16", (0, 1))
    return replace(
        plan,
        arguments=(
            Argument("x_map", "map", "x", axes=stored_axes(tensors["x"]), swizzle=SPAN),
            Argument("y0_map", "map", "y0", axes=stored_axes(tensors["y0"]), swizzle=SPAN),
            *(a for a in plan.arguments if a.name in ("M", "K")),
        ),
        launch=replace(
            plan.launch, along="M", across="K", tile_along=rows, tile_across=columns, group=1,
            shared_bytes=0, persistent=persistent, cluster=cluster,
        ),
    )  # fmt: skip


def plan_of(
    made: Program, maps: Sequence[Argument], launch: Launch, *, pointers: bool = True
) -> KernelPlan:
    """A plan with this program's parameters and launch, whose blocks copy rows of its operands."""
    plan = case("maps", "nn", "bf16", "plain", schedule=small()).kernel().passes.plan
    parameters = arguments(made, tuple(maps))
    if not pointers:
        parameters = tuple(a for a in parameters if a.kind in ("map", "size"))
    leaves = tuple(
        replace(leaf, work=_copy_of(leaf.work, made.tensors[leaf.work.tensor.name]))
        for leaf in plan.leaves
        if isinstance(leaf.work, Copy) and leaf.work.tensor.name in made.tensors
    )
    return replace(
        plan, entry=f"pg_{made.name}", program=made, arguments=parameters, launch=launch,
        leaves=leaves,
    )  # fmt: skip


def _copy_of(copy: Copy, tensor: Tensor) -> Copy:
    """The same of the rows of another array."""
    rows = (copy.extents[0], tensor.dims[tensor.order[-1]])
    return replace(
        copy, tensor=tensor, extents=rows, ragged=tensor.ends_anywhere,
        width=tensor.alignment, element_bytes=tensor.dtype.bytes,
    )  # fmt: skip


def source_of(plan: KernelPlan) -> KernelSource:
    """The launcher and the header of a plan, as of a kernel."""
    record = {**launcher(plan), "header": []}
    return KernelSource(
        entry=plan.entry,
        text=host_text(plan),
        header=environment().get_template("header.h.j2").render(record),
        arch=plan.device.compile_target,
        arguments=plan.arguments,
        launch=plan.launch,
        conditions=plan_conditions(plan),
    )


def host_text(plan: KernelPlan) -> str:
    """The launcher alone."""
    return environment().get_template("launcher.cu.j2").render(launcher(plan))
