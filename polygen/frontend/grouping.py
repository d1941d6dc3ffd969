"""The statements of products by groups of rows (`polygen.frontend.groups`).

1. Statements are traced as if there were one group: over rows, columns and what is summed.
2. Then each runs over the groups as well. Values have an axis for the group; an axis of an argument
   or an output that runs along rows is read and written at row i of group g (`Within`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from polygen.errors import DTypeError, ShapeError, UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import S32
from polygen.frontend.forms import Form
from polygen.frontend.indices import Place, places_of
from polygen.frontend.nodes import Dims, FoldNode, GroupNode, InputNode, Node, ProductNode, read_by
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Contraction,
    Coordinate,
    Dim,
    Gathered,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
    Within,
)
from polygen.frontend.shapes import ProductAxes, dim_hint, shape_text

Named = tuple[str, Dims]

_RANKS = (2, 3, 1)  # of x, w and ends
_WANTED = "grouped_matmul(x, w, ends) takes x[T,K], w[E,K,N] and ends[E]"


# --- what is traced ------------------------------------------------------------------------------
def require_ends(node: Node) -> InputNode:
    """The argument that says where groups end.

    Raises:
        UnsupportedProgram: it is computed.
        DTypeError: its elements are not s32.
    """
    if not isinstance(node, InputNode):
        raise UnsupportedProgram(
            f"groups end at {describe(node)}, which is computed",
            where="ends",
            why="the kernel reads the ends of groups from memory",
            nearest="Pass them as an argument, s32[E]",
        )
    if node.dtype != S32:
        raise DTypeError(
            f"{node.tensor.name} is {node.dtype}",
            where="ends",
            why="it counts rows",
            nearest=f"Say s32{shape_text(node.dims)} in the signature, and pass int32",
        )
    return node


def grouped_axes(x: Named, w: Named, ends: Named) -> ProductAxes:
    """The axes of a product by groups: rows, columns, what is summed, groups.

    Args:
        x: how it reads, and its dims: rows and what is summed.
        w: the same: groups, what is summed, columns.
        ends: the same: groups.

    Raises:
        ShapeError: another number of axes, or dims that differ.
    """
    for (text, dims), rank in zip((x, w, ends), _RANKS, strict=True):
        if len(dims) != rank:
            raise ShapeError(
                f"{text} is {shape_text(dims)}",
                where="grouped_matmul",
                why=f"{_WANTED}: {text} has {rank} axes",
                nearest="Give every group a matrix of its own, w[E,K,N]; w.mT of w[E,N,K]",
            )
    (rows, depth), (groups, inner, columns), (count,) = x[1], w[1], ends[1]
    for first, second, what in (
        (depth, inner, f"{x[0]} has {depth} to sum over, {w[0]} has {inner}"),
        (groups, count, f"{w[0]} has {groups} groups, {ends[0]} has {count}"),
    ):
        if first != second:
            raise ShapeError.between(
                first,
                second,
                what,
                where="grouped_matmul",
                why=f"{x[0]} is {shape_text(x[1])}, {w[0]} is {shape_text(w[1])}, "
                f"{ends[0]} is {shape_text(ends[1])}",
                nearest=dim_hint(first, second, stretches=False),
            )
    return ProductAxes((0, 2), (3, 2, 1), (rows, columns), (depth,))


def rows_of_groups(source: Node, ends: InputNode, like: Node) -> tuple[InputNode, Dims]:
    """The argument with a row for every group, and the dims of these as rows of `like`.

    Raises:
        UnsupportedProgram: it is computed.
        ShapeError: not as many rows as there are groups, or `like` has no rows.
    """
    if not isinstance(source, InputNode):
        raise UnsupportedProgram(
            f"{describe(source)} has a row for each group, and is computed",
            where="per_group",
            why="the row of a group is read from memory",
            nearest="Pass it as an argument, and compute with the value that per_group gives",
        )
    name = source.tensor.name
    if len(source.dims) not in (1, 2) or source.dims[0] != ends.dims[0]:
        raise ShapeError(
            f"{name} is {shape_text(source.dims)}, {ends.tensor.name} {shape_text(ends.dims)}",
            where="per_group",
            why="the first axis counts groups",
            nearest=f"Pass {name}[{ends.dims[0]},N], or {name}[{ends.dims[0]}]",
        )
    if len(like.dims) != 2:
        raise ShapeError(
            f"{describe(like)} is {shape_text(like.dims)}",
            where="per_group",
            why="its rows are those in groups",
            nearest="Pass x of grouped_matmul(x, w, ends), or what it gives",
        )
    return source, (like.dims[0], *source.dims[1:])


# --- statements ----------------------------------------------------------------------------------
def ends_of(roots: Iterable[Node]) -> InputNode | None:
    """Where the groups of all that outputs read end; None: nothing is in groups.

    Raises:
        UnsupportedProgram: groups that end at different arguments, values of groups without a
            product by groups, or folds beside them.
    """
    stack, seen, found = list(roots), set[Node](), dict[InputNode, None]()
    product, fold = False, None
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, (ProductNode, GroupNode)) and node.ends is not None:
            found[node.ends] = None
            product = product or isinstance(node, ProductNode)
        if isinstance(node, FoldNode):
            fold = node
        stack += read_by(node)
    if found and fold is not None:
        raise UnsupportedProgram(
            f"{describe(fold)} in a function with rows in groups",
            where="ends",
            why="parts of a fold have places that are known before any group is",
            nearest=f"Return {describe(fold.value)}, and fold it outside of the kernel",
        )
    if len(found) > 1:
        raise UnsupportedProgram(
            f"groups end at {' and at '.join(sorted(one.tensor.name for one in found))}",
            where="ends",
            why="a kernel walks one table of groups",
            nearest="Use the same ends in all products of a function",
        )
    if found and not product:
        raise UnsupportedProgram(
            "per_group in a function whose products are not in groups",
            where="ends",
            why="which group a row is in, a kernel knows from the product it computes",
            nearest="Use it beside grouped_matmul(x, w, ends)",
        )
    return next(iter(found), None)


def in_groups(
    statements: Sequence[Statement], tensors: Sequence[Tensor], ends: InputNode, group: str
) -> tuple[Statement, ...]:
    """The statements over groups of rows.

    Args:
        statements: over rows, columns and what is summed.
        tensors: arguments and outputs.
        ends: where groups end.
        group: the name of the iterator over groups.

    Raises:
        UnsupportedProgram: a statement without rows, rows in steps, or a value at other rows than
            its own.
    """
    rows = next(dict(s.domain)[s.write.iterators[0]] for s in statements if _is_grouped(s, group))
    names = frozenset(tensor.name for tensor in tensors)
    apart = _of_all_groups(statements) | _of_all_rows(statements, names, group, rows)
    over = _Groups(ends, group, names, apart)
    return tuple(over.statement(one, rows) for one in statements)


def _of_all_groups(statements: Sequence[Statement]) -> frozenset[str]:
    """The values that operands without rows are computed from, as matrices of groups are."""
    wanted = [
        access.name
        for one in statements
        if isinstance(one, Contraction)
        for access in one.reads
        if one.write.iterators[0] not in access.iterators
    ]
    return frozenset(one.write.name for one in needed(statements, wanted))


def _of_all_rows(
    statements: Sequence[Statement], tensors: frozenset[str], group: str, rows: Dim
) -> frozenset[str]:
    """The values that operands with rows are computed from, where they are the same whatever
    groups these are of: nothing but products and each other reads them.
    """
    found = {one.write.name for one in statements if _is_alike(one, tensors, group, rows)}
    values = {one.write.name for one in statements}
    while True:
        apart = {
            name
            for one in statements
            for name in (one.write.name, *(access.name for access in one.reads))
            if name in found
            and (
                any(access.name in values - found for access in one.reads)
                if name == one.write.name
                else not isinstance(one, Contraction) and one.write.name not in found
            )
        }
        if not apart:
            return frozenset(found)
        found -= apart


def _is_alike(one: Statement, tensors: frozenset[str], group: str, rows: Dim) -> bool:
    """Whether a statement computes rows in their order, of arguments at the same or at any that
    vectors name, and of nothing that groups have.
    """
    row, extent = one.domain[0]
    if not isinstance(one, Pointwise) or extent != rows or one.write.index[0] != row:
        return False
    indices = [index for access in one.reads for index in access.index]
    indices += [arg.index for arg in one.args if isinstance(arg, Coordinate)]
    places = [place for index in indices for place in places_of(index)]
    met = {it for p in places if isinstance(p, Form) for it in p.iterators}
    met |= {p.iterator for p in places if isinstance(p, Affine)}
    return one.write.name not in tensors and group not in places and not {row, group} & met


def _is_grouped(statement: Statement, group: str) -> bool:
    return isinstance(statement, Contraction) and any(
        group in access.index for access in statement.reads
    )


class _Groups:
    """Rewrites statements of one program."""

    def __init__(
        self, ends: InputNode, group: str, tensors: frozenset[str], apart: frozenset[str]
    ) -> None:
        self.ends, self.group, self.tensors, self.apart = ends, group, tensors, apart

    def statement(self, one: Statement, rows: Dim) -> Statement:
        """One statement, over the groups as well; as it is where it computes no rows."""
        if one.write.name in self.apart:
            return one
        row, extent = one.domain[0]
        if extent != rows or len(one.write.iterators) != 2:
            raise UnsupportedProgram(
                f"{one.name}: {one} has not the {rows} rows that are in groups",
                where="grouped_matmul",
                why="all of a kernel is computed group by group",
                nearest="Return what has the product's rows and columns",
            )
        domain = ((self.group, self.ends.dims[0]), *one.domain)
        write = self._access(one.write, row)
        if isinstance(one, Contraction):
            lhs, rhs = (self._access(access, row) for access in one.reads)
            return replace(one, domain=domain, write=write, lhs=lhs, rhs=rhs)
        assert isinstance(one, Pointwise)
        args = tuple(self._argument(arg, row) for arg in one.args)
        return replace(one, domain=domain, write=write, args=args)

    def _argument(self, argument: Argument, row: str) -> Argument:
        if isinstance(argument, Coordinate):
            return Coordinate(self._row(argument.index, row))
        return self._access(argument, row) if isinstance(argument, Access) else argument

    def _access(self, access: Access, row: str) -> Access:
        if access.name in self.tensors:
            return Access(access.name, tuple(self._row(index, row) for index in access.index))
        if access.name in self.apart and access.index[1:].count(row) == 0:
            return Access(access.name, tuple(self._row(index, row) for index in access.index))
        if access.name in self.apart or access.index[:1] != (row,):
            raise UnsupportedProgram(
                f"{access} is read at other rows than its own",
                where="grouped_matmul",
                why="a value lives in the rows of its group",
                nearest="Transpose or slice what the function returns, outside it",
            )
        return Access(access.name, (self.group, *access.index))

    def _row(self, index: Index, row: str) -> Index:
        if isinstance(index, Gathered):
            places = tuple(self._place(place, row) for place in index.places)
            return replace(index, places=places)
        return self._place(index, row)

    def _place(self, index: Place, row: str) -> Place:
        met = index.iterators if isinstance(index, Form) else ()
        if row in met or (isinstance(index, Affine) and index.iterator == row):
            raise UnsupportedProgram(
                f"rows in groups are read at {index}",
                where="grouped_matmul",
                why="rows of a group are adjacent",
                nearest="Pass the rows themselves as an argument, or x[rows] with a vector that "
                "names them in the order of the groups",
            )
        return Within(str(index), self.group, self.ends.tensor.name) if index == row else index


def rows_in_groups(program: Program) -> Dim:
    """How many rows all groups and none have, of a program in groups."""
    group = program.in_groups[0].group
    return next(one.domain[1][1] for one in program.statements if one.domain[0][0] == group)


def apart_from_groups(program: Program) -> tuple[Statement, ...]:
    """The statements of a program in groups that compute no rows: operands that groups share, and
    the matrices of all of them.
    """
    group = program.in_groups[0].group
    return tuple(one for one in program.statements if one.domain[0][0] != group)


def one_group(program: Program, number: int, first: int, rows: int) -> Program:
    """What a program in groups computes for one of them, as a program without groups.

    Args:
        program: its statements run over groups and rows.
        number: of the group.
        first: its first row, counted from the first of all.
        rows: how many it has.

    Returns:
        A program of which outputs have `rows` rows; arguments stay whole. What is computed of no
        rows is not in it (`apart_from_groups`), and read as an argument is.
    """
    apart = apart_from_groups(program)
    own = (one for one in program.statements if one not in apart)
    whole = {tensor.name for tensor in program.inputs} | {one.write.name for one in apart}
    return replace(
        program, statements=tuple(_alone(one, number, first, rows, whole) for one in own)
    )


def _alone(one: Statement, number: int, first: int, rows: int, whole: set[str]) -> Statement:
    (group, _), (row, _), *others = one.domain

    def place(of: Place) -> Place:
        if isinstance(of, Within):
            return Affine(of.iterator, 1, first)  # from row 0 on as well: some of the array's
        return number if of == group else of

    def index(of: Index) -> Index:
        if isinstance(of, Gathered):
            return replace(of, places=tuple(map(place, of.places)))
        return place(of)

    def access(given: Access) -> Access:
        if given.name in whole:
            return Access(given.name, tuple(map(index, given.index)))
        if given.indexed_by:  # stored where numbers say
            return Access(given.name, tuple(map(index, given.index)))
        return Access(given.name, given.by_group[1:])

    domain = ((row, rows), *others)
    if isinstance(one, Contraction):
        lhs, rhs = map(access, one.reads)
        factors = tuple(map(access, one.factors))
        write = access(one.write)
        return replace(one, domain=domain, write=write, lhs=lhs, rhs=rhs, factors=factors)
    args = tuple(
        Coordinate(index(a.index)) if isinstance(a, Coordinate)
        else access(a) if isinstance(a, Access) else a
        for a in one.args
    )  # fmt: skip
    return replace(one, domain=domain, write=access(one.write), args=args)
