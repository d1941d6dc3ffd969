"""Closed forms of the cost model against isl: the cardinalities of the kernels' own sets."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
from matrix import Case, case, pipeline, roles, small, tiled

from polygen import isl
from polygen.decide import candidates
from polygen.emit.functions import is_costly
from polygen.hardware.device import device
from polygen.lower.work import Copy, Fill, Load
from polygen.poly import tiling
from polygen.schedule.load import shipped
from polygen.schedule.model import Cluster, Epilogue, Raster, SharedMemory
from polygen.schedule.problem import Fitted
from polygen.tune.cost import counts

SIZES = (("M", 328), ("N", 424), ("K", 264))


def _case(name, layout, dtype, epilogue, schedule, arch="sm_90a", sizes=SIZES):
    return case(name, layout, dtype, epilogue, arch=arch, schedule=schedule, sizes=sizes)


def _filled(name, layout, dtype, epilogue, schedule):
    """A kernel whose threads fill rings: of both operands, or of one where K stays what it is."""
    sizes = (("M", 328), ("N", 421), ("K", 264 if layout == "nn" else 261))
    few = replace(schedule.roles, producer_registers=104, consumer_registers=200)
    return _case(name, layout, dtype, epilogue, replace(schedule, roles=few), sizes=sizes)


KERNELS = [
    # with roles: every form, clusters both ways, both ways out, other element sizes and layouts
    _case("one", "nt", "bf16", "plain", roles("one", 96)),
    _case("two", "nn", "f16", "bias", roles("two", 128, raster=Raster("n", 2))),
    _case("three", "nt", "bf16", "bias_gelu", roles("three", 64, raster=Raster("m", 1))),
    _case("pingpong", "tn", "bf16", "gate", roles("pingpong", 112, m=128)),
    _case("residual", "nt", "f16", "bias_residual_relu", roles("two", 160, cluster=(2, 1))),
    _case("three_in_turns", "nt", "bf16", "gate", roles("three_in_turns", 96)),
    _case("across", "tt", "bf16", "two_outputs", roles("pingpong", 64, cluster=(1, 2))),
    _case("square", "nt", "bf16", "same_twice", roles("one", 128, m=128, cluster=(2, 2))),
    _case("rows", "nt", "bf16", "bias", roles(cluster=(2, 1), raster=Raster("m", 1))),
    _case("columns", "nn", "bf16", "bias", roles(cluster=(1, 2), raster=Raster("n", 1))),
    _case("tf32", "nt", "tf32", "bias_gelu", roles("two", 64, 32)),
    _case("narrow", "nt", "bf16", "bias_residual_relu", roles("two", 128, columns=16)),
    _case("beside", "nt", "bf16", "gate", roles("beside", 48, m=128, raster=Raster("m", 2))),
    _case("direct", "nt", "bf16", "transposed_residual", roles("one", through="registers")),
    _case("turns", "nt", "f16", "bias", roles("pingpong", 64, in_flight=0, through="registers")),
    _filled("threads", "nt", "bf16", "bias", roles("one", 96, through="lines")),
    _filled("threads_mixed", "nn", "f16", "bias_residual_relu", roles("two", 64, through="lines")),
    _filled("threads_turns", "tn", "bf16", "bias", roles("pingpong", 112, through="lines")),
    _case("lines", "nt", "bf16", "transposed_residual", roles("one", through="lines")),
    _case("shared", "nt", "bf16", "bias_residual_relu", roles("two", 64, cluster=(1, 1, 2))),
    _case("direct_shared", "nn", "bf16", "gate", roles(cluster=(1, 1, 8), through="registers")),
    _case("few", "nt", "bf16", "plain", roles("two", 128), sizes=(("M", 40), ("N", 48), ("K", 64))),
    # without
    _case("small", "nt", "bf16", "bias_gelu", small(), "sm_80"),
    _case("residual_80", "nn", "f16", "bias_residual_relu", small(raster=Raster("n", 3)), "sm_80"),
    _case("gate_tf32", "nt", "tf32", "gate", tiled((64, 32, 32), (32, 16)), "sm_86"),
    _case("direct_80", "tn", "bf16", "plain", small(epilogue=Epilogue("registers")), "sm_80"),
    _case(
        "spread", "tt", "f16", "two_outputs",
        small(pipeline=pipeline(4, 3, copies="spread", fragments=2)), "sm_89",
    ),
    _case(
        "plain_rows", "nt", "bf16", "bias",
        tiled((32, 64, 64), (16, 32), smem=SharedMemory("none")), "sm_80",
    ),
    _case(
        "plain_columns", "tn", "f16", "bias",
        tiled((64, 32, 32), (16, 16), smem=SharedMemory("none")), "sm_80",
    ),
]  # fmt: skip


class Counted:
    """A kernel, its closed forms, and the sets that they are to be the cardinalities of."""

    def __init__(self, one: Case) -> None:
        kernel = one.kernel()
        self.passes = passes = kernel.passes
        self.tree, self.plan, self.scop = passes.tree, passes.plan, passes.scop
        self.sizes = dict(one.sizes)
        self.schedule = passes.plan.schedule
        self.device = passes.plan.device
        self.problem, _ = candidates(passes.program, self.device, self.sizes)
        self.c = counts(self.device, Fitted(self.schedule, 1), self.problem)
        statements = tiling.roles(self.scop, self.tree.fusion, self.tree.match, [""])
        blocks = tiling.block_map(statements, self.tree.tiles, self.schedule)
        prefix = tiling.space(self.scop.parameters)
        fixed = " and ".join(f"{name} = {value}" for name, value in self.sizes.items())
        self.fixed = isl.Set(f"{prefix}{{ : {fixed} }}")
        self.domain = self.scop.domain.intersect_params(self.fixed)
        self.blocks = isl.UnionMap(prefix + blocks).intersect_domain(self.domain)
        self.product, self.pointwise = statements[1], statements[2:]

    def card(self, points: isl.UnionSet | isl.Set) -> int:
        """Points of all members together, at the fixed sizes."""
        if isinstance(points, isl.Set):
            points = isl.UnionSet.from_set(points)
        found = []
        guard = isl.CallbackGuard()
        guard.run(lambda: points.foreach_set(guard.wrap(found.append)))
        total = 0
        for member in found:
            parameters = member.dim(isl.dim_type.param)
            total += isl.count(member.project_out(isl.dim_type.param, 0, parameters))
        return total

    def of_tensor(self, touched: isl.UnionSet, name: str) -> isl.UnionSet:
        """The cells of one tensor."""
        cells = "[i]" if self.tensor(name).rank == 1 else "[i,j]"
        return touched.intersect(isl.UnionSet(f"{{ {name}{cells} }}"))

    def tensor(self, name):
        tensor = self.passes.program.tensors[name]
        return Ranked(tensor, len(tensor.dims))

    def tile(self, m: int, n: int) -> isl.UnionSet:
        """The statement instances of one output tile."""
        return isl.UnionSet(f"{{ [{m},{n}] }}").apply(self.blocks.reverse())

    def instances(self, role: str, tiles: int = 1) -> dict[str, int]:
        """How often one thread of control of a role executes each statement; turn 0."""
        tree = next(t for t in self.tree.places if t.place.name == role)
        domain = isl.Schedule(tree.text).get_domain()
        fixed = f"k_tiles = {self.c.k_tiles} and tiles = {tiles} and turn = 0"
        at = isl.Set(f"[k_tiles,tiles,turn] -> {{ : {fixed} }}")
        return self.by_name(domain.intersect_params(at))

    def by_name(self, domain: isl.UnionSet) -> dict[str, int]:
        members = []
        guard = isl.CallbackGuard()
        guard.run(lambda: domain.foreach_set(guard.wrap(members.append)))
        return {m.get_tuple_name(): self.card(m) for m in members}

    def matrices(self) -> list[str]:
        """Names of whole matrices that pointwise statements read."""
        operands = {self.tree.match.a.tensor.name, self.tree.match.b.tensor.name}
        inputs = self.passes.program.inputs
        return [
            t.name for t in inputs if len(t.dims) == 2 and 1 not in t.dims
            and t.name not in operands
        ]  # fmt: skip


class Ranked:
    def __init__(self, tensor, rank):
        self.rank, self.bytes = rank, tensor.dtype.bytes


@functools.cache
def counted_once(name: str) -> Counted:
    return Counted(next(one for one in KERNELS if one.name == name))


def over(kernels):
    """A fixture that goes through some kernels, each built once."""

    @pytest.fixture(params=[one.name for one in kernels])
    def kernel(request) -> Counted:
        return counted_once(request.param)

    return kernel


SPECIALISED = [one for one in KERNELS if one.schedule.specialised]
counted = over(KERNELS)
with_tiles = over([one for one in KERNELS if one.name != "few"])  # smaller than a tile
with_roles = over(SPECIALISED)
with_instructions = over([one for one in SPECIALISED if one.name != "few"])
without_roles = over([one for one in KERNELS if not one.schedule.specialised])


# --- every kernel --------------------------------------------------------------------------------
def test_tiles_and_clusters(counted):
    cluster = counted.schedule.cluster
    tiles = counted.blocks.range()
    shared = isl.UnionMap(f"{{ [a,b] -> [floor(a/{cluster.m}), floor(b/{cluster.n})] }}")
    clusters = counted.card(tiles.apply(shared))
    assert clusters == counted.c.clusters
    assert counted.card(tiles) <= counted.c.tiles == clusters * cluster.m * cluster.n
    grid = counted.plan.launch.grid(counted.sizes)
    if counted.c.roles and counted.c.clusters <= counted.c.slots:
        assert math.prod(grid) == counted.c.tiles * cluster.k


def test_k_tiles(counted):
    schedule, product = counted.schedule, counted.product
    depth = schedule.tile.cta.k * schedule.cluster.k
    tiles = isl.UnionMap(f"{{ {product.instance} -> [floor({product.k}/{depth})] }}")
    assert counted.card(counted.domain.apply(tiles)) == counted.c.k_tiles


def test_groups_of_the_raster_and_what_they_share(counted):
    schedule, c = counted.schedule, counted.c
    raster, cluster = schedule.raster, schedule.cluster
    place, blocks = ("a", cluster.m) if raster.along == "m" else ("b", cluster.n)
    group = isl.UnionMap(f"{{ [a,b] -> [floor({place}/{raster.group * blocks})] }}")
    assert counted.card(counted.blocks.range().apply(group)) == c.groups
    first = isl.UnionSet("{ [0] }").apply(counted.blocks.apply_range(group).reverse())
    touched = first.apply(counted.scop.reads)
    match = counted.tree.match
    along, across = (match.a, match.b) if raster.along == "m" else (match.b, match.a)
    shared = counted.of_tensor(touched, along.tensor.name)
    assert counted.card(shared) * along.tensor.dtype.bytes == c.along_bytes
    swept = counted.of_tensor(touched, across.tensor.name)
    assert counted.card(swept) * across.tensor.dtype.bytes == c.across_bytes


def test_bytes_of_device_memory(counted):
    program = counted.passes.program
    read, written = (
        counted.domain.apply(counted.scop.reads), counted.domain.apply(counted.scop.writes)
    )  # fmt: skip
    match = counted.tree.match
    names = [match.a.tensor.name, match.b.tensor.name, *counted.matrices()]
    total = sum(counted.card(counted.of_tensor(read, n)) * counted.tensor(n).bytes for n in names)
    assert total == counted.c.read_bytes
    total = sum(
        counted.card(counted.of_tensor(written, t.name)) * t.dtype.bytes for t in program.outputs
    )
    assert total == counted.c.written_bytes


def test_the_way_out_of_a_whole_tile(with_tiles):
    counted = with_tiles
    tile = counted.tile(0, 0)
    program = counted.passes.program
    read, written = tile.apply(counted.scop.reads), tile.apply(counted.scop.writes)
    matrices = counted.matrices()
    found = sum(
        counted.card(counted.of_tensor(read, n)) * counted.tensor(n).bytes for n in matrices
    )
    assert found == counted.c.matrix_bytes
    found = sum(
        counted.card(counted.of_tensor(written, t.name)) * t.dtype.bytes for t in program.outputs
    )
    assert found == counted.c.result_bytes
    costly = {s.name for s in program.pointwise if is_costly(s.function, s.args)}
    evaluated = counted.by_name(tile)
    group = {own: name for name, members in counted.tree.fusion.members for own in members}
    assert sum(evaluated[group.get(name, name)] for name in costly) == counted.c.functions


def test_copies_bring_the_image_of_a_tile(counted):
    """Of the first k tile of the first tile: all of it, and what of it lies inside the operands."""
    c, schedule = counted.c, counted.schedule
    cluster, cta = schedule.cluster, schedule.tile.cta
    filled, own, fetched, threaded = 0, 0, 0, 0
    product = counted.product
    first = isl.UnionSet(f"{{ {product.instance} : 0 <= {product.k} < {cta.k} }}")
    touched = counted.tile(0, 0).intersect(first).apply(counted.scop.reads)
    for name, operand in counted.tree.match.operands:
        parts = cluster.n if name == "a" else cluster.m
        size = operand.tensor.dtype.bytes
        box = (cta.m if name == "a" else cta.n) * cta.k * size
        filled += box
        if c.roles and operand.alignment < 16:
            threaded += box
            continue
        own += box // parts
        inside = counted.card(counted.of_tensor(touched, operand.tensor.name)) * size
        fetched += inside // parts
    found = (filled, own - fetched, fetched, threaded)
    assert found == (c.filled, c.outside, c.fetched, c.threaded)


# --- with roles ----------------------------------------------------------------------------------
def test_products_of_the_consumers(with_roles):
    counted = with_roles
    c, tiles = counted.c, counted.tree.tiles
    consumers = counted.tree.synchronised.program.statement("multiply").place.counts[-1]
    sharing = 1 if c.turns else consumers
    issued = counted.instances("consumer")["multiply"] * sharing
    assert issued == c.instructions * c.k_tiles
    assert issued * tiles.atom[0] * tiles.warp[1] * tiles.atom[2] == c.products * c.k_tiles
    assert c.workers == sharing and c.workers * c.own == math.prod(tiles.cta[:2])


def test_operands_of_an_instruction(with_instructions):
    """The image of one instruction's instances under the accesses, times the instructions."""
    counted = with_instructions
    tiles, product, match = counted.tree.tiles, counted.product, counted.tree.match
    m, n, k = product.m, product.n, product.k
    inside = (
        f"0 <= {m} < {tiles.atom[0]} and 0 <= {n} < {tiles.warp[1]} and 0 <= {k} < {tiles.atom[2]}"
    )
    instances = isl.UnionSet(f"{{ {product.instance} : {inside} }}")
    everywhere = counted.scop.reads.intersect_params(counted.fixed)
    touched = instances.apply(everywhere)
    read = sum(
        counted.card(counted.of_tensor(touched, o.tensor.name)) * o.tensor.dtype.bytes
        for _, o in match.operands
    )
    assert read * counted.c.instructions == counted.c.operand_reads


