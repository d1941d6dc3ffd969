"""The leaves of a specialised kernel as template records: rings, boxes, products, releases."""

from __future__ import annotations

from typing import Any

from polygen.emit.ctext import loops
from polygen.emit.leaves import extent_names
from polygen.emit.role_barriers import BARRIER_BYTES, address, releases_of, waits_of
from polygen.emit.role_epilogue import finish, part
from polygen.hardware.matrix_layout import ADDRESS_MASK, MatrixLayout, pattern_bytes
from polygen.lower.plan import KernelPlan
from polygen.lower.role_plan import Fill, Panel, PlacedBarrier, RoleWork


def frame(plan: KernelPlan) -> dict[str, Any]:
    """Everything that ``roles.cu.j2`` needs besides the common parts."""
    work = plan.roles
    assert work is not None
    schedule, tiles = plan.schedule, plan.tiles
    extents = extent_names(plan)
    threads, producer = plan.device.group_threads, work.consumers * plan.device.warpgroup_warps
    blocks = work.cluster[0] * work.cluster[1]
    along = schedule.raster.along
    across = "n" if along == "m" else "m"
    return {
        "clustered": blocks > 1,
        "cluster_blocks": blocks,
        "cluster_attribute": f"__cluster_dims__({blocks}, 1, 1) " if blocks > 1 else "",
        "lanes": plan.device.warp_size,
        "consumers": work.consumers,
        "group_threads": threads,
        "group_warps": plan.device.warpgroup_warps,
        "producer_thread": work.consumers * threads,
        "producer_warp": producer,
        "first_loader": producer + 1,
        "loaders_end": producer + 1 + work.consumers,
        "shared_alignment": pattern_bytes(),
        "pingpong": work.pingpong,
        "part_m": "group" if tiles.warps[0] > 1 else "0",
        "part_n": "group" if tiles.warps[1] > 1 else "0",
        "operands": work.operands,
        "results": work.results,
        "producer_registers": work.registers[0],
        "consumer_registers": work.registers[1],
        "k_extent": extents["k"],
        "m_extent": extents["m"],
        "n_extent": extents["n"],
        "tile_k": tiles.cta[2],
        "super_m": tiles.cta[0] * work.cluster[0],
        "super_n": tiles.cta[1] * work.cluster[1],
        "atoms_m": tiles.atoms[0],
        "atoms_n": tiles.atoms[1],
        "maps": [a.name for a in plan.arguments if a.kind == "map"],
        "barrier_inits": [
            *(
                line
                for b in work.barriers
                for line in _inits(
                    b.offset, b.barrier.slots * b.groups, b.barrier.arrivals, b.barrier.name
                )
            ),
            *(line for t, place in work.turns for line in _inits(place, work.consumers, 1, t.name)),
        ],
        "frame": {
            "group": schedule.raster.group,
            "along": along,
            "across": across,
            "clustered": blocks > 1,
            "cluster_m": work.cluster[0],
            "cluster_n": work.cluster[1],
            "raster_comment": f"Groups of {schedule.raster.group} along {along}.",
        },
        "product": product(plan),
        "fill": fill(work),
        "fetches": [fetch(plan, work, panel) for panel in work.operands],
        "multiply": multiply(plan, work),
        "finish": finish(plan, work) if work.results else {},
        "loops": {
            part.role: loops(part.loops, {}, 2 if part.role == "consumer" else 3)
            for part in work.roles
        },
    }


def _inits(offset: int, count: int, arrivals: int, name: str) -> list[str]:
    address = f"shared + {offset} + {BARRIER_BYTES} * slot"
    loop = f"for (int slot = 0; slot < {count}; ++slot)"
    return [f"{loop} barrier_init({address}, {arrivals});  // {name}"]


def _filled(work: RoleWork, statement: str) -> PlacedBarrier:
    return next(b for b in work.barriers if b.barrier.signal == statement and b.bytes)


