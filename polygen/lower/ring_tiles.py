"""Whose tiles a plan's rings hold, and how large they are: of one product, or of a chain's two."""

from __future__ import annotations

from polygen.lower.plan import KernelPlan
from polygen.poly.chain_match import VALUES, ChainMatch
from polygen.poly.key_tiles import FIRST
from polygen.poly.layer_match import ROWS
from polygen.poly.operand import Operand
from polygen.poly.register_operands import tile_extents
from polygen.poly.tiling import Tiling


def operands_of(plan: KernelPlan) -> dict[str, Operand]:
    """The operands by their names, those of both products of a chain."""
    return dict((plan.match if plan.chained is None else plan.chained).operands)


def extents_of(plan: KernelPlan, name: str) -> tuple[int, int]:
    """Elements of an operand's tile: along the dim of its product's result, and along the sum."""
    if plan.chained is None:
        return tile_extents(plan.match.operand(name), plan.tiles)
    return ring_extents(plan.chained, name, plan.tiles)


def ring_extents(found: ChainMatch, name: str, tiles: Tiling) -> tuple[int, int]:
    """Elements of an operand's tile: along the dim of its product's result, and what is summed.

    Args:
        found: the chain, with the layers in front of it.
        name: of the ring.
        tiles: rows, columns of results, and keys.
    """
    (rows, columns, keys), step = tiles.cta, tiles.atom[2]

    def whole(count: int) -> int:
        return -(-count // step) * step

    if name == VALUES:
        return columns, keys
    for one in found.layers:
        if name in dict(one.rights):
            return whole(one.columns), whole(one.depth)
    if name == ROWS:
        return rows, whole(found.layers[0].depth if found.layers else found.depth)
    return keys, whole(found.depth)


def columns_of(plan: KernelPlan, right: str) -> int:
    """Columns of a product's sums that are not those of a warp's tile, by its right operand; or 0.

    Those of scores are keys, those of a layer its own.
    """
    found = plan.chained
    if found is None or right == VALUES:
        return 0
    return extents_of(plan, right)[0]


def steps_of(plan: KernelPlan, right: str) -> int:
    """Instructions along what a product sums over in a tile, by its right operand."""
    if plan.chained is None:
        return plan.tiles.k_steps
    return extents_of(plan, right)[1] // plan.atom.k


def own_of(plan: KernelPlan, name: str) -> int:
    """Elements along m or n that a warp has of the tile: of a chain's keys and columns all."""
    operand = operands_of(plan)[name]
    if plan.chained is not None and operand.role == "n":
        return extents_of(plan, name)[0]
    return plan.tiles.warp["mn".index(operand.role)]


def starts_of(plan: KernelPlan, name: str, at: dict[str, int]) -> tuple[int, int] | None:
    """Where a chain's tile begins along both, in block `b_m`, `b_n` and tile `k` of its keys.

    Args:
        plan: the kernel.
        name: of the operand.
        at: values of these names, and of the first tile of keys.

    Returns:
        None where the tile hierarchy says it.
    """
    if plan.chained is None:
        return None
    (rows, columns, keys) = plan.tiles.cta
    if any(name in dict(one.rights) for one in plan.chained.layers):
        return 0, 0
    first = at[FIRST] if plan.key_tiles is not None else 0
    key = (first + at["k"]) * keys
    if name == VALUES:
        return at["b_n"] * columns, key
    return (at["b_m"] * rows if operands_of(plan)[name].role == "m" else key), 0
