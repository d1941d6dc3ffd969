"""`KernelPlan` -> `KernelSource`: fill the template with the leaves, the places and the frame.

1. Each leaf of the plan becomes a lambda named like its statement (`polygen.emit.leaf`), so the
   loops below are, line for line, the ones isl generated.
2. The frame says which tiles a block works on, initialises what its places share, and ends it.
3. The header says what the kernel computes and how it was decided; the host launcher is left out
   under NVRTC.
4. Where bits must not depend on sizes, the compiler is told to round every product and every sum of
   the pointwise statements: which of them it would fuse depends on the code around them.
"""

from __future__ import annotations

import functools
from typing import Any

from polygen.emit import last_round, row_order, tile_domain
from polygen.emit.conditions import refusals
from polygen.emit.environment import environment
from polygen.emit.following import combining, following, monoids
from polygen.emit.forms import helpers, in_forms
from polygen.emit.instructions import instructions
from polygen.emit.key_bounds import key_bounds
from polygen.emit.launcher import launcher, plan_conditions
from polygen.emit.leaf.elements import types
from polygen.emit.leaf.load_threads import SHARED_ALIGNMENT
from polygen.emit.leaf.scan import scan_accesses, scan_combining
from polygen.emit.leaf.sections import counted
from polygen.emit.leaf.tally import elements, tally_tensors
from polygen.emit.leaves import extent_names, matrix_coordinates, parameter, size_name
from polygen.emit.places import places
from polygen.emit.realign import copying
from polygen.emit.rounds import matrix_rounds
from polygen.emit.row_groups import count, declared, find, of_group
from polygen.emit.row_places import kept_declared, mapped
from polygen.emit.source import KernelSource
from polygen.lower.begins import trigger
from polygen.lower.buffers import Buffer
from polygen.lower.plan import KernelPlan
from polygen.lower.sync_work import Placed
from polygen.lower.work import Locate
from polygen.poly.key_tiles import PART, KeyTiles
from polygen.poly.raster import block_tile
from polygen.schedule.load import dumps
from polygen.schedule.model import AT_START
from polygen.schedule.sums import reproducible

_UNFUSED = "--fmad=false"  # NVRTC and nvcc: a * b + c are two roundings


def emit(plan: KernelPlan, command: str = "") -> KernelSource:
    """Render a plan.

    Args:
        plan: the kernel.
        command: the command that made it, for the header.

    Raises:
        VerifyError: a leaf is none that the table knows.
    """
    functions, called = combining(plan)
    parameters = ", ".join(parameter(plan, argument) for argument in plan.arguments)
    follows = following(plan)
    if follows is not None:
        follows |= {"parameters": parameters, "bounds": follows["threads"], "few": 0}
        follows["lines"] = [*kept_declared(plan), *follows["lines"]]
    context = {
        **launcher(plan),
        **instructions(plan),
        **_framed(plan),
        "header": header(plan, command),
        **types(plan, (*scan_accesses(plan), *elements(tally_tensors(plan)))),
        "helpers": in_forms(plan, (*helpers(plan), *called)),
        "combining": [*functions, *scan_combining(plan, monoids(plan))],
        "kept": kept_declared(plan, mapped(plan)),
        "parameters": parameters,
        "beside": [launch for launch in (follows, copying(plan)) if launch is not None],
        "places": places(plan),
    }
    text = _coherent(plan, environment().get_template("kernel.cu.j2").render(context))
    declared = environment().get_template("header.h.j2").render(context)
    return KernelSource(
        entry=plan.entry,
        text=_tidy(text),
        header=_tidy(declared),
        arch=plan.device.compile_target,
        arguments=plan.arguments,
        launch=plan.launch,
        conditions=plan_conditions(plan),
        options=_options(plan),
        following=plan.following,
        realign=plan.realign,
    )


def _options(plan: KernelPlan) -> tuple[str, ...]:
    return (_UNFUSED,) if plan.sums.invariant else ()