def test_fills_bring_what_barriers_expect(with_roles):
    counted = with_roles
    plan, c = counted.plan, counted.c
    found = counted.instances("producer")
    if c.threaded:
        (work, _) = plan.of(Fill)
        assert found["get"] == found["put"] == c.k_tiles * sum(s.pieces for s in work.sources)
        assert sum(s.chunks for s in work.sources) * 16 == c.threaded
        assert work.rounds == c.thread_rounds
    if c.threaded == c.filled:
        assert "fill" not in found
        return
    assert found["fill"] == c.k_tiles
    work = plan.leaf("fill").work
    assert work.full.bytes == c.filled - c.threaded
    assert sum(b.bytes // b.parts for b in work.boxes) == c.fetched + c.outside
    if not c.outside:
        assert sum(b.count * b.box[0] for b in work.boxes) == c.box_rows


def test_panels_and_waits(with_roles):
    counted, tree, c = with_roles, with_roles.tree, with_roles.c
    found = counted.instances("consumer")
    assert c.panels == (found["finish"] if tree.panels.columns else found["store"])
    names = [s.wait for s in tree.synchronised.syncs if s.kind in ("mbarrier", "turn", "bar")]
    assert c.waits == sum(found.get(name, 0) for name in names)


def test_the_ring_and_its_slack(with_roles):
    counted, c = with_roles, with_roles.c
    for ring in (s for s in counted.tree.synchronised.syncs if s.name.startswith("full_ring")):
        assert (ring.slots, counted.schedule.pipeline.in_flight) == (c.ahead, c.in_flight)


# --- without -------------------------------------------------------------------------------------
def block_instances(counted):
    """How often the threads of a block execute each statement of its tree."""
    text = isl.Schedule(counted.tree.places[0].text)
    fixed = isl.Set(f"[k_tiles] -> {{ : k_tiles = {counted.c.k_tiles} }}")
    return counted.by_name(text.get_domain().intersect_params(fixed))


def test_products_of_the_warps(without_roles):
    counted, found = without_roles, block_instances(without_roles)
    c, tiles = counted.c, counted.tree.tiles
    issued = found["mma"] * tiles.warp_count
    assert issued * math.prod(tiles.atom) == c.products * c.k_tiles
    assert (c.workers, c.own) == (tiles.warp_count, math.prod(tiles.warp))


def test_copies_of_the_block(without_roles):
    counted, found = without_roles, block_instances(without_roles)
    c = counted.c
    copied = sum(
        found[f"copy_{copy.operand}"] * copy.tile * copy.tile_k * copy.element_bytes // copy.parts
        for copy in counted.plan.of(Copy)
    )
    assert copied == c.filled * c.k_tiles


def test_fragment_loads_and_their_conflicts(without_roles):
    """Bytes of all loads, times the wavefronts that the ring's layout makes of one."""
    counted, found = without_roles, block_instances(without_roles)
    c, tiles = counted.c, counted.tree.tiles
    total = 0
    for load in counted.plan.of(Load):
        rows = load.warp_tile * tiles.atom[2] * load.element_bytes
        ring = counted.plan.buffer(load.buffer)
        taken, ideal = ring.rows.wavefronts
        copies = 4  # one access of 32 lanes, 16 bytes each, which never conflicts
        ways = (taken - copies) / (ideal - copies)
        total += found[f"load_{load.operand}"] * tiles.warp_count * rows * ways
    assert total == c.operand_reads * c.k_tiles


# --- beyond single kernels -----------------------------------------------------------------------
def test_no_shipped_schedule_has_bank_conflicts():
    """What the closed form takes for granted of swizzles that are chosen automatically."""
    for name in ("64x64x64_w32x32_s4", "16x64x128_w16x16_s6", "128x256x32_w64x64_s3"):
        schedule = next(s for s in shipped("sm_80") if s.name == name)
        for layout in ("nt", "tn"):
            plan = _case("shipped", layout, "bf16", "bias", schedule, "sm_80").kernel().passes.plan
            assert all(
                taken == ideal for taken, ideal in (b.rows.wavefronts for b in plan.buffers[:2])
            )


def test_wide_clusters_do_not_reach_every_multiprocessor():
    h200 = device("sm_90a")
    problem, _ = candidates(
        KERNELS[0].kernel().program, h200, {"M": 4096, "N": 4096, "K": 4096}
    )  # fmt: skip
    base = roles("two", 128)
    for shape, slots in (((1, 1), 132), ((2, 1), 66), ((2, 2), 30), ((1, 4), 30)):
        found = counts(h200, Fitted(replace(base, cluster=Cluster(*shape)), 1), problem)
        assert found.slots == slots
        assert found.rounds == -(-found.clusters // slots)
        assert found.idle == found.rounds * slots - found.clusters


def test_conflicts_are_counted_where_there_are_any():
    ways = {
        name: counted_once(name).c.operand_reads
        / (counted_once(name).c.workers * sum(counted_once(name).tree.tiles.warp) * 2)
        / counted_once(name).schedule.tile.cta.k
        for name in ("small", "plain_rows", "plain_columns")
    }
    assert ways == {"small": 1.0, "plain_rows": 8.0, "plain_columns": pytest.approx(6.0)}
