"""Finds the roles of the products' iterators from their access relations alone.

A tensor-core instruction computes `C[m,n] += A[m,k] * B[k,n]`. A product fits it if it sums over
one iterator k, which both operands read. Of the output's axes, n is one that only one operand
reads, m one that only the other reads, or none; all further ones count matrices: they are batch
dims, whoever reads them. Where several axes could be n it is the one that is contiguous in the
first output, so that a row of results can be stored with wide instructions; where several could be
m, the last that has more than one index, and that folds of results fold, where they leave n.

All products of a kernel have the same m, n and batch dims. Transposition, column-major storage and
slices only change where an operand's elements lie; operands that are read alike are one operand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F32, F64, DType
from polygen.frontend.program import (
    Access,
    Contraction,
    Dim,
    Fold,
    Gathered,
    Index,
    Program,
    Tensor,
)
from polygen.poly.depth import Sums
from polygen.poly.elements import ROLES, Compute, Element
from polygen.poly.elements import Along as Along
from polygen.poly.elements import along as along
from polygen.poly.elements import axis_of as axis_of
from polygen.poly.elements import named as named
from polygen.poly.fusion import Fusion
from polygen.poly.match_axes import axes_of, extents_of, sides_of
from polygen.poly.operand import Operand
from polygen.poly.pixel_boxes import ONE_LINE, PixelBox
from polygen.poly.prologue import Prologues, operand_array, prologue

REST_RIGHT, REST_RING = "c", "d"  # the right operands of the rest of sums, as rings are called


@dataclass(frozen=True, slots=True)
class Multiplied:
    """One product: its statement, and which of the match's operands it multiplies."""

    contraction: Contraction
    k: str  # iterator
    left: str
    right: str
    factors: tuple[Element, ...] = ()  # of a sum in blocks, by what its blocks are multiplied

    @property
    def block(self) -> int:
        """Indices of k in a block; 0: the sum has none."""
        return self.contraction.block


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows in groups: matrices of results below one another, each with as many rows as it has.

    Attributes:
        dim: the batch dim that counts them.
        extent: how many there are.
        ends: the array that says where they end.
    """

    dim: str
    extent: Dim
    ends: str


@dataclass(frozen=True, slots=True)
class RestMatch:
    """What the sums of the only product have besides: a product of what another one makes.

    Attributes:
        middle: the product that makes it, of `left`; its right operand is `REST_RIGHT`.
        left: the operand of the main product whose rows it multiplies, too.
        last: the product of what is made of it, whose terms are added.
        operand: the right operand of that; its k are the columns of `middle`.
        columns: of `middle`.
        padded: columns as tiles have them.
        reads: numbers that are passed.
        statements: from the sums of `middle` to what `last` multiplies.
    """

    middle: Contraction
    left: str
    last: Contraction
    operand: Operand
    columns: int
    padded: int
    reads: tuple[Element, ...]
    statements: tuple[Compute, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """Sums over several axes that are one: `polygen.poly.joined`.

    Attributes:
        dims: that were summed, outermost first, the innermost last, and their extents.
        run: indices of k from one tuple of the others to the next.
        indices: per operand what indexed its axes over these dims.
    """

    dims: tuple[tuple[str, int], ...]
    run: int
    indices: tuple[tuple[str, tuple[Along, ...]], ...]


@dataclass(frozen=True, slots=True)
class Match:
    """Products in the terms of a matrix instruction."""

    products: tuple[Multiplied, ...]
    operands: tuple[tuple[str, Operand], ...]  # "a", "b", ...: those that carry m, then n
    axes: tuple[str, ...]  # per axis of the output, as `Fusion` orders them, the dim
    batches: tuple[tuple[str, Dim], ...]  # batch dims and their extents, outermost first
    m: Dim
    n: Dim
    depths: tuple[Dim, ...]  # the different lengths of the sums, along their innermost axis
    groups: RowGroups | None = None  # of rows; then `m` is the number of rows of all groups
    # Of sums over several axes the dims of the outer loops, and their extents; and the length that
    # isl knows all of it by.
    sums: tuple[tuple[str, Dim], ...] = ()
    length: Dim = 0
    rest: RestMatch | None = None
    # Half planes a*m + b*n + c >= 0, as (a, b, c): sums are read in all of them; () everywhere.
    domain: tuple[tuple[int, int, int], ...] = ()
    box: PixelBox = ONE_LINE  # of a tile's rows, where these run along several axes
    joined: Joined | None = None  # sums of several axes that are one; `sums` has then none

    @property
    def real(self) -> DType:
        """In what everything behind the sums is computed."""
        return F64 if self.products[0].contraction.dtype == F64 else F32

    @property
    def counted(self) -> tuple[tuple[str, Dim], ...]:
        """Batch dims, and how many matrices, or tiles of rows, there are along each."""
        return tuple((dim, self._tiles(dim, extent)) for dim, extent in self.batches)

    def _tiles(self, dim: str, extent: Dim) -> Dim:
        side = self.box.side(dim)
        if side == 1:
            return extent
        assert isinstance(extent, int)  # refused before where it is none
        return -(-extent // side)

    def extent(self, role: str) -> Dim:
        """The size of the problem along "m", "n" or "k", the first of several."""
        return {"m": self.m, "n": self.n, "k": self.depths[0]}[role]

    @property
    def lengths(self) -> tuple[Dim, ...]:
        """The lengths of the sums as isl knows them."""
        return (self.length,) if self.sums or self.joined else self.depths

    def operand(self, name: str) -> Operand:
        """The operand called `name`."""
        return dict(self.operands)[name]

    def side(self, role: str) -> tuple[Operand, ...]:
        """The operands that carry "m", or "n"."""
        return tuple(operand for _, operand in self.operands if operand.role == role)

    @property
    def block(self) -> int:
        """Indices of k whose products are added up and promoted; 0: there are no blocks."""
        return self.products[0].block

    @property
    def in_parts(self) -> bool:
        """Whether blocks are of products of operands' parts: nothing multiplies their sums."""
        return bool(self.block) and not any(one.factors for one in self.products)

    @property
    def of_zeros(self) -> bool:
        """Whether all that is multiplied is 0."""
        return all(operand.zero for _, operand in self.operands)

    @property
    def copied(self) -> tuple[tuple[str, Operand], ...]:
        """The operands that are arguments; what is left is computed."""
        return tuple(item for item in self.operands if item[1].computed is None)

    @property
    def a(self) -> Operand:
        """The first operand that carries m."""
        return self.side("m")[0]

    @property
    def b(self) -> Operand:
        """The first operand that carries n."""
        return self.side("n")[0]

    @property
    def contraction(self) -> Contraction:
        """The first product."""
        return self.products[0].contraction

    def dims(self, iterators: tuple[str, ...]) -> dict[str, str]:
        """Iterators along the output's axes -> dims."""
        return dict(zip(iterators, self.axes, strict=True))

    def __str__(self) -> str:
        written = self.contraction.write.iterators
        roles = ", ".join(f"{it} = {dim}" for it, dim in zip(written, self.axes, strict=True))
        lines = []
        for one in self.products:
            lines.append(f"{one.contraction.name}: {one.left} * {one.right}, k = {one.k}; {roles}")
        return "\n".join([*lines, *(f"  {name}: {operand}" for name, operand in self.operands)])