def product(plan: KernelPlan) -> dict[str, Any]:
    """The wrapper of the product instruction."""
    atom, columns = plan.atom, plan.tiles.warp[1]
    count = columns // 2
    immediates = "1, 1"
    if "mn" in atom.majors:
        work = plan.roles
        assert work is not None
        immediates += "".join(f", {int(not f.k_contiguous)}" for f in work.fills)
    return {
        "comment": (
            f"{atom.name}: c[{atom.m},{columns}] = a * b (+ c if accumulate), by a warpgroup"
        ),
        "blocks": columns // 8,
        "count": count,
        "ptx": atom.ptx.format(n=columns),
        "sums": ", ".join(f"%{i}" for i in range(count)),
        "immediates": immediates,
        "outputs": ", ".join(f'"+f"(c[{i // 4}][{i % 4}])' for i in range(count)),
    }


def fill(work: RoleWork) -> dict[str, Any]:
    """The producer's copies of one k tile."""
    placed = _filled(work, "fill")
    body = [line for f in work.fills for line in _boxes(f, work)]
    names = ", ".join(f"{f.tensor.name} -> {f.ring}" for f in work.fills)
    return {
        "comment": f"{names}, by the copy engine, zeros outside the arrays",
        "slots": placed.barrier.slots,
        "waits": waits_of(work, "fill", {"ring": "fill_ring"}, "0"),
        "full": address(placed, "fill_ring.slot", "0"),
        "bytes": placed.bytes,
        "body": body,
    }


def _boxes(f: Fill, work: RoleWork) -> list[str]:
    along = work.cluster[0]
    part = f"rank / {along}" if f.operand == "a" else f"rank % {along}"
    region = work.region(f.ring)
    slot = f"shared + {region.offset} + fill_ring.slot * {region.slot_bytes}"
    shared = f.parts > 1
    offset = f" + {part} * {f.part_bytes}" if shared else ""
    first_row = f" + {part} * {f.box[0]}" if shared else ""
    lines = []
    for j in range(f.layout.boxes):
        to = f"{slot}{offset} + {j * f.layout.box_bytes}"
        along_k, along_role = f"k * {f.tile_k}", f"b_{f.role} * {f.tile}"
        columns, rows = (along_k, along_role) if f.k_contiguous else (along_role, along_k)
        inner, outer = f"{columns} + {j * f.box[1]}", f"{rows}{first_row}"
        if shared:
            lines.append(
                f"box_multicast({to}, &{f.map}, full, {inner}, {outer}, {_mask(f, work)});"
            )
        else:
            lines.append(f"box_load({to}, &{f.map}, full, {inner}, {outer});")
    return lines


def _mask(f: Fill, work: RoleWork) -> str:
    """The blocks of the cluster that share a tile of this operand."""
    along, across = work.cluster
    if f.operand == "a":
        return f"{sum(1 << (x * along) for x in range(across))} << (rank % {along})"
    return f"{(1 << along) - 1} << (rank / {along} * {along})"


def fetch(plan: KernelPlan, work: RoleWork, panel: Panel) -> dict[str, Any]:
    """The loader's copy of one panel of an operand matrix."""
    statement, cursor = f"fetch_{panel.name}", f"fetch_{panel.name}_cursor"
    placed, region = _filled(work, statement), work.region(panel.region)
    tiles = plan.tiles
    per_block = tiles.warp[1] // work.panel_columns
    own_m, own_n = (part(tiles, axis, "owner", tiles.warp[axis]) for axis in range(2))
    outer = f"b_m * {tiles.cta[0]}{own_m} + p / {per_block} * {panel.rows}"
    inner = f"b_n * {tiles.cta[1]}{own_n} + p % {per_block} * {panel.columns}"
    box_bytes = panel.rows * panel.span
    place = f"(owner * {region.slots} + {cursor}.slot) * {region.slot_bytes}"
    return {
        "name": panel.name,
        "comment": f"{panel.tensor.name} -> {panel.region}, {panel.rows} x {panel.columns}",
        "slots": region.slots,
        "waits": waits_of(work, statement, {f"panel_{panel.name}": cursor}, "owner"),
        "full": address(placed, f"{cursor}.slot", "owner"),
        "bytes": placed.bytes,
        "to": f"shared + {region.offset} + {place}",
        "body": [
            f"box_load(to + {j * box_bytes}, &{panel.map}, full, "
            f"{inner} + {j * panel.box[1]}, {outer});"
            for j in range(panel.boxes)
        ],
    }


