"""Sums over several axes: one counter of k tiles walks a tuple of axes.

    S0[i,j,c,l]   v0[i,j] += x[i,c,l] * w[c,l,j]     c < C, l < L

1. An instruction sums over neighbours of one axis: the innermost one, which is cut into k tiles.
   The others are outer loops. All of these tiles are numbered through, the innermost axis'
   fastest: tile number t is tile ``t mod T`` of the axis at ``c = floor(t / T)``, where T is its
   number of tiles. So rings, pipelines and ranges of shared sums go on from one c to the next.
2. What isl sees is a sum over one axis whose k tiles these are (`linear`): its length is a size of
   its own, since T times C is no affine form. Arguments never change, so that nothing depends on
   which of their elements an instance reads; where those lie is said by the product itself, over
   dims "over0", ... and "k" (`polygen.poly.match`), and checked of every address that is emitted.
3. That numbering walks the tuple, for all sizes, in order, each element once: `prove_walk`. The
   next number's tuple is the next one in lexicographic order, from the first to the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen import isl
from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.indices import multiple
from polygen.frontend.program import Access, Contraction, Dim, Program
from polygen.poly.elements import OVER
from polygen.poly.legality import Proof
from polygen.poly.supported import require_each_once
from polygen.rewrite.sum_axes import cut, innermost


@dataclass(frozen=True, slots=True)
class Summed:
    """A product that sums over several axes.

    Attributes:
        contraction: its statement.
        outer: the iterators of the outer loops, outermost first, and their extents.
        inner: the iterator that is cut into k tiles.
    """

    contraction: Contraction
    outer: tuple[tuple[str, Dim], ...]
    inner: str

    @property
    def depth(self) -> Dim:
        """The length of the innermost axis."""
        return dict(self.contraction.domain)[self.inner]

    def dims(self) -> dict[str, str]:
        """The summed iterators -> dims."""
        return {it: f"{OVER}{n}" for n, (it, _) in enumerate(self.outer)} | {self.inner: "k"}


Sums = Mapping[str, Summed]  # by the statement's name


def sums(program: Program) -> dict[str, Summed]:
    """The products that sum over several axes.

    Raises:
        UnsupportedProgram: a sum that no loop over k tiles makes, or sums of several shapes.
    """
    found = {one.name: _summed(program, one) for one in program.contractions if len(one.summed) > 1}
    shapes = {
        one.name: tuple(dict(one.domain)[it] for it in one.summed) for one in program.contractions
    }
    for one in program.contractions:
        if found and shapes[one.name] != shapes[next(iter(found))]:
            first = next(iter(found))
            raise UnsupportedProgram(
                f"{first} sums over [{_listed(shapes[first])}], {one.name} over "
                f"[{_listed(shapes[one.name])}]",
                where=program.name,
                why="all products of a kernel go through the same k tiles, and those of several "
                "axes are numbered through",
                nearest="Make two functions, one for each",
            )
    return found


def linear(program: Program, found: Sums | None = None) -> Program:
    """The program whose products sum over one axis, of a length of its own.

    Args:
        program: with products over several axes, or without.
        found: what `sums` finds.
    """
    found = sums(program) if found is None else found
    if not found:
        return program
    used = {*program.sizes, *program.tensors}
    length = "k_all"
    while length in used:
        length += "_"
    statements = tuple(
        _linear(one, length) if one.name in found else one for one in program.statements
    )
    return replace(program, statements=statements)


def _linear(product: object, length: str) -> Contraction:
    assert isinstance(product, Contraction)
    kept = tuple(item for item in product.domain if item[0] in product.write.iterators)
    names = {it for it, _ in product.domain}
    k = next(name for name in ("k", "k_of_all", *(f"k{n}" for n in range(len(names) + 1)))
             if name not in {it for it, _ in kept})  # fmt: skip

    def read(access: Access) -> Access:
        own = [it for it, _ in kept if it in access.iterators]
        return Access(access.name, (*own, k))

    lhs, rhs = map(read, product.reads)
    whole = multiple(length, product.block or 1)  # blocks are k tiles, which have all of theirs
    return replace(product, domain=(*kept, (k, whole)), lhs=lhs, rhs=rhs)


def _listed(dims: Sequence[Dim]) -> str:
    return ", ".join(map(str, dims))


def _summed(program: Program, product: Contraction) -> Summed:
    require_each_once(program, product)
    own, sizes = product.summed, dict(product.domain)
    for access in product.reads:
        alone = [it for it in own if it not in access.iterators and sizes[it] != 1]
        twice = [it for it, count in Counter(access.iterators).items() if count > 1]
        if alone or twice:
            raise UnsupportedProgram(
                f"{product.name}: {product} is not a sum of matrix products",
                where=program.name,
                why="operands meet every axis that is summed, and each of their own once",
                nearest="Write it as x @ w on arrays whose axes are all different",
            )
    every = [set(access.iterators) for access in product.reads]
    fitting = cut(product)
    kept = set(product.write.iterators)
    if not fitting and not all(kept & one - other for one, other in (every, every[::-1])):
        raise UnsupportedProgram(
            f"{product.name}: {product} is not a sum of matrix products",
            where=program.name,
            why="results have rows of one operand and columns of the other; here one of them has "
            "neither, as in a depth-wise convolution, where every channel has a sum of its own",
            nearest="Use pointwise code: a product of tensor cores would compute one element a row",
        )
    if not fitting:
        raise UnsupportedProgram(
            f"{product.name}: {product} sums over no axis that an operand has alone",
            where=program.name,
            why="rows of a tile follow each other along another axis than what is summed in it",
            nearest="Give the windows channels, an axis that they do not slide along",
        )
    inner = innermost(program, product, fitting)
    outer = tuple((it, sizes[it]) for it in own if it != inner)
    return Summed(product, outer, inner)


# --- the numbers of k tiles ----------------------------------------------------------------------
def prove_walk(places: int) -> Proof:
    """Prove that tuples in the order of their numbers are all tuples in lexicographic order.

    Args:
        places: of a tuple, the k tile among them.

    Raises:
        VerifyError: never for positive sizes; the check guards the formulas.
    """
    counts = [f"n{place}" for place in range(places)]
    names = [f"a{place}" for place in range(places)]
    inside = " and ".join(f"0 <= {a} < {n}" for a, n in zip(names, counts, strict=True))
    prefix = f"[{','.join(counts)}] -> "
    context = " and ".join(f"{n} >= 1" for n in counts)
    own = ",".join(names)
    steps = []
    for place in range(places):  # this place goes on, those behind it begin again
        then = [*names[:place], f"{names[place]} + 1", *["0"] * (places - place - 1)]
        full = [
            f"{a} = {n} - 1" for a, n in zip(names[place + 1 :], counts[place + 1 :], strict=True)
        ]
        test = " and ".join([f"{names[place]} + 1 < {counts[place]}", *full])
        steps.append(f"[{own}] -> [{','.join(then)}] : {inside} and {test}")
    following = isl.Map(f"{prefix}{{ {'; '.join(steps)} }}")
    every = isl.Set(f"{prefix}{{ [{own}] : {inside} and {context} }}")
    following = following.intersect_domain(every)
    later = every.lex_lt_set(every)
    between = later.apply_range(later)
    ends = every.subtract(following.domain()).is_equal(every.lexmax())
    begins = every.subtract(following.range()).is_equal(every.lexmin())
    if not (
        following.is_subset(later)
        and following.is_bijective()
        and following.intersect(between).is_empty()
        and ends
        and begins
    ):
        raise VerifyError(f"numbers of {places} places do not walk their tuples", where="k tiles")
    return Proof(
        "k tiles of several axes are numbered through, each once, in the order of the axes",
        f"{places - 1} outer axes, and the k tiles of the innermost",
    )