def match(
    program: Program,
    fusion: Fusion,
    computed: Prologues | None = None,
    arguments: tuple[Tensor, ...] = (),
    sums: Sums | None = None,
    folds: tuple[Fold, ...] = (),
) -> Match:
    """Name the roles of the iterators of the program's products.

    Args:
        program: its products read arrays.
        fusion: the band of its statements.
        computed: the statements behind those of these arrays that are computed.
        arguments: what these statements read.
        sums: of products that sum over several axes, of which `program` has one made.
        folds: of results, in parts.

    Raises:
        UnsupportedProgram: the accesses are not those of matrix products over one domain.
    """
    axes = axes_of(program, fusion, folds)
    extents = extents_of(program, fusion, axes)
    one_of = next(iter((sums or {}).values()), None)
    outer = (
        ()
        if one_of is None
        else tuple((dim, dict(one_of.outer)[it]) for it, dim in one_of.dims().items() if dim != "k")
    )
    operands: dict[tuple[str, str, tuple[Along, ...], Dim], str] = {}
    named: dict[str, Operand] = {}
    products = []
    for contraction in program.contractions:
        written = fusion.iterators(contraction.name)
        (k,) = contraction.summed
        several = (sums or {}).get(contraction.name)
        summed = {k: "k"} if several is None else several.dims()
        dims = dict(zip(written, axes, strict=True)) | summed
        depth = dict(contraction.domain)[k] if several is None else several.depth
        own = contraction if several is None else several.contraction
        sides = {}
        for access, role in zip(own.reads, sides_of(own, dims), strict=True):
            index = tuple(_along(one, dims) for one in access.index)
            _require_apart(program, access, index)
            key = (access.name, role, index, depth)
            if key not in operands:
                many = sum(operand.role == role for operand in named.values())
                operands[key] = ("a" if role == "m" else "b") + (str(many + 1) if many else "")
                sizes = (*extents.items(), *outer, ("k", depth))
                named[operands[key]] = _operand(
                    program, access.name, role, index, sizes, computed or {}, arguments
                )
            sides[role] = operands[key]
        factors = tuple(
            Element(
                f"{one.name}_{number}",
                {t.name: t for t in arguments}[one.name],
                tuple(along(index, dims) for index in one.index),
            )
            for number, one in enumerate(own.factors)
        )
        products.append(Multiplied(contraction, k, sides["m"], sides["n"], factors))
    lengths = tuple(dict.fromkeys(dict(p.contraction.domain)[p.k] for p in products))
    depths = lengths if one_of is None else (one_of.depth,)
    batches = tuple((dim, extents[dim]) for dim in axes if dim not in ("m", "n"))
    order = sorted(named.items(), key=lambda item: item[1].role)
    groups = RowGroups(*batches[0], program.ends) if program.ends else None
    m, n = extents["m"], extents["n"]
    return Match(
        tuple(products), tuple(order), axes, batches, m, n, depths, groups, outer, lengths[0]
    )


