# ruff: noqa: E501 - CUDA text
"""A kernel with no pointers: it copies x to y box by box, through two tensor maps."""

from __future__ import annotations

from dataclasses import replace

from matrix import case, small

from polygen.emit.conditions import conditions
from polygen.emit.cuda import environment
from polygen.emit.launcher import launcher
from polygen.emit.source import Argument, KernelSource, Launch
from polygen.frontend.dtypes import NAMED
from polygen.frontend.program import Program, Tensor
from polygen.lower.plan import KernelPlan

ARCH = "sm_90a"
ROWS = 8  # rows of a box
SPAN = 128  # bytes of a row of a box, and of its swizzle

_TEXT = """\
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void ENTRY(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map, int rows, int columns) {
  __shared__ __align__(1024) unsigned char box[ROWS * SPAN];
  __shared__ __align__(8) unsigned long long barrier[1];
  const unsigned at = (unsigned)__cvta_generic_to_shared(box), full = (unsigned)__cvta_generic_to_shared(barrier);
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const int tiles_across = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS * tiles_across;
  unsigned parity = 0;
  for (int t = blockIdx.x + blockIdx.y * gridDim.x; t < tiles; t += gridDim.x * gridDim.y, parity ^= 1) {
    const int row = t / tiles_across * TILE_ROWS, column = t % tiles_across * TILE_COLUMNS;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(full), "r"(ROWS * SPAN) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(at), "l"(&x_map), "r"(full), "r"(INNER), "r"(OUTER) : "memory");
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" :: "r"(full), "r"(parity) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];"
                 :: "r"(at), "l"(&y_map), "r"(INNER), "r"(OUTER) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""


def tile(dtype: str, order: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the array that one box holds."""
    stored = (ROWS, SPAN // NAMED[dtype].bytes)
    return (stored[order[0]], stored[order[1]])


def text(dtype: str, order: tuple[int, int] = (0, 1), entry: str = "copy_boxes") -> str:
    """The kernel for arrays in this storage order."""
    rows, columns = tile(dtype, order)
    words = {"ENTRY": entry, "TILE_ROWS": rows, "TILE_COLUMNS": columns, "ROWS": ROWS, "SPAN": SPAN}
    words |= {"INNER": ("row", "column")[order[1]], "OUTER": ("row", "column")[order[0]]}
    found = _TEXT
    for word, value in words.items():
        found = found.replace(word, str(value))
    return found


def box(dtype: str) -> tuple[int, int]:
    """The box along the stored axes, outer first."""
    return (ROWS, SPAN // NAMED[dtype].bytes)


def program(dtype: str, order: tuple[int, int] = (0, 1)) -> Program:
    """Input and output of the copy, y = x; no statements."""
    x, y = (Tensor(name, NAMED[dtype], ("M", "N"), order) for name in "xy")
    return Program("copy", "x", (x,), (y,), ())


def source(dtype: str, order: tuple[int, int] = (0, 1), persistent: int = 0) -> KernelSource:
    """The kernel as the emitter would hand it over."""
    rows, columns = tile(dtype, order)
    launch = Launch("M", "N", rows, columns, 1, 32, 0, persistent)
    return KernelSource(
        entry="copy_boxes",
        text=text(dtype, order),
        header="",
        arch=ARCH,
        arguments=(
            Argument("x_map", "map", "x", box=box(dtype), swizzle=SPAN),
            Argument("y_map", "map", "y", box=box(dtype), swizzle=SPAN),
            Argument("M", "size", dim="M"),
            Argument("N", "size", dim="N"),
        ),
        launch=launch,
        conditions=conditions(program(dtype, order), (), launch),
    )


def plan_with_maps(persistent: int = 0, cluster: tuple[int, int] = (1, 1)) -> KernelPlan:
    """A plan whose kernel copies x to y0 through maps, and takes no pointers."""
    plan = case("maps", "nn", "bf16", "plain", schedule=small()).kernel().passes.plan
    boxes = {"box": box("bf16"), "swizzle": SPAN}
    rows, columns = tile("bf16", (0, 1))
    return replace(
        plan,
        arguments=(
            Argument("x_map", "map", "x", **boxes),
            Argument("y0_map", "map", "y0", **boxes),
            *(a for a in plan.arguments if a.name in ("M", "K")),
        ),
        launch=replace(
            plan.launch, along="M", across="K", tile_along=rows, tile_across=columns, group=1,
            shared_bytes=0, persistent=persistent, cluster=cluster,
        ),
    )  # fmt: skip


def host_text(plan: KernelPlan) -> str:
    """The launcher alone."""
    return environment().get_template("launcher.cu.j2").render(launcher(plan))
