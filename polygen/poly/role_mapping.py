"""`Scop` x `Schedule` -> the trees of a specialised block: roles, barriers between them, proofs.

1. The element statements are tiled and checked as for every kernel.
2. What the roles do to the rings becomes role programs, for the main loop and for the epilogue.
3. Barriers are derived from the dependences between roles, and proved.
4. Each role gets its tree. The consumer's is checked against the dependences through its sums, and
   against what its releases claim about products that are still running.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.legality import Proof, check_order
from polygen.poly.role_barriers import Sync
from polygen.poly.role_tree import RoleShape, RoleTree, role_trees
from polygen.poly.roles import panel_program, ring_program
from polygen.poly.scop import must_flow, reuse_dependences
from polygen.poly.synchronise import derive
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Panels:
    """How an epilogue moves matrices: in panels of 64 rows by `columns` columns.

    `columns` is 0 when results go straight from registers to memory.
    """

    columns: int
    operands: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleMapping:
    """The roles of a block, with what was derived and proved."""

    trees: tuple[RoleTree, ...]
    syncs: tuple[Sync, ...]
    consumers: int  # warpgroups
    panels: Panels
    proofs: tuple[Proof, ...]


@lru_cache(maxsize=64)
def map_roles(schedule: Schedule, tiles: Tiling, panels: Panels) -> RoleMapping:
    """Derive and prove the roles of a block.

    Args:
        schedule: stages, form, cluster, epilogue.
        tiles: the tile hierarchy; `tiles.warp` is one consumer warpgroup's.
        panels: what the epilogue moves.

    Raises:
        IllegalSchedule: no barriers make the schedule legal; with a witness.
    """
    pingpong = schedule.roles.form == "pingpong"
    consumers = 2 if pingpong else tiles.warp_count
    in_flight = schedule.pipeline.in_flight
    cluster = (schedule.cluster.m, schedule.cluster.n)
    ring = ring_program(schedule.pipeline.stages, consumers, cluster, pingpong=pingpong)
    syncs, proofs = derive(ring, in_flight)
    count = 0
    if panels.columns:
        epilogue = panel_program(
            panels.operands,
            panels.outputs,
            schedule.epilogue.slots,
            schedule.epilogue.prefetch,
            consumers,
        )
        more, shown = derive(epilogue)
        syncs, proofs = syncs + more, proofs + shown
        count = tiles.atoms[0] * (tiles.warp[1] // panels.columns)
    shape = RoleShape(
        tiles.k_steps, tiles.atoms[0], count, in_flight, pingpong, panels.operands, syncs
    )
    trees = role_trees(shape)
    checked = _check_consumer(trees[-1], shape)
    return RoleMapping(trees, syncs, consumers, panels, (*proofs, *checked))


def _check_consumer(tree: RoleTree, shape: RoleShape) -> tuple[Proof, ...]:
    """The consumer's own order: its sums, and its releases."""
    read = isl.Schedule(tree.tree)
    time = read.get_map().intersect_domain(read.get_domain())
    return (_check_sums(time, shape), *_check_releases(time, shape))


def _check_sums(time: isl.UnionMap, shape: RoleShape) -> Proof:
    """No sum is read before its last product, or overwritten by the next tile before its last read.

    Raises:
        IllegalSchedule: with a witness.
    """
    prefix = "[k_tiles, tiles, turn] -> "
    product = "multiply[i,k,s,m]"
    if shape.panels:
        per_block = shape.panels // shape.blocks
        reader, cell = "finish[i,p]", f"sum[floor(p/{per_block})]"
        order = f"{reader} -> [i,1,p,0]"
    else:
        reader, cell = "store[i,m]", "sum[m]"
        order = f"{reader} -> [i,1,m,0]"
    domain = time.domain()

    def relation(text: str) -> isl.UnionMap:
        return isl.UnionMap(f"{prefix}{{ {text} }}").intersect_domain(domain)

    writes = relation(f"{product} -> sum[m]")
    reads = relation(f"{product} -> sum[m]; {reader} -> {cell}")
    sequential = relation(f"{product} -> [i,0,k,s]; {order}")
    needed = must_flow(reads, writes, sequential)
    return check_order(
        needed.union(reuse_dependences(reads, writes, sequential)),
        time,
        where="consumer",
        claim="sums are complete before they are read and read before they are overwritten",
        field="loops",
    )


def _check_releases(time: isl.UnionMap, shape: RoleShape) -> tuple[Proof, ...]:
    """When a slot is released, at most `in_flight` products have been issued after its last one.

    Raises:
        VerifyError: more have; the wait before the release would let the slot's own products run.
    """
    prefix = "[k_tiles, tiles, turn] -> "
    proofs = []
    for barrier in shape.mbarriers(signals="multiply"):
        name = f"arrive_{barrier.name}"
        later = isl.UnionMap(f"{prefix}{{ {name}[i,k] -> multiply[i,j,s,m] : j > k }}")
        issued = isl.UnionMap.lex_gt_union_map(time, time).intersect(later)
        allowed = isl.UnionMap(
            f"{prefix}{{ {name}[i,k] -> multiply[i,j,s,m] : k < j <= k + {shape.in_flight} }}"
        )
        wrong = issued.subtract(allowed)
        if not wrong.is_empty():
            raise VerifyError(
                f"a slot is released too early: {isl.sample_pair(wrong)}", where="consumer"
            )
        proofs.append(
            Proof(
                "a slot is released only when all its products have completed",
                f"{shape.in_flight} later product(s) may be in flight",
            )
        )
    return tuple(proofs)
