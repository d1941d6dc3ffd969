"""The rewrites of programs that are no chain, in their order; a program to which none applies is
its own.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Program
from polygen.frontend.shapes import check_matmul_dtypes
from polygen.rewrite.batch_sums import batches_in_sums
from polygen.rewrite.block_factors import factors_behind
from polygen.rewrite.even_sections import even_sections
from polygen.rewrite.kept_axes import with_kept_axes
from polygen.rewrite.norms import norms_behind
from polygen.rewrite.rest import with_rest
from polygen.rewrite.rows_first import rows_first
from polygen.rewrite.turned import turned

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
            knows, and that no launch before it makes; or three products of which one reads
            another's sums are no product and the rest of its sums.
    """
    if program.turned:
        return program
    program = with_kept_axes(program)
    found, order = even_sections(turned(_rewritten(program))), program.in_order
    return found if found.in_order == order else replace(found, in_order=order)


def _rewritten(program: Program) -> Program:
    """The same, of operands as they lie."""
    found = batches_in_sums(with_rest(program))
    if found.first:
        return factors_behind(found)
    try:
        return factors_behind(_of_types_that_meet(norms_behind(found)))
    except UnsupportedProgram as reason:
        made = _made_first(found, reason)
        if made is None:
            raise
        return factors_behind(made)


def _of_types_that_meet(program: Program) -> Program:
    """The same; arguments that meet where a norm was left it, which has no type of its own.

    Raises:
        DTypeError: no tensor core multiplies what two arguments hold.
    """
    given = {tensor.name: tensor.dtype for tensor in program.inputs}
    for product in program.contractions:
        if {access.name for access in product.reads} <= given.keys():
            first, second = ((access.name, given[access.name]) for access in product.reads)
            check_matmul_dtypes(first, second)
    return program


@functools.lru_cache(maxsize=_MOST)
def made_first(program: Program) -> Program | None:
    """The program whose operands with folds over their own rows a launch before the kernel makes.

    Returns:
        None if there are none, or none that it makes.
    """
    try:
        found = rows_first(batches_in_sums(with_rest(program)))
    except UnsupportedProgram:
        return None
    return None if found is None else factors_behind(found)


def _made_first(program: Program, reason: UnsupportedProgram) -> Program | None:
    """The same of what leaves no sum; with both reasons where it is refused as well."""
    try:
        return rows_first(program)
    except UnsupportedProgram as other:
        raise UnsupportedProgram(
            reason.what,
            where=reason.where,
            why=f"{reason.why}; and {other.what}: {other.why}",
            nearest=other.nearest,
        ) from other
