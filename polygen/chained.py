"""Which programs are chains of products, which of their sizes are numbers, and how they match.

A chain is rewritten as one loop over keys (`polygen.rewrite.chain`); what is no chain goes the way
of all others. `polygen.fit_chain` decides its schedule.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from polygen.errors import InvarianceError, UnsupportedProgram
from polygen.frontend.program import (
    Argument,
    Contraction,
    Dim,
    Extent,
    Program,
    Statement,
    Tensor,
)  # fmt: skip
from polygen.poly.chain_match import ChainMatch, match_chain
from polygen.poly.realign import make_operands, program_behind, with_digits_by_rows
from polygen.poly.supported import require_rows_known
from polygen.rewrite.chain import chain, products_in_chain
from polygen.rewrite.joined_sums import joined_sums
from polygen.rewrite.kept_axes import with_kept_axes
from polygen.rewrite.layers import read_again, stages
from polygen.rewrite.one_axis import over_one_axis
from polygen.rewrite.read_by_index import operands_by_index
from polygen.rewrite.rest import with_rest
from polygen.rewrite.rows_first import rows_first

_MOST_CHAINS = 64


def one_product(program: Program) -> Program:
    """The chain with its sums over several axes, or over parts of one, as one product each."""
    return joined_sums(over_one_axis(with_kept_axes(program)))


def is_chain(program: Program) -> bool:
    """Whether a product of a program reads what another sums, and is no rest of a third's sums.

    Raises:
        UnsupportedProgram: it nearly is.
    """
    program = one_product(program)
    return products_in_chain(program) is not None and with_rest(program).rest is None


def whole_dims(program: Program) -> tuple[str, ...]:
    """The sizes that a chain's kernel has to know as numbers: its tile holds the whole of them.

    Where there is no such kernel there are none, and whoever would make it says so.
    """
    program = one_product(program)
    found = products_in_chain(program)
    try:
        return () if found is None else _whole_dims(program, found[0])
    except UnsupportedProgram:
        return ()


def _whole_dims(program: Program, first: Contraction) -> tuple[str, ...]:
    """The same of a chain, with its first product.

    Raises:
        UnsupportedProgram: it is none.
    """
    sizes = dict(first.domain)
    row = [stage.products[0] for stage in stages(program)]
    if not row:  # two that share sums, and what one of them is made of
        last = [sizes[iterator] for iterator in first.write.iterators[-1:]]
        return tuple(one for one in last if isinstance(one, str))
    every = row if read_again(behind_making(program)) else row[:-1]
    extents = [dict(one.domain)[it] for one in every for it in one.summed]
    extents += [dict(row[-1].domain)[it] for it in row[-1].write.iterators[-1:]]
    return tuple(dict.fromkeys(one for one in extents if isinstance(one, str)))


def with_numbers(program: Program, sizes: Mapping[str, int]) -> Program:
    """A program whose kernel is for some sizes alone, with these as numbers.

    Args:
        program: a chain, or any other, which stays as it is.
        sizes: of its symbolic dims.
    """
    fixed = {name: sizes[name] for name in whole_dims(program) if name in sizes}
    return numbered(program, fixed) if fixed else program


def numbered(program: Program, fixed: Mapping[str, int]) -> Program:
    """A program in which some dims are numbers.

    Args:
        program: any.
        fixed: these dims, by name.
    """

    def dim(extent: Dim) -> Dim:
        return fixed.get(extent, extent) if isinstance(extent, str) else extent

    def tensor(one: Tensor) -> Tensor:
        return replace(one, dims=tuple(map(dim, one.dims)))

    def argument(one: Argument) -> Argument:
        return replace(one, dims=tuple(map(dim, one.dims))) if isinstance(one, Extent) else one

    def statement(one: Statement) -> Statement:
        domain = tuple((iterator, dim(extent)) for iterator, extent in one.domain)
        if isinstance(one, Contraction):
            return replace(one, domain=domain)
        return replace(one, domain=domain, args=tuple(map(argument, one.args)))

    return replace(
        program,
        inputs=tuple(map(tensor, program.inputs)),
        outputs=tuple(map(tensor, program.outputs)),
        statements=tuple(map(statement, program.statements)),
    )


@functools.lru_cache(maxsize=_MOST_CHAINS)
def as_made(program: Program) -> Program:
    """A chain with its operands as the launch before its kernel makes them, where they are
    computed: pointwise ones (`polygen.poly.prologue`), and those with folds over their own rows,
    which `Program.first` names.

    Raises:
        UnsupportedProgram: no launch makes them.
    """
    if program.first:
        return program
    program = operands_by_index(one_product(program))
    return with_digits_by_rows(rows_first(program) or program)


def behind_making(program: Program) -> Program:
    """The chain that runs behind the launch that makes its operands; itself where none is made."""
    program = as_made(program)
    return program_behind(program, make_operands(program))


def matched(program: Program, *, behind: bool = False) -> ChainMatch:
    """A chain in the kernel's dims, behind the launch that makes its operands.

    Args:
        program: the chain.
        behind: as for `match_chain`.

    Raises:
        UnsupportedProgram: no loop over keys runs it; with the dependence. Or rows are read by
            index.
    """
    return _matched(behind_making(program), behind=behind)


@functools.lru_cache(maxsize=_MOST_CHAINS)
def _matched(program: Program, *, behind: bool) -> ChainMatch:
    """The same of a chain whose operands are arguments."""
    require_rows_known(program)
    found = chain(program)
    assert found is not None
    if program.invariant:
        raise InvarianceError(
            "a chain of products",
            where=f"{program.name}, invariant in {', '.join(program.invariant)}",
            why="in which order its keys enter the sums is not proved for all sizes at once",
            nearest="Leave invariant out",
        )
    return match_chain(found, behind=behind)