def multiply(plan: KernelPlan, work: RoleWork) -> dict[str, Any]:
    """The consumer's products of one k tile, and the release of its slot."""
    a, b = work.fills
    tiles, in_flight = plan.tiles, plan.schedule.pipeline.in_flight
    own_a = part(tiles, 0, "group", tiles.atoms[0] * a.layout.block)
    own_b = part(tiles, 1, "group", b.layout.block)
    releases = [
        {
            "name": placed.barrier.name,
            "comment": f"arrive_{placed.barrier.name}: {'; '.join(placed.barrier.dependences)}",
            "body": _release(plan, placed, work),
        }
        for placed in releases_of(work, "multiply")
    ]
    return {
        "comment": f"sum[m] += {a.ring} * {b.ring}, proved to read what the copies wrote",
        "slots": work.region(a.ring).slots,
        "low_a": _low(work.region(a.ring).offset, a.layout, own_a),
        "low_b": _low(work.region(b.ring).offset, b.layout, own_b),
        "high_a": f"0x{a.layout.descriptor >> 32:x}u",
        "high_b": f"0x{b.layout.descriptor >> 32:x}u",
        "slot_a": work.region(a.ring).slot_bytes,
        "slot_b": work.region(b.ring).slot_bytes,
        "step_a": _step(a.layout),
        "step_b": _step(b.layout),
        "block_a": a.layout.block,
        "waits": waits_of(work, "multiply", {"ring": "multiply_ring"}, "0"),
        "in_flight": in_flight,
        "releases": releases,
        "turns": [
            {
                "name": turn.name,
                "comment": f"{turn.name}: {'; '.join(turn.dependences)}",
                "own": f"shared + {place} + group * {BARRIER_BYTES}",
                "other": f"shared + {place} + (1 - group) * {BARRIER_BYTES}",
                "threads": plan.device.group_threads,
            }
            for turn, place in work.turns
        ],
        "pingpong": work.pingpong,
    }


def _low(offset: int, layout: MatrixLayout, own: str) -> str:
    """The low word of a matrix descriptor for slot 0.

    The address is cut to its field: in a cluster, the upper bits of a shared address hold the
    block's rank, and would run into the next field.
    """
    fields = layout.descriptor & 0xFFFFFFFF
    return f"((shared + {offset}{own}) & 0x{ADDRESS_MASK:x}u) / 16 + 0x{fields:x}u"


def _step(layout: MatrixLayout) -> str:
    """The start of the k slice of MMA step `s`."""
    steps = layout.k_steps
    step = steps[1] if len(steps) > 1 else 0
    if steps == tuple(s * step for s in range(len(steps))):
        return f"s * {step}"
    per = layout.span // step
    formula = tuple(s // per * layout.box_bytes + s % per * step for s in range(len(steps)))
    assert formula == steps
    return f"s / {per} * {layout.box_bytes} + s % {per} * {step}"


def _release(plan: KernelPlan, placed: PlacedBarrier, work: RoleWork) -> str:
    own = f"thread % {plan.device.group_threads}"
    where = address(placed, "release_ring.slot", "0")
    if not placed.barrier.remote:
        return f"if ({own} == 0) barrier_arrive({where});"
    along, across = work.cluster
    condition = f"{own} < {along * across}"
    if along > 1 and across > 1:
        same_row = f"({own} - rank) % {along} == 0"
        condition += f" && ({same_row} || {own} / {along} == rank / {along})"
    return f"if ({condition}) barrier_arrive_remote({where}, {own});"
