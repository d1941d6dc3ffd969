"""That claims about iterations with numbers of their own are about no more than a window has.

What is proved for any numbers in a window holds whatever the numbers are (`polygen.poly.varying`),
as far as the two ends of a claim lie in one window. Ends are the instances of a dependence, those
of a wait and of what it is for, and those of two waits for a barrier that share a slot or an agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.happens_before import Order, signals_of
from polygen.poly.tile_program import SyncStatement, TileStatement, Varying
from polygen.poly.varying import positions
from polygen.poly.versions import Dependence

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


def check_window(
    order: Order,
    needs: tuple[Dependence, ...],
    known: tuple[TileStatement | SyncStatement, ...],
) -> None:
    """Check that both ends of what is proved lie in one window.

    Args:
        order: of the places' trees.
        needs: the dependences.
        known: statements, and leaves that synchronise.

    Raises:
        VerifyError: two instances are further apart; with them.
    """
    varying = order.model.program.varying
    if varying is None:
        return
    at = positions(varying, known)
    for claim in (*(need.relation for need in needs), *_claims(order)):
        wrong = _apart(varying, claim, at)
        if not wrong.is_empty():
            raise VerifyError(
                f"window: {isl.sample_pair(wrong)} are more than {varying.window - 1} iterations "
                f"of {varying.loop} apart, and {varying.name} is proved for {varying.window} that "
                "follow each other",
                where="refinement",
            )


def _claims(order: Order) -> Iterator[isl.Map]:
    for sync in order.syncs:
        if sync.kind not in ("mbarrier", "turn"):
            continue
        for signal, _ in signals_of(sync):
            yield order.relation(sync, signal)
        place = order.leaves[sync.wait].place
        # What `phases` compares of a barrier, or `counters` of turns.
        steps = sync.slots * (2 if sync.skips else 1)
        steps = place.counts[-1] if sync.kind == "turn" else steps
        waits = order.waits_for(sync)
        yield waits.apply_range(order.model.next(sync.buffers[0], steps)).apply_range(
            waits.reverse()
        )


def _apart(varying: Varying, claim: isl.Map, at: Mapping[str, int]) -> isl.Map:
    """The pairs of a relation between instances that no window has both ends of."""
    first, second = (at.get(str(claim.get_tuple_name(side))) for side in (_IN, _OUT))
    if first is None or second is None:
        return claim.subtract(claim)
    far = isl.Map.universe(claim.get_space())
    space = isl.LocalSpace.from_space(far.get_space())
    less = isl.Constraint.inequality_alloc(space).set_constant_val(isl.Val(-varying.window))
    less = less.set_coefficient_val(_OUT, second, isl.Val(1))
    less = less.set_coefficient_val(_IN, first, isl.Val(-1))
    return claim.intersect(far.add_constraint(less))
