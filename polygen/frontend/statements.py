"""The traced graph to statements.

1. Each product reached from an output becomes a contraction over the output's iterators and the
   summed ones. Those that read arguments alone come first, in the order of the function's text; one
   that reads computed operands comes after the statements that compute them.
2. A pointwise node becomes a statement over the whole domain of what it is computed for: an
   output, or an operand. Walking down from there, `index` says what indexes each axis of a node: a
   broadcast axis drops to 0, a view permutes, a slice scales and shifts. So `(x @ w).T + r` reads
   v0[j,i] and r[i,j] (`polygen.frontend.addressing`).
3. A (node, index, domain) triple is computed once; the last statement of an output casts to its
   dtype.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from polygen.errors import DTypeError, UnsupportedProgram
from polygen.frontend import node_facts
from polygen.frontend.addressing import (
    Indices,
    argument_index,
    arguments,
    first_product,
    stretched,
    unview,
)
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import BOOL, F32, F64, S32, STORED, TF32, DType
from polygen.frontend.forms import Form, composed, inverse
from polygen.frontend.indexing import form_of, index_of, moved, repeats
from polygen.frontend.iterators import Iterators
from polygen.frontend.joining import leaves
from polygen.frontend.monoids import INDEX, MONOIDS, VALUE
from polygen.frontend.nodes import (
    ApplyNode,
    CoordinateNode,
    ExtentNode,
    FoldNode,
    GroupNode,
    InputNode,
    Node,
    ProductNode,
    ScalarNode,
    walk,
)
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Extent,
    Fold,
    Gathered,
    Index,
    Pointwise,
    Statement,
    Tensor,
    Within,
)
from polygen.frontend.scattering import Assignment
from polygen.frontend.shapes import accumulator, default_output

Domain = tuple[tuple[str, Dim], ...]


@dataclass(slots=True)
class Builder:
    """Statements under construction: collect every output, contract, then write each output."""

    prefix: str
    iterators: Iterators
    acc_dtype: object
    statements: list[Statement] = field(default_factory=list)
    products: dict[ProductNode, str] = field(default_factory=dict)  # to the value's name
    first: dict[Node, ProductNode] = field(default_factory=dict)  # per output, the first it reads
    folds: dict[FoldNode, str] = field(default_factory=dict)  # to the value's name
    rows: dict[Node, Access] = field(default_factory=dict)  # operands by index, to their values
    memo: dict[tuple[Node, Indices, Domain], Argument] = field(default_factory=dict)

    def collect(self, root: Node, position: int, *, beside: bool = False) -> None:
        """Finds the contractions that an output reads, in the order of the function's text; of a
        concatenation, that each of its parts reads.

        Args:
            root: the output.
            position: among all outputs.
            beside: whether another output reads one: then a fold of arrays alone may be an output.

        Raises:
            UnsupportedProgram: there is none.
        """
        for leaf, _ in leaves(root):
            self._collect(
                leaf, position, beside=beside and leaf is root and node_facts.over_results(leaf)
            )

    def _collect(self, root: Node, position: int, *, beside: bool) -> None:
        behind = tuple(walk(root, products=True))
        found = [node for node in behind if isinstance(node, ProductNode)]
        if not found and beside:
            return
        if not found:
            raise node_facts.no_product(root, position)
        self.first[root] = found[0]
        for node in found:
            self.products.setdefault(node, "")

    def contract(self, made: Mapping[Node, int]) -> None:
        """Writes the contraction statements.

        Args:
            made: per node when it was made, which is after what it reads.

        Raises:
            DTypeError: the accumulator does not fit the operands.
        """
        written: dict[Contraction, str] = {}
        nodes = sorted(self.products, key=lambda n: made[n] if node_facts.reads_computed(n) else -1)
        for node in nodes:
            own = self.iterators.output(len(node.dims)) + self.iterators.summed(len(node.summed))
            names, extents = own, (*node.dims, *node.summed)
            if node.ends is not None:
                names, extents = (*own, self.iterators.group()), (*extents, *node.ends.dims)
            sides = []
            shared = {names[label] for label in node_facts.of_matrices(node)}
            for operand, labels in ((node.lhs, node.lhs_labels), (node.rhs, node.rhs_labels)):
                index = tuple(names[label] for label in labels)
                at = stretched(operand.dims, index, tuple(extents[label] for label in labels))
                sides.append(
                    self._leaf(operand, at, dict(zip(names, extents, strict=True)), shared)
                )
            position, values = len(self.statements), {s.write.name for s in self.statements}
            statement = Contraction(
                name=f"S{position}",
                domain=tuple(zip(own, extents, strict=False)),
                write=Access(f"{self.prefix}{position}", names[: len(node.dims)]),
                lhs=sides[0],
                rhs=sides[1],
                dtype=accumulator(node.operand, self.acc_dtype),
                exact=node.operand == F32 and any(s.name in values for s in sides),
            )
            # Two spellings of one product are one statement.
            unnamed = replace(statement, name="", write=replace(statement.write, name=""))
            if unnamed not in written:
                written[unnamed] = statement.write.name
                self.statements.append(statement)
            self.products[node] = written[unnamed]

    def _leaf(
        self, node: Node, index: Indices, sizes: Mapping[str, Dim], shared: Collection[str]
    ) -> Access:
        """A product's operand: an argument, perhaps a view of one, or a value that is computed."""
        whole, at = node, index
        node, index = unview(node, index, sizes)
        if any(isinstance(one, Gathered) or not repeats(one) <= {*shared} for one in index):
            return Access(self._rows(whole).name, at)
        if isinstance(node, InputNode):
            return Access(node.tensor.name, index)
        own = self.iterators.output(len(node.dims))
        value = self._lower(node, own, tuple(zip(own, node.dims, strict=True)))
        assert isinstance(value, Access)  # a number has no axes, and so is no operand
        return Access(value.name, index)

    def _rows(self, node: Node) -> Access:
        """The value that has the rows of an operand that are named, each at its place."""
        if node not in self.rows:
            own = self.iterators.output(len(node.dims))
            domain: Domain = tuple(zip(own, node.dims, strict=True))
            value = self._lower(node, own, domain)
            if isinstance(value, Access) and value.index != own:
                dtype = F32 if node.dtype == TF32 else node.dtype  # which is multiplied as tf32
                value, given = Access(f"{self.prefix}{len(self.statements)}", own), value
                self._write(domain, value, "cast", (given,), dtype)
            assert isinstance(value, Access)
            self.rows[node] = value
        return self.rows[node]

    def output(self, name: str, root: Node, wanted: DType | None) -> Tensor:
        """Writes the statements of one output, and describes it.

        Raises:
            DTypeError: nothing can be stored as what the output is, or as `wanted`.
        """
        order = tuple(range(len(root.dims)))
        dtypes = [
            self._stored(name, leaf, at, wanted, set() if leaf is root else node_facts.added(leaf))
            for leaf, at in leaves(root)
        ]
        if len(set(dtypes)) > 1:
            raise DTypeError(
                f"{describe(root)} is stored as {' and '.join(map(str, dict.fromkeys(dtypes)))}",
                where=name,
                why="an array has elements of one type",
                nearest=f'Write .astype("{dtypes[0]}") behind each part',
            )
        if any(node_facts.over_results(leaf) for leaf, _ in leaves(root)):
            return Tensor(name, dtypes[0], root.dims, order, dtypes[0].bytes)  # one by one
        return Tensor(name, dtypes[0], root.dims, order)

    def assigned(self, one: Assignment, wanted: DType | None) -> Tensor:
        """Writes the statements of an argument that is stored into; it is an output then.

        Raises:
            DTypeError: another type is asked for than the argument's.
        """
        tensor = replace(one.target.tensor, dtype=one.dtype)
        if wanted not in (None, one.dtype):
            raise DTypeError(
                f"{wanted} is asked for, and {tensor.name} is {one.dtype}",
                where="out_dtype",
                why="what is stored has the type of the array that it is stored into",
                nearest="Leave out_dtype away",
            )
        start = (0,) * len(one.value.dims)
        self._stored(tensor.name, one.value, start, one.dtype, set(), one)
        return tensor

    def _stored(
        self,
        name: str,
        root: Node,
        at: tuple[int, ...],
        wanted: DType | None,
        alone: set[int],
        rows: Assignment | None = None,
    ) -> DType:
        """Writes the statements of an output, or of the part of one.

        Args:
            name: of the output.
            root: what is stored.
            at: where it begins.
            wanted: the dtype that is asked for.
            alone: axes along which the part has one element.
            rows: which rows of the output it is stored into; None: its own.
        """
        domain, written = self._over(root, alone)
        node, index = unview(root, written, dict(domain))
        node, index = _at_own_point(node, index, domain)
        dtype = self._output_dtype(name, root, node, wanted)
        if isinstance(node, ApplyNode) and node.function == "cast" and node.dtype == dtype:
            index = argument_index(node.dims, index, node.args[0])
            node = node.args[0]
        argument = self._lower(node, index, domain)
        place = tuple(moved(one, first) for one, first in zip(written, at, strict=True))
        place = place if rows is None else rows.index(place)
        self._write(domain, Access(name, place), "cast", (argument,), dtype)
        return dtype

    def _over(self, root: Node, alone: set[int]) -> tuple[Domain, Indices]:
        """The domain in which an output is computed, and where it is written.

        Its own axes, or where these split or merge those of its first product, the product's: so
        every value is read at its own point, and stored at digits of it.
        """
        kept = [axis for axis in range(len(root.dims)) if axis not in alone]
        own: list[Index] = [0] * len(root.dims)
        for axis, it in zip(kept, self.iterators.output(len(kept)), strict=True):
            own[axis] = it
        domain: Domain = tuple((str(own[axis]), root.dims[axis]) for axis in kept)
        found = first_product(root, tuple(own), dict(domain))
        if found is not None and not node_facts.is_folded(root):
            met = Access("", found[1]).iterators
            if ones := {at for at in kept if root.dims[at] == 1 and own[at] not in met}:
                return self._over(root, alone | ones)  # the product has no such axes
        if found is None or not any(isinstance(one, Form) for one in found[1]):
            return domain, tuple(own)
        product, index = found
        forms = {
            axis: form_of(one)
            for axis, one in enumerate(index)
            if not isinstance(one, Gathered | Within)
        }
        back = inverse(forms, dict(domain), dict(enumerate(product.dims)))
        if back is None or any(it not in back and extent != 1 for it, extent in domain):
            return domain, tuple(own)
        names = self.iterators.output(len(product.dims))
        places = {axis: form_of(name) for axis, name in enumerate(names)}
        written: list[Index] = []
        for at in map(str, own):
            form = composed(back[at], places, {}) if at in back else Form(())
            assert form is not None  # a renaming
            written.append(index_of(form))
        return tuple(zip(names, product.dims, strict=True)), tuple(written)

    def _output_dtype(self, name: str, root: Node, node: Node, wanted: DType | None) -> DType:
        """The dtype of an output: requested, its last cast's, or after the product's operands."""
        dtype = wanted
        if dtype is None and isinstance(node, ApplyNode) and node.function == "cast":
            dtype = node.dtype
        if dtype is None and node.dtype == BOOL:
            dtype = BOOL
        if dtype is None and node_facts.is_folded(node):
            double = any(product.operand == F64 for product in self.first.values())
            wide = F64 if double else F32
            dtype = S32 if node.dtype == S32 else wide
        if dtype is None:
            first, bare = self.first[root], isinstance(node, ProductNode)
            dtype = F32 if first.wide else default_output(first.operand, bare=bare)
        if dtype not in STORED:
            raise DTypeError(f"an output cannot be {dtype}", where=name, nearest=f"Use {F32}")
        return dtype

    def _write(
        self,
        domain: Domain,
        write: Access,
        function: str,
        args: tuple[Argument, ...],
        dtype: DType,
    ) -> None:
        name = f"P{len(self.statements)}"
        self.statements.append(Pointwise(name, domain, write, function, args, dtype))

    def _lower(self, root: Node, index: Indices, domain: Domain) -> Argument:
        """The access that reads a node at `index`, after writing the statements it needs.

        An explicit stack, because an expression may be deeper than Python's.
        """
        sizes = dict(domain)
        first = _at_own_point(*unview(root, index, sizes), domain)
        stack = [first]
        while stack:
            node, at = stack[-1]
            if (node, at, domain) in self.memo:
                stack.pop()
                continue
            operands = [_at_own_point(*one, domain) for one in arguments(node, at, sizes)]
            pending = [op for op in operands if (*op, domain) not in self.memo]
            if pending:
                stack.extend(reversed(pending))
                continue
            self.memo[node, at, domain] = self._value(node, at, operands, domain)
            stack.pop()
        return self.memo[(*first, domain)]

    def _value(
        self, node: Node, index: Indices, operands: list[tuple[Node, Indices]], domain: Domain
    ) -> Argument:
        if isinstance(node, ScalarNode):
            return Constant(node.value)
        if isinstance(node, CoordinateNode):
            return Coordinate(index[node.axis])
        if isinstance(node, InputNode):
            if any(isinstance(one, Form) and one.padded for one in index):
                access = Access(node.tensor.name, index)
                raise UnsupportedProgram(
                    f"{access}: zeros around an array outside of a product",
                    why="what lies outside of an array is read as zeros by products alone",
                    nearest="Multiply the padded array itself, with no code before",
                )
            return Access(node.tensor.name, index)
        if isinstance(node, GroupNode):
            return Access(node.source.tensor.name, (self.iterators.group(), *index[1:]))
        if isinstance(node, ProductNode):
            return Access(self.products[node], index)
        if isinstance(node, ExtentNode):
            return Extent(node.extents)
        if isinstance(node, FoldNode):
            return Access(self._folded(node), index)
        assert isinstance(node, ApplyNode)
        args = tuple(self.memo[(*operand, domain)] for operand in operands)
        value = Access(f"{self.prefix}{len(self.statements)}", tuple(it for it, _ in domain))
        self._write(domain, value, node.function, args, node.dtype)
        return value

    def _folded(self, node: FoldNode) -> str:
        """The name of a fold's result; its terms are computed over all of their own domain."""
        if node not in self.folds:
            own = self.iterators.output(len(node.value.dims))
            domain: Domain = tuple(zip(own, node.value.dims, strict=True))
            value = self._lower(node.value, own, domain)
            monoid = MONOIDS[node.function]
            terms: dict[str, Argument] = {VALUE: value, INDEX: Coordinate(own[node.axes[0]])}
            args = (terms[t] if isinstance(t, str) else Constant(t) for t in monoid.terms)
            position = len(self.statements)
            kept = tuple(it for at, it in enumerate(own) if at not in node.axes)
            write = Access(f"{self.prefix}{position}", kept)
            self.statements.append(
                Fold(f"F{position}", domain, write, node.function, tuple(args), node.dtype)
            )
            self.folds[node] = write.name
        return self.folds[node]


def _at_own_point(node: Node, index: Indices, domain: Domain) -> tuple[Node, Indices]:
    """A node, with the domain's iterators for its axes of size 1: all of them are 0.

    A reshape drops such axes, and what is computed at 0 is computed at the domain's own point.
    """
    if len(index) != len(domain) or not isinstance(node, ApplyNode | ProductNode):
        return node, index
    return node, tuple(
        name if (at, extent, own) == (0, 1, 1) else at
        for at, extent, (name, own) in zip(index, node.dims, domain, strict=True)
    )