def _along(index: Index, dims: dict[str, str]) -> Along:
    """What indexes an axis of what copies move: of pages, where in the array that names them."""
    if isinstance(index, Gathered):
        return named(index, tuple(along(place, dims) for place in index.places))
    return along(index, dims)


def _operand(
    program: Program,
    name: str,
    role: str,
    index: tuple[Along, ...],
    sizes: tuple[tuple[str, Dim], ...],
    computed: Prologues,
    arguments: tuple[Tensor, ...],
) -> Operand:
    """What a product reads in one role: an argument, or what is computed of several."""
    if name not in computed:
        return Operand(program.tensors[name], role, index, sizes)
    kind = program.tensors[name].dtype
    made = prologue({t.name: t for t in arguments}, computed[name], index, kind)
    own = {term.dim for one in index for term in one.terms}
    tensor, axes = operand_array(made, name, tuple(s for s in sizes if s[0] in own), role)
    inner = axis_of(index, axes[tensor.order[-1]].dim)
    made = replace(made, inner=-1 if inner is None else inner)
    return Operand(tensor, role, axes, sizes, made)


def _require_apart(program: Program, access: Access, index: tuple[Along, ...]) -> None:
    """Refuse an axis along which rows of a tile and what is summed in it both run."""
    tensor = program.tensors[access.name]
    for axis, one in enumerate(index):
        inside = [term.dim for term in one.terms if term.dim in ROLES]
        if one.together and (axis == tensor.order[-1] or "k" in inside):
            raise UnsupportedProgram(
                f"{access}: windows slide, or zeros lie, along the innermost axis"
                if axis == tensor.order[-1]
                else f"{access}: zeros lie along the axis that is cut into k tiles",
                where=program.name,
                why="neighbours in memory are neighbours in the tiles, and begin where rows do",
                nearest=f"Store {access.name} with channels last, as in x[N,H,W,C] and w[K,R,S,C], "
                "and pad the other axes",
            )
        if len(inside) > 1:
            raise UnsupportedProgram(
                f"{access} has rows and what is summed on one axis",
                where=program.name,
                why="rows of a tile follow each other along another axis than what is summed in it",
                nearest="Give the windows channels, an axis that they do not slide along",
            )
