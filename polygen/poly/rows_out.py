"""Outputs that are numbers of rows of operands as polyhedra: which tile stores which.

    y1[z,i] = the result of row i of matrix z     leave_y1[z,i] -> the block of its row and matrix,
                                                  first along every dim that it does not depend on

All tiles along n have the rows of an operand that carries m, and fold them alike; so do all
matrices of a batch along which the operand is one. Of these the first stores the result, and of its
agents that have the row the first (`polygen.poly.ring_tallies`).

1. Every element of the array is one instance's: the access relation is a bijection.
2. Instances are tiled like all others, so that each has one tile statement of one block, and those
   of a whole tile are what a block executes (`polygen.poly.mapping`). That threads store just these
   is proved of the text (`polygen/emit/proofs/tally.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.elements import Along
from polygen.poly.legality import Proof
from polygen.poly.match import Match
from polygen.poly.ring_folds import RingFolds, RingOutput
from polygen.poly.scop import Scop, space
from polygen.poly.tiling import Tiling, whose_turn
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class RowElements:
    """Instances that store numbers of rows.

    Attributes:
        model: the program's polyhedra with these.
        blocks: instance -> thread block, isl text.
        tiles: instance -> the tile statement that executes it in a block's first tile, isl text.
        whole: instances of a whole first tile, isl text.
        proofs: that they are the elements of arrays.
    """

    model: Scop
    blocks: str
    tiles: str
    whole: str
    proofs: tuple[Proof, ...]


def row_elements(
    scop: Scop,
    matched: Match,
    tallies: tuple[RingFolds, ...],
    tiles: Tiling,
    schedule: Schedule,
) -> RowElements | None:
    """The program with what stores numbers of rows; None where nothing does.

    Args:
        scop: the program.
        matched: its products.
        tallies: what is folded of its operands.
        tiles: the tile hierarchy.
        schedule: whose blocks.

    Raises:
        VerifyError: an element of an output is stored by no instance, or by several.
    """
    found = [(ring, output) for ring in tallies for output in ring.outputs]
    if not found:
        return None
    prefix = space(scop.parameters)
    positive = " and ".join(f"{name} >= 1" for name in scop.parameters) or "1 = 1"
    context = isl.Set(f"{prefix}{{ : {positive} }}")
    domains, blocks, owners, whole, proofs = [], [], [], [], []
    grid = {"m": "b_m", "n": "b_n", "k": "k_tile"}
    for ring, output in found:
        at = _coordinates(scop, matched, ring.role, output)
        instance = f"leave_{output.tensor.name}[{','.join(at.values())}]"
        extents = {**dict(matched.batches), "m": matched.m, "n": matched.n}
        bounds = (f"0 <= {name} < {extents[dim]}" for dim, name in at.items())
        domain = f"{instance} : {' and '.join(bounds)}"
        proofs.append(_prove_once(prefix, context, domain, output, at))
        e = tiles.expressions(at.get("m", "0"), at.get("n", "0"), "0")
        place = [at.get(dim, "0") for dim, _ in matched.batches]
        place += [e[grid[dim]] for dim in schedule.loops.grid]
        domains.append(domain)
        blocks.append(f"{instance} -> [{','.join(place)}]")
        owners.append(f"{instance} -> leave_{ring.ring}[{','.join(_owner(e, tiles, schedule))}]")
        rows = tiles.cta[0] if ring.role == "m" else tiles.row * tiles.run
        whole.append(f"{instance} : 0 <= {at[ring.role]} < {rows}")
    more = isl.UnionSet(f"{prefix}{{ {'; '.join(domains)} }}").intersect_params(context)
    return RowElements(
        replace(scop, domain=scop.domain.union(more)),
        "{ " + "; ".join(blocks) + " }",
        "{ " + "; ".join(owners) + " }",
        "{ " + "; ".join(whole) + " }",
        tuple(proofs),
    )


def _coordinates(scop: Scop, matched: Match, role: str, output: RingOutput) -> dict[str, str]:
    """The dims that an output depends on, and its rows if there is one, each with a coordinate.

    Coordinates are called as no size is.
    """
    dims = [dim for dim, _ in (*matched.batches, ("m", 0), ("n", 0))]
    end = ""
    while any(f"{dim}{end}" in scop.parameters for dim in dims):
        end += "_"
    own = {role, *(one.dim for one in output.index)}
    return {dim: f"{dim}{end}" for dim in dims if dim in own}


def _owner(e: dict[str, str], tiles: Tiling, schedule: Schedule) -> list[str]:
    """The agent that stores a number, and with roles its tile."""
    warp = f"{tiles.warps[1]}*{e['w_m']} + {e['w_n']}"
    if not schedule.specialised:
        return [warp]
    if schedule.in_turns:
        warp = whose_turn(tiles, schedule, e["i"])
    return [warp, e["i"]]


def _prove_once(
    prefix: str, context: isl.Set, domain: str, output: RingOutput, at: dict[str, str]
) -> Proof:
    """Prove that instances and elements of an array are one to one.

    Raises:
        VerifyError: with an element that is stored by none, or by two.
    """
    tensor = output.tensor
    instance = domain.partition(" : ")[0]
    index = ",".join(_place(one, at) for one in output.index)
    stores = isl.Map(f"{prefix}{{ {instance} -> {tensor.name}[{index}] }}")
    stores = stores.intersect_domain(isl.Set(f"{prefix}{{ {domain} }}").intersect_params(context))
    axes = [f"a{number}" for number in range(len(tensor.dims))]
    bounds = (f"0 <= {axis} < {extent}" for axis, extent in zip(axes, tensor.dims, strict=True))
    every = f"{tensor.name}[{','.join(axes)}] : {' and '.join(bounds) or '1 = 1'}"
    array = isl.Set(f"{prefix}{{ {every} }}").intersect_params(context)
    missing = array.subtract(stores.range())
    if not missing.is_empty():
        raise VerifyError(f"{isl.sample_point(missing)} is stored by no tile", where=tensor.name)
    if not stores.is_bijective() or not stores.range().is_subset(array):
        raise VerifyError(f"elements of {tensor.name} are stored twice", where=tensor.name)
    return Proof("every result of rows is stored by one tile, the first that has it", tensor.name)


def _place(one: Along, at: dict[str, str]) -> str:
    return at[one.dim] if one.dim else "0"
