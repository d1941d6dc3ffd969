"""A scan over the keys is made of parts: each scans its own keys from nothing, then they combine.

    (m, l, o) * (m', l', o') = (M, l c(m, M) + l' c(m', M), o c(m, M) + o' c(m', M)), M = m (+) m'

Whoever holds one part never needs another's: the dependences along the keys of a row, which make
one loop of them, end at the borders of parts. That this gives the same sums follows from algebra:

1. Folds are monoids, so the reference of the whole row is that of its parts' references.
2. c(m, m'') = c(m, m') c(m', m'') and c(m, m) = 1: what was summed under a part's own reference is
   worth, under the row's, what it would be worth if it had been summed there. Sums distribute over
   c; folds that are not rescaled combine as they are.
3. A part without keys has folded nothing, and adds nothing.

The second is the side condition. A correction is a quotient h(m') / h(m) (`separation`), of which
it holds; it is tried on numbers all the same, and where it fails these are the counterexample.
"""

from __future__ import annotations

import math

import numpy as np

from polygen.errors import UnsupportedProgram
from polygen.frontend.monoids import MONOIDS
from polygen.rewrite.chain import Chain
from polygen.rewrite.separation import Factor, correction, ratio

_TRIED = ((0.25, 0.75, 1.5), (-1.0, 0.5, 0.625), (0.3, 0.4, 2.1))  # references that grow
_CLOSE = 1e-9  # relative, of f64 arithmetic on numbers near 1


def parts_combine(chain: Chain) -> tuple[str, ...]:
    """Why parts of a chain's keys combine to the whole, in sentences.

    Raises:
        UnsupportedProgram: they do not; with numbers that show it.
    """
    for state in chain.states:
        if len(MONOIDS[state.monoid].identity) != 1 or (state.rescaled and state.monoid != "sum"):
            raise UnsupportedProgram(
                f"parts of {state.value}, the {state.monoid} of a row",
                where=chain.scores.name,
                why="states of parts combine as one number each, those that are rescaled as sums",
                nearest="Leave tile.part out",
            )
    if not chain.reference:
        return ("parts of the keys add up: nothing is rescaled",)
    for m, later, last in _TRIED:
        whole = correction_number(chain.correction, m, last)
        steps = correction_number(chain.correction, m, later) * correction_number(
            chain.correction, later, last
        )
        same = correction_number(chain.correction, m, m)
        if not (math.isclose(whole, steps, rel_tol=_CLOSE) and math.isclose(same, 1.0)):
            raise UnsupportedProgram(
                f"parts of the keys under the correction {correction(chain.correction)}",
                where=chain.scores.name,
                why=f"c({m}, {last}) = {whole:g}, and c({m}, {later}) c({later}, {last}) = "
                f"{steps:g}: what a part has summed is worth something else in the row",
                nearest="Leave tile.part out: one loop over all keys",
            )
    return (
        f"parts of the keys have a {chain.reference} of their own each",
        "(m, l, o) of parts combine: c(m, m'') = c(m, m') c(m', m''), and sums distribute over c",
    )


def correction_number(factors: tuple[Factor, ...], before: float, after: float) -> float:
    """c(before, after)."""
    with np.errstate(all="ignore"):
        return ratio(factors, before, after)
