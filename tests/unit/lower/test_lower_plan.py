"""Plans: how operands are copied and loaded, how the epilogue reads, where buffers lie."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matrix import EPILOGUES, LAYOUTS, UNUSUAL, case, pipeline, small, tiled

from polygen.api import fuse
from polygen.frontend.parse import parse_expression
from polygen.hardware.atom import atom, atom_names
from polygen.hardware.device import device
from polygen.lower.lanes import closed_form
from polygen.lower.plan import Launch
from polygen.lower.resources import registers_available
from polygen.lower.verify import calls, leaves_of
from polygen.lower.work import Copy
from polygen.schedule.model import Epilogue, Raster

PLANS_MADE = {}  # many tests look at the same plans, each at something else


def plan_of(layout="nt", dtype="bf16", epilogue="plain", alignment=16, **changes):
    given = (layout, dtype, epilogue, alignment)
    changes = {"schedule": small(), **changes}
    key = repr((given, changes))
    if key not in PLANS_MADE:
        PLANS_MADE[key] = case("plan", *given, **changes).kernel().passes.plan
    return PLANS_MADE[key]


# --- copies --------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_copied_along_their_contiguous_axis(layout):
    plan = plan_of(layout)
    by_operand = {copy.operand: copy for copy in plan.of(Copy)}
    assert by_operand["a"].k_contiguous == (layout[0] == "n")
    assert by_operand["b"].k_contiguous == (layout[1] == "t")
    for copy in plan.of(Copy):
        assert copy.rows * copy.columns == 32 * 32
        assert copy.buffer == f"ring_{copy.operand}"


@pytest.mark.parametrize(
    ("alignment", "width", "asynchronous"),
    [(16, 16, True), (8, 8, True), (4, 4, True), (2, 2, False)],
)
def test_copies_are_as_wide_as_the_alignment_allows(alignment, width, asynchronous):
    for copy in plan_of(alignment=alignment).of(Copy):
        assert (copy.width, copy.asynchronous) == (width, asynchronous)


def test_one_badly_aligned_operand_makes_all_copies_synchronous():
    """Both operands share the loop: its waits count groups of both."""
    built = case("mixed", "nt", "bf16", "plain", schedule=small()).fused()
    plan = built.compile("bf16[M,K]@2", "bf16[N,K]", arch="sm_80", schedule=small()).passes.plan
    assert not any(copy.asynchronous for copy in plan.of(Copy))
    assert all(placed.pending is None for placed in plan.syncs)


def test_sizes_lower_the_alignment():
    plan = plan_of(sizes=(("M", 64), ("N", 64), ("K", 100)))
    assert {copy.width for copy in plan.of(Copy)} == {8}


# --- buffers -------------------------------------------------------------------------------------
PLANS = [
    *({"layout": layout, "dtype": dtype} for layout in LAYOUTS for dtype in ("f16", "tf32")),
    {"schedule": UNUSUAL["warp_of_48x24"]},
    {"schedule": UNUSUAL["one_stage_no_distance"]},
    {"schedule": UNUSUAL["registers"]},
]


@pytest.mark.parametrize("changes", PLANS, ids=str)
def test_buffers_hold_their_tiles_and_lie_inside_the_launch(changes):
    plan = plan_of(**changes)
    for side, copy in zip("ab", plan.of(Copy), strict=True):
        ring = plan.buffer(f"ring_{side}")
        assert ring.slots == plan.schedule.pipeline.stages
        assert ring.slot_bytes == copy.rows * copy.columns * copy.element_bytes
    rings = sorted((plan.buffer("ring_a"), plan.buffer("ring_b")), key=lambda b: b.offset)
    assert rings[0].offset + rings[0].bytes <= rings[1].offset
    assert max(b.offset + b.bytes for b in plan.buffers) <= plan.launch.shared_bytes
    assert all(b.offset % 16 == 0 for b in plan.buffers)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rings_have_no_bank_conflicts_in_shipped_sizes(layout):
    plan = plan_of(layout, schedule="auto", sizes=(("M", 4096), ("N", 4096), ("K", 4096)))
    for name in ("ring_a", "ring_b"):
        counted, ideal = plan.buffer(name).rows.wavefronts
        assert counted == ideal, str(plan.buffer(name))


def test_the_wanted_swizzle_is_taken():
    for buffer in plan_of(schedule=UNUSUAL["no_swizzle"]).buffers:
        if buffer.name.startswith("ring"):
            assert str(buffer.rows.swizzle) == "none"


# --- epilogue ------------------------------------------------------------------------------------
def kinds(plan):
    return {read.tensor.name: read.kind for read in plan.epilogue.reads}


@pytest.mark.parametrize(
    ("epilogue", "wanted"),
    [
        ("bias", {"b": "vector"}),
        ("gate", {"b": "vector", "g": "vector"}),
        ("column_scale", {"c": "row"}),
        ("transposed_residual", {"r": "strided"}),
        ("column_major_residual", {"r": "strided"}),
        ("scalar", {"s": "scalar", "b": "vector"}),
    ],
)
def test_reads_follow_from_the_accesses(epilogue, wanted):
    assert kinds(plan_of(epilogue=epilogue)) == wanted


def test_an_operand_used_twice_is_read_once():
    reads = [read.tensor.name for read in plan_of(epilogue="same_twice").epilogue.reads]
    assert reads == ["r"]


def test_one_tensor_at_two_places_is_read_twice():
    both = fuse(parse_expression("x @ w + r + r.T", ("x", "w", "r")), name="both")
    plan = both.compile("f16[M,K]", "f16[K,M]", "f16[M,M]", arch="sm_80", schedule=small())
    found = [(r.tensor.name, r.kind) for r in plan.passes.plan.epilogue.reads]
    assert sorted(found) == [("r", "strided"), ("r", "vector")]


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_every_value_is_computed_before_it_is_used(epilogue):
    work = plan_of(epilogue=epilogue).epilogue
    known = {*dict(work.sums), *(read.name for read in work.reads)}
    for statement in work.statements:
        assert {a for a in statement.args if isinstance(a, str)} <= known, statement
        known.add(statement.result)
    assert {write.tensor.name for write in work.writes} <= known


def test_wide_outputs_halve_the_vector():
    narrow = plan_of().epilogue.vector
    wide = plan_of(options={"out_dtype": "f32"}).epilogue.vector
    assert (narrow, wide) == (8, 4)
    assert plan_of(schedule=small(epilogue=Epilogue("registers"))).epilogue.vector == 2


@pytest.mark.parametrize("name", atom_names())
def test_accumulator_positions_have_a_closed_form(name):
    of = atom(name)
    table = of.c.table
    # A warpgroup's epilogue takes a quarter of the rows per warp; inside it, all are the same.
    quarters = table.reshape(-1, 32, *table.shape[1:])
    rows = np.arange(len(quarters)) * of.m // len(quarters)
    assert (quarters - quarters[0] == np.stack([rows, 0 * rows], -1)[:, None, None]).all()
    table = quarters[0]
    lane = np.arange(32)
    for column in (0, 1):
        formula = closed_form(table[:, 0, column])
        found = np.broadcast_to(eval(formula.replace("/", "//"), {"lane": lane}), lane.shape)
        assert np.array_equal(found, table[:, 0, column])
        # Every other element is at one offset, the same for all lanes.
        assert (
            table[:, :, column] - table[:, :1, column] == table[0, :, column] - table[0, 0, column]
        ).all()


# --- launch --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "n"), [(1, 1), (32, 32), (33, 31), (500, 77), (1, 1000)])
@pytest.mark.parametrize("raster", [Raster("m", 8), Raster("n", 3), Raster("m", 1)])
def test_the_grid_covers_every_tile(m, n, raster):
    launch = plan_of(schedule=small(raster=raster)).launch
    x, y, z = launch.grid({"M": m, "N": n, "K": 7})
    along, across = (m, n) if raster.along == "m" else (n, m)
    tiles = set(itertools.product(range(-(-along // 32)), range(-(-across // 32))))
    visited = {
        (raster.group * j + i % raster.group, i // raster.group)
        for i in range(x) for j in range(y)
    }  # fmt: skip
    assert tiles <= visited
    assert z == 1


def test_a_launch_of_fixed_sizes_needs_none():
    assert Launch(100, 60, 32, 32, 4, 128, 0).grid({}) == (8, 1, 1)


def test_every_matrix_has_a_grid_of_its_own():
    launch = Launch("M", "N", 32, 64, 4, 128, 0, batches=("B", 3))
    sizes = {"M": 100, "N": 65, "B": 5}
    assert launch.matrices(sizes) == 15
    assert launch.grid(sizes) == (*replace(launch, batches=()).grid(sizes)[:2], 15)


@pytest.mark.parametrize(("batches", "blocks"), [(1, 8), (2, 16), (16, 128), (17, 132), (999, 132)])
def test_persistent_blocks_share_the_tiles_of_all_matrices(batches, blocks):
    launch = Launch("M", "N", 32, 64, 4, 128, 0, 132, (2, 1), ("B",))
    sizes = {"M": 100, "N": 65, "B": batches}
    assert launch.work(sizes) == 2 * 2 * batches  # of clusters of two tiles
    assert launch.grid(sizes) == (blocks, 1, 1)
    assert launch.grid(sizes, resident=7) == (6, 1, 1)


def test_arguments_are_pointers_sizes_strides():
    plan = plan_of(epilogue="scalar")
    names = [(a.kind, a.name) for a in plan.arguments]
    assert names[:5] == [
        ("pointer", "x"), ("pointer", "w"), ("pointer", "b"), ("scalar", "s"), ("pointer", "y0"),
    ]  # fmt: skip
    assert [name for kind, name in names if kind == "size"] == ["M", "K", "N"]
    assert [name for kind, name in names if kind == "stride"] == [
        "x_stride0",
        "w_stride0",
        "y0_stride0",
    ]


def test_column_major_strides_are_of_the_other_axis():
    built = case("columns", "nt", "f16", "plain").fused()
    plan = built.compile("f16[M,K]:col", "f16[N,K]", arch="sm_80", schedule=small()).passes.plan
    assert "x_stride1" in {a.name for a in plan.arguments}


# --- resources -----------------------------------------------------------------------------------
def test_registers_grow_with_the_warp_tile():
    little = plan_of(schedule=tiled((64, 64, 32), (16, 16))).resources
    large = plan_of(schedule=tiled((64, 64, 32), (32, 64))).resources
    assert little.registers < large.registers
    assert (little.threads, large.threads) == (16 * 32, 2 * 32)


def test_more_stages_mean_fewer_blocks():
    few = plan_of(schedule=small(pipeline=pipeline(2, 1))).resources
    many = plan_of(schedule=small(pipeline=pipeline(16, 3))).resources
    assert many.shared_bytes > few.shared_bytes
    assert many.blocks_per_multiprocessor < few.blocks_per_multiprocessor


def test_registers_available_are_rounded_to_the_allocation_unit():
    target = device("sm_80")
    assert registers_available(small(), target, 1024) == 64
    assert registers_available(small(min_blocks=3), target, 256) % 8 == 0
    assert registers_available(small(), target, 32) == target.max_registers_per_thread


# --- every statement has its leaf ----------------------------------------------------------------
@pytest.mark.parametrize("name", UNUSUAL)
def test_every_call_has_a_leaf_of_its_arity(name):
    plan = plan_of(schedule=UNUSUAL[name])
    (place,) = plan.places
    leaves = leaves_of(plan, place.name)
    assert calls(place.loops)
    for call in calls(place.loops):
        assert len(leaves[call.statement].loops) == len(call.arguments)