def header(plan: KernelPlan, command: str) -> list[str]:
    """The first comment: expression, statements, arguments, schedule, resources, command."""
    program = str(plan.whole).splitlines()
    schedule = [f"  {line}" for line in dumps(plan.schedule).splitlines() if line]
    conditions = [
        f"  {refusal.code}: {refusal.sentence}"
        for refusal in refusals(plan_conditions(plan), plan.launch, plan.program.tensors)
    ]
    lines = [
        *program,
        "",
        f"mapping: {plan.mapping}",
        f"needs: {plan.resources}",
        "arguments, and what the launcher returns for others (lengths in elements, addresses in "
        "bytes):",
        *conditions,
        *([f"before it: {plan.realign}"] if plan.realign else []),
        "barriers, and the dependences they enforce:",
        *(f"  {placed.title}: {placed.reason}" for placed in plan.syncs),
        "schedule:",
        *schedule,
    ]
    if plan.sums.invariant:
        lines += ["sums:", f"  {reproducible(plan.sums)}", *(f"  {o}" for o in plan.sums.orders)]
    if plan.schedule.launch.ahead and plan.program.in_order is not None:
        early = ", ".join(plan.program.in_order.settled)
        lines.append(f"behind the kernels before it in its sequence, on their stream: {early} may "
                     "be read while these run")  # fmt: skip
    lines += [f"compile with: {' '.join(_options(plan))}"] if _options(plan) else []
    lines += [f"made by: {command}"] if command else []
    return [_comment(part) for line in lines for part in (line.splitlines() or [""])]


def _comment(line: str) -> str:
    """A line that ends where it ends: a backslash at its end would comment out the next one."""
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line.rstrip())
    return f"{printable} ." if printable.endswith("\\") else printable


def _tidy(text: str) -> str:
    """At most one blank line in a row, no trailing blanks."""
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.rstrip()
        if stripped or (lines and lines[-1]):
            lines.append(stripped)
    return "\n".join(lines).rstrip() + "\n"


def _coherent(plan: KernelPlan, text: str) -> str:
    """The text; where a launch may begin while those before it write, it reads nothing as constant.

    A compiler may move loads of constants in front of the wait for these launches.
    """
    if not trigger(plan):
        return text
    return text.replace("__ldg(", "__ldca(").replace("ld.global.nc", "ld.global.ca")


def _framed(plan: KernelPlan) -> dict[str, Any]:
    """What is around the places of a kernel, and before it what lets dependent launches begin."""
    found, early = _frame(plan), trigger(plan) == AT_START
    return found | {"frame": ["dependents", *found["frame"]]} if early else found


def _frame(plan: KernelPlan) -> dict[str, Any]:
    """Which tiles a block works on, and what its places share."""
    along, depths = plan.schedule.raster.along, [size_name(depth) for depth in plan.depths]
    depth = functools.reduce(lambda one, other: f"max({one}, {other})", depths)
    if plan.match.sums:  # all k tiles of all of them
        own = plan.tiles.cta[2]
        counts = " * ".join(size_name(count) for _, count in plan.match.sums)
        depth = f"{counts} * (({depth} + {own - 1}) / {own} * {own})"
    # Blocks that share the sums of all tiles have a range of k each.
    step = plan.tiles.cta[2] * (1 if plan.tiles.last else plan.tiles.split)
    rounds = matrix_rounds(plan.launch)  # empty but of blocks with a tile each
    x = "place" if rounds else "blockIdx.x"
    own_along, own_across = block_tile(plan.launch.group, x, "blockIdx.y")
    record = {
        "lanes": plan.device.warp_size,
        "min_blocks": plan.schedule.min_blocks,
        "shared_alignment": max([SHARED_ALIGNMENT, *(b.alignment for b in plan.buffers)]),
        "along": along,
        "across": "n" if along == "m" else "m",
        "own_along": own_along,
        "own_across": own_across,
        "k_extent": depth,
        "tile_k": step,
        "tile_k_less_1": step - 1,
    }
    groups = plan.match.groups
    if groups and not plan.launch.persistent:
        held = of_group(groups).items()
        return record | {
            "frame": ["one_tile_of_groups", "places"],
            "attributes": "",
            "warps_n": plan.tiles.warps[1],
            "tile_n": plan.tiles.cta[1],
            "n_extent": extent_names(plan)["n"],
            "walk": declared(),
            "find": find(plan, groups, 1, "b_m", "find_together"),
            "of_group": ", ".join(f"{name} = {value}" for name, value in held),
        }
    if plan.key_tiles is not None and plan.launch.persistent:
        return record | _ranges(plan)
    if plan.key_tiles is not None:
        return record | _one_range(plan, plan.key_tiles)
    if not plan.launch.persistent:
        return record | {
            "frame": ["one_tile", "places"],
            "attributes": "",
            "warps_n": plan.tiles.warps[1],
            "own_matrix": rounds,
            "matrix": matrix_coordinates(plan.batches),
            "inside": tile_domain.alone(plan),
        }
    return record | _persistent(plan)


