"""Sets and relations of texts in which a parameter is another number in every iteration of a loop.

Texts say `k_tiles`; what is emitted has it as a variable, which changes between two iterations of
an outermost loop `i`. As relations over instances it is a function of `i`, and isl knows none that
is free. But every claim about order is about instances a few iterations apart: what a path leads
through lies between its ends. So a claim is proved for every function that has any numbers in a
*window* of iterations one after another, wherever that begins, and goes on with the first of them
before it and with the last behind it: `Varying.said`. Whatever the numbers of a kernel are, between
the ends of a claim they are those of such a function.

That ends of claims are no further apart than the window is wide is checked (`check_window`), of all
dependences, of all barriers with the phases between them, and of versions that follow each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.tile_program import SyncStatement, TileStatement, Varying

_PARAM, _SET, _IN = isl.dim_type.param, isl.dim_type.set, isl.dim_type.in_


def positions(
    varying: Varying, *known: Iterable[TileStatement | SyncStatement]
) -> Mapping[str, int]:
    """Where instances have the loop: leaf -> coordinate; leaves outside of it are left out."""
    return {
        leaf.name: len(leaf.place.agents) + leaf.loops.index(varying.loop)
        for leaf in itertools.chain(*known)
        if varying.loop in leaf.loops
    }


def numbered(varying: Varying, relation: isl.Map, position: int | None) -> isl.Map:
    """A relation from instances, whose parameter is the number of the instance's iteration.

    Args:
        varying: the parameter.
        relation: from instances.
        position: which coordinate of theirs is the loop; None: they are outside of it.

    Raises:
        VerifyError: they are outside, and the relation depends on the parameter.
    """
    if not _involved(varying, relation, position):
        return _without(varying, relation)
    assert position is not None
    name = relation.get_tuple_name(_IN)
    number = _number(varying, relation.dim(_IN), position)
    return _without(varying, relation.intersect_domain(number.set_tuple_name(name))).coalesce()


def numbered_set(varying: Varying, instances: isl.Set, position: int | None) -> isl.Set:
    """The same of a set of instances."""
    if not _involved(varying, instances, position):
        return _without(varying, instances)
    assert position is not None
    number = _number(varying, instances.dim(_SET), position)
    named = number.set_tuple_name(instances.get_tuple_name())
    return _without(varying, instances.intersect(named)).coalesce()


def numbered_context(varying: Varying, context: isl.Set) -> isl.Set:
    """What is known of parameters, of the numbers instead of the one."""
    parameters = ",".join(varying.parameters)
    known = isl.Set(f"[{parameters}] -> {{ : {varying.context} }}")
    return _without(varying, context).intersect(known)


_Sets = TypeVar("_Sets", isl.Set, isl.Map)


def _involved(varying: Varying, instances: isl.Set | isl.Map, position: int | None) -> bool:
    place = instances.find_dim_by_name(_PARAM, varying.name)
    involved = place >= 0 and bool(instances.involves_dims(_PARAM, place, 1))
    if involved and position is None:
        raise VerifyError(
            f"{varying.name} is another number in every iteration of {varying.loop}, and "
            f"{instances} is in none",
            where="refinement",
        )
    return involved


def _without(varying: Varying, instances: _Sets) -> _Sets:
    place = instances.find_dim_by_name(_PARAM, varying.name)
    return instances if place < 0 else instances.project_out(_PARAM, place, 1)


@lru_cache(maxsize=64)
def _number(varying: Varying, size: int, position: int) -> isl.Set:
    """Instances of so many coordinates under the number of their iteration."""
    names = [f"x{n}" for n in range(size)]
    parameters = ",".join((varying.name, *varying.parameters))
    return isl.Set(f"[{parameters}] -> {{ [{','.join(names)}] : {varying.said(names[position])} }}")
