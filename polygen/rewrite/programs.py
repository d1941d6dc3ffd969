"""The rewrites of programs that are no chain, in their order; a program to which none applies is
its own.
"""

from __future__ import annotations

import functools

from polygen.frontend.program import Program
from polygen.rewrite.batch_sums import batches_in_sums
from polygen.rewrite.block_factors import factors_behind
from polygen.rewrite.norms import norms_behind
from polygen.rewrite.rest import with_rest

ASSUMED = (
    "reals are summed in another order, and factors that are the same for a row, or for a block of "
    "k, are applied on the other side of the rounding of its elements"
)
_MOST = 64  # programs


@functools.lru_cache(maxsize=_MOST)
def rewritten(program: Program) -> Program:
    """The program that is generated.

    Raises:
        UnsupportedProgram: a product multiplies what depends on folds in a way that no rewrite
            knows; or three products of which one reads another's sums are no product and the rest
            of its sums.
    """
    return factors_behind(norms_behind(batches_in_sums(with_rest(program))))