def _one_range(plan: KernelPlan, visited: KeyTiles) -> dict[str, Any]:
    """One tile of rows of a block, with the tiles of keys that it visits."""
    first, number = visited.of_rows()
    columns = plan.tiles.warps[1]
    agents, start = f"w_m = warp / {columns}, w_n = warp % {columns}", []
    if plan.schedule.specialised:
        agents, start = f"group = warp / {plan.device.warpgroup_warps}", ["barriers", "start_block"]
    return {
        "frame": ["one_range", *start, "places"],
        "attributes": "",
        "rows": row_order.one_tile(plan),
        "agents": agents,
        "key_bounds": key_bounds(plan),
        "part_of_keys": PART if visited.part else "",
        "key_first": first,
        "key_count": number,
        **_barrier_frame(plan),
    }


def _ranges(plan: KernelPlan) -> dict[str, Any]:
    """Persistent blocks whose tiles of rows visit tiles of keys of their own."""
    return {
        "frame": ["ranges", "barriers", "start_block", "places"],
        "attributes": "",
        "rows": row_order.of_persistent(plan),
        "group_warps": plan.device.warpgroup_warps,
        **_barrier_frame(plan),
    }


def _barrier_frame(plan: KernelPlan) -> dict[str, Any]:
    """What initialises the barriers."""
    return {
        "barrier_inits": [_init(plan.buffer(p.buffer), p) for p in plan.syncs if p.buffer],
        "maps": [a.name for a in plan.arguments if a.kind == "map"],
        "first_producer_thread": plan.places[0].first_warp * plan.device.warp_size,
    }


def _persistent(plan: KernelPlan) -> dict[str, Any]:
    rows, columns = plan.schedule.cluster.m, plan.schedule.cluster.n
    blocks = plan.launch.blocks
    run = plan.tiles.run
    tile = plan.match.box.along_m(plan.tiles.cta[0])
    lines, items = _items(plan, tile * rows, plan.tiles.cta[1] * columns * run)
    clustered = blocks > 1
    frame = plan.synchronised.frame
    start = {"none": [], "block": ["start_block"], "cluster": ["start_cluster"]}[frame.begin]
    end = ["end_cluster"] if frame.end == "cluster" else []
    called = "clusters of tiles" if rows * columns > 1 else "tiles"
    shared: list[str] = []
    if plan.tiles.last:
        shared, items = last_round.counted(plan.tiles.split, items)
        called = f"{plan.tiles.split} tiles of a block each, then tiles that clusters share"
    return {
        "frame": ["persistent", "barriers", *start, "places", *end],
        "attributes": f"__cluster_dims__({blocks}, 1, 1) " if clustered else "",
        "rank": [f"const int rank = blockIdx.x % {blocks};"] if clustered else [],
        "items": called,
        "shared": shared,
        "run": f" * {run}" if run > 1 else "",
        "cluster_blocks": blocks,
        "group_warps": plan.device.warpgroup_warps,
        "counted": lines,
        "all_items": items,
        "inside": tile_domain.of_block(plan),
        **_barrier_frame(plan),
    }


def _items(plan: KernelPlan, super_m: int, super_n: int) -> tuple[list[str], str]:
    """How many tiles there are, or clusters of them: lines that count, and how many in all."""
    sections = plan.of(Locate)[0].sections
    if sections:
        return counted(plan, sections, (super_m, super_n))
    columns = f"({extent_names(plan)['n']} + {super_n - 1}) / {super_n}"
    matrices = "".join(f" * {size_name(extent)}" for extent in plan.launch.batches)
    line = f"const int tiles_m = {_row_tiles(plan, super_m)}, tiles_n = {columns};"
    lines = [line, *tile_domain.counted(plan, matrices)]
    return lines, f"tiles_m * tiles_n{matrices}"


def _row_tiles(plan: KernelPlan, tile: int) -> str:
    """Tiles along m: of clusters, and of all groups."""
    if plan.match.groups:
        return count(plan, plan.match.groups, plan.schedule.cluster.m)
    return f"({extent_names(plan)['m']} + {tile - 1}) / {tile}"


def _init(buffer: Buffer, placed: Placed) -> str:
    address = f"shared + {buffer.offset} + {buffer.slot_bytes} * slot"
    loop = f"for (int slot = 0; slot < {buffer.slots * buffer.owners}; ++slot)"
    return f"{loop} barrier_init({address}, {placed.sync.arrivals});  // {placed.name}"
