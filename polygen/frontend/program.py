"""`Program`: the array code as single-assignment statements over symbolic index spaces.

A statement has any number of named iterators with symbolic extents, and every access says what
indexes each axis: an iterator, an affine form of one, or a constant (0 on a broadcast axis).
That is all later stages know: they never ask "is this a GEMM".

    up(x, w, b) = gelu(x @ w.T + b)        x: bf16[M,K], w: bf16[N,K], b: bf16[N]

    v0[i,j] += x[i,k] * w[j,k]             i < M, j < N, k < K        (f32)
    v1[i,j]  = add(v0[i,j], b[j])
    v2[i,j]  = gelu(v1[i,j])
    y0[i,j]  = cast(v2[i,j])                                          (bf16)

Batches are more iterators, a slice is an affine index: with ``q: bf16[B,S,128]`` and w: bf16[64,N],
``q[..., ::2] @ w`` is ``v0[b,i,j] += q[b,i,2*k] * w[k,j]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polygen.brief import Brief
from polygen.frontend.arguments import Access as Access
from polygen.frontend.arguments import Argument as Argument
from polygen.frontend.arguments import Constant as Constant
from polygen.frontend.arguments import Coordinate as Coordinate
from polygen.frontend.arguments import Extent as Extent
from polygen.frontend.dtypes import F32, F64, DType
from polygen.frontend.forms import Form
from polygen.frontend.indices import Affine as Affine
from polygen.frontend.indices import Dim as Dim
from polygen.frontend.indices import Gathered as Gathered
from polygen.frontend.indices import Index as Index
from polygen.frontend.indices import Within as Within
from polygen.frontend.indices import named_in, places_of, size_value


@dataclass(frozen=True, slots=True)
class Tensor:
    """A global array: an input or an output of the program."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...]  # () is a run-time scalar, passed by value as f32
    # Axes from slowest to contiguous: (0, 1) row-major, (1, 0) column-major, or any other.
    order: tuple[int, ...] = ()
    alignment: int = 16  # bytes that divide the base address and every non-contiguous stride
    ragged: bool = False  # the contiguous extent need not be a multiple of `alignment`

    @property
    def contiguous_axis(self) -> int | None:
        """The axis whose neighbours are adjacent in memory; None for a scalar."""
        return self.order[-1] if self.order else None

    @property
    def ends_anywhere(self) -> bool:
        """Whether a row, which begins at a multiple of `alignment` bytes, may end at none."""
        row = self.dims[self.order[-1]] if self.order else 1
        if isinstance(row, int):
            return row * self.dtype.bytes % self.alignment != 0
        return self.ragged

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its extents as numbers."""
        return tuple(size_value(dim, sizes) for dim in self.dims)

    def __str__(self) -> str:
        axes = tuple(range(len(self.dims)))
        layout = ""
        if self.order == (*axes[:-2], *reversed(axes[-2:])) != axes:
            layout = " column-major"
        elif self.order not in ((), axes):
            layout = f" stored {','.join(map(str, self.order))}"
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.dims))}]{layout}"


@dataclass(frozen=True, slots=True)
class Contraction:
    """``write[...] += lhs[...] * rhs[...]`` summed over the iterators that `write` does not use.

    In blocks (`polygen.rewrite.block_factors`) products of `block` neighbours along the sum are
    added up first, and each such sum is multiplied by the factors, which are the same in a block.
    """

    name: str  # statement name, "S0"
    # Iterator and extent, in order: (("i", "M"), ("j", "N"), ("k", "K")).
    domain: tuple[tuple[str, Dim], ...]
    write: Access
    lhs: Access
    rhs: Access
    dtype: DType  # accumulator type
    block: int = 0  # indices of the sum in a block; 0: it has none
    factors: tuple[Access, ...] = ()
    exact: bool = False  # operands that are computed in f32 keep its digits; else they are tf32

    @property
    def reads(self) -> tuple[Access, ...]:
        """The two operands."""
        return (self.lhs, self.rhs)

    @property
    def summed(self) -> tuple[str, ...]:
        """The iterators that are summed over."""
        return tuple(it for it, _ in self.domain if it not in self.write.iterators)

    @property
    def matrices(self) -> tuple[str, ...]:
        """The iterators that count matrices: both operands and the result have them."""
        both = {*self.lhs.iterators} & {*self.rhs.iterators}
        return tuple(it for it in self.write.iterators if it in both)

    @property
    def again(self) -> tuple[str, ...]:
        """The iterators of outer loops of a sum, as which parts of operands are counted."""
        return self.summed[:-1] if self.block else ()

    def __str__(self) -> str:
        products = f"{self.lhs} * {self.rhs}"
        if self.block:
            inner = f"({products} over {self.block} of {self.summed[-1]})"
            products = " * ".join([*map(str, self.factors), inner])
        return f"{self.write} += {products}"


@dataclass(frozen=True, slots=True)
class Pointwise:
    """``write[...] = function(args...)`` at every point of a domain."""

    name: str  # statement name, "P1"
    domain: tuple[tuple[str, Dim], ...]  # (("i", "M"), ("j", "N"))
    write: Access
    function: str  # a key of `polygen.frontend.functions.TABLE`
    args: tuple[Argument, ...]
    dtype: DType  # type of the result: f32, bool, or for "cast" the type rounded to

    @property
    def reads(self) -> tuple[Access, ...]:
        """The arguments that are arrays or values, and the vectors that say which of them, or
        where the result is stored.
        """
        found = tuple(arg for arg in self.args if isinstance(arg, Access))
        by_index = (*found, self.write)
        return (*found, *(vector for access in by_index for vector in access.indexed_by))

    def __str__(self) -> str:
        return f"{self.write} = {self.function}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Fold:
    """``write[...] = function over the other iterators of args[...]``, a reduction of a value."""

    name: str  # statement name, "F2"
    domain: tuple[tuple[str, Dim], ...]  # of the terms: (("i", "M"), ("j", "N"))
    write: Access  # over some of its iterators, in the domain's order
    function: str  # a key of `polygen.frontend.monoids.MONOIDS`
    args: tuple[Argument, ...]  # what an element contributes, a component each
    dtype: DType  # type of the result

    @property
    def reads(self) -> tuple[Access, ...]:
        """The arguments that are arrays or values, and the vectors that say which of them."""
        found = tuple(arg for arg in self.args if isinstance(arg, Access))
        return (*found, *(vector for access in found for vector in access.indexed_by))

    @property
    def folded(self) -> tuple[str, ...]:
        """The iterators that the result does not have."""
        kept = self.write.iterators
        return tuple(iterator for iterator, _ in self.domain if iterator not in kept)

    def __str__(self) -> str:
        over = ",".join(self.folded)
        return f"{self.write} = {self.function} over {over} of {', '.join(map(str, self.args))}"


Statement = Contraction | Pointwise | Fold


@dataclass(frozen=True, slots=True)
class Rest:
    """Further terms of a product's sums: a second product's, of what a first one makes.

    Attributes:
        middle: the first product, and what is made of its sums: its output, which nobody stores.
        last: the product of that and of an argument; its output are terms of the sums.
    """

    middle: Program
    last: Program


@dataclass(frozen=True, slots=True)
class InOrder:
    """The place of a program among those that kernels run one after another on a stream.

    Attributes:
        first: whether it is the first of them. What comes before it on the stream is complete when
            it begins.
        settled: inputs that none of the others writes. As the first began when all else was
            complete, nobody still writes them when a later one begins.
    """

    first: bool = False
    settled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Program(Brief):
    """What one kernel computes."""

    name: str  # a C identifier
    source: str  # the expression or function text, for people
    inputs: tuple[Tensor, ...]  # in call order
    # In return order; each is written by one statement, or each of its parts by one.
    outputs: tuple[Tensor, ...]
    statements: tuple[Statement, ...]  # a value is defined before it is read
    invariant: tuple[str, ...] = ()  # dims that must have no part in the bits of an element
    # Outputs that a call is given among its operands, and the places where; their other elements
    # stay as they are.
    in_place: tuple[tuple[str, int], ...] = ()
    rest: Rest | None = None  # what the sums of the only product have besides
    # Operands of products that a launch before the kernel makes, with folds over their own rows.
    first: tuple[str, ...] = ()
    # Of those that it only stores with their axes in another order: what runs along their rows.
    turned: tuple[tuple[str, int], ...] = ()
    in_order: InOrder | None = None  # None: it is the only one

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """What a call is given, in call order: the inputs, and outputs that it stores into."""
        found, given = list(self.inputs), dict(self.in_place)
        for tensor in sorted(self.outputs, key=lambda one: given.get(one.name, 0)):
            if tensor.name in given:
                found.insert(given[tensor.name], tensor)
        return tuple(found)

    @property
    def contractions(self) -> tuple[Contraction, ...]:
        """The statements that sum."""
        return tuple(s for s in self.statements if isinstance(s, Contraction))

    @property
    def pointwise(self) -> tuple[Pointwise, ...]:
        """The statements that map."""
        return tuple(s for s in self.statements if isinstance(s, Pointwise))

    @property
    def real(self) -> DType:
        """In what everything behind sums is computed: f64 where sums are, f32 else.

        Where nothing is multiplied, sums are those of folds.
        """
        return F64 if any(one.dtype == F64 for one in self.contractions or self.folds) else F32

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The statements that reduce values."""
        return tuple(s for s in self.statements if isinstance(s, Fold))

    @property
    def in_parts(self) -> tuple[str, ...]:
        """The outputs that several statements write, each a part."""
        written = [statement.write.name for statement in self.statements]
        return tuple(t.name for t in self.outputs if written.count(t.name) > 1)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Inputs and outputs by name."""
        return {t.name: t for t in (*self.inputs, *self.outputs)}

    @property
    def ends(self) -> str:
        """The argument that says where groups of rows end; "" without groups."""
        return next((place.ends for place in self.in_groups), "")

    @property
    def in_groups(self) -> tuple[Within, ...]:
        """The indices that are rows of groups, of arrays or of what names rows of them."""
        accesses = (access for s in self.statements for access in (s.write, *s.reads))
        places = (place for access in accesses for i in access.index for place in places_of(i))
        return tuple(place for place in places if isinstance(place, Within))

    @property
    def gathered(self) -> dict[str, Dim]:
        """The arguments that say which elements of others are read or stored, and how many there
        are of these.
        """
        accesses = (access for s in self.statements for access in (*s.reads, s.write))
        return _named_by(accesses)

    @property
    def scattered(self) -> dict[str, Dim]:
        """Those that say which elements are stored: no two of their numbers are the same."""
        return _named_by(s.write for s in self.statements)

    @property
    def by_digits(self) -> tuple[Access, ...]:
        """The accesses that a reshape or a window makes of several axes."""
        accesses = (access for s in self.statements for access in (s.write, *s.reads))
        return tuple(a for a in accesses if any(isinstance(index, Form) for index in a.index))

    @property
    def sizes(self) -> tuple[str, ...]:
        """The symbolic dims, in the order in which the arguments first name them."""
        found = [d for t in (*self.inputs, *self.outputs) for d in t.dims]
        return tuple(dict.fromkeys(name for dim in found for name in named_in(dim)))

    def __str__(self) -> str:
        head = f"{self.name}: {self.source}"
        given = {name for name, _ in self.in_place}
        arguments = [f"  in  {t}" for t in self.inputs]
        arguments += [f"  out {t}{', given' * (t.name in given)}" for t in self.outputs]
        width = max(len(str(s)) for s in self.statements)
        body = [
            f"  {s.name:>3}  {s!s:<{width}}   "
            f"{', '.join(f'{it} < {extent}' for it, extent in s.domain)}   ({s.dtype})"
            for s in self.statements
        ]
        promised = [f"  same bits for every {', '.join(self.invariant)}"] if self.invariant else []
        more = []
        if self.rest is not None:
            more = ["", f"besides, in the sums of {self.contractions[0].name}:"]
            more += [f"{self.rest.middle}", f"{self.rest.last}"]
        return "\n".join([head, *arguments, *body, *promised, *more])


def _named_by(accesses: Iterable[Access]) -> dict[str, Dim]:
    """The vectors that say which elements are accessed, and how many of these there are."""
    return {
        index.rows: index.extent
        for access in accesses
        for index in access.index
        if isinstance(index, Gathered)
    }
