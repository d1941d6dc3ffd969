"""Finds the roles of a contraction's iterators from its access relations alone.

A tensor-core instruction computes `C[m,n] += A[m,k] * B[k,n]`. A contraction fits it if it sums
over one iterator k, and each operand is read by exactly k and one of the two output iterators.
Which output iterator is called n is free: it is the one that is contiguous in the first output, so
that a row of results can be stored with wide instructions. Nothing else distinguishes the layouts:
transposition and column-major storage only change which axis of an operand is contiguous, and
operand order only which operand is called A.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Access, Contraction, Dim, Program, Tensor
from polygen.poly.fusion import Fusion


@dataclass(frozen=True, slots=True)
class Operand:
    """One matrix operand in the roles of the instruction."""

    tensor: Tensor
    role: str  # "m" for A, "n" for B: the output dim it carries
    role_axis: int  # the tensor axis indexed by that dim
    k_axis: int  # the tensor axis indexed by k

    @property
    def k_contiguous(self) -> bool:
        """Whether neighbours along k are adjacent in memory."""
        return self.tensor.contiguous_axis == self.k_axis


@dataclass(frozen=True, slots=True)
class Match:
    """A contraction in the terms of a matrix instruction."""

    contraction: Contraction
    m: str  # iterators
    n: str
    k: str
    a: Operand
    b: Operand

    def extent(self, role: str) -> Dim:
        """The size of the problem along "m", "n" or "k"."""
        iterator = {"m": self.m, "n": self.n, "k": self.k}[role]
        return dict(self.contraction.domain)[iterator]

    @property
    def operands(self) -> tuple[tuple[str, Operand], ...]:
        """Both operands by the name of their place."""
        return (("a", self.a), ("b", self.b))

    def __str__(self) -> str:
        def line(name: str, operand: Operand) -> str:
            contiguous = "k" if operand.k_contiguous else operand.role
            return (
                f"  {name}: {operand.tensor.name}[{operand.role}, k], contiguous along {contiguous}"
            )

        roles = f"{self.contraction.name}: m = {self.m}, n = {self.n}, k = {self.k}"
        return "\n".join([roles, *(line(name, op) for name, op in self.operands)])


def match(program: Program, fusion: Fusion) -> Match:
    """Name the roles of the program's contraction.

    Raises:
        UnsupportedProgram: the accesses are not those of a matrix product.
    """
    contraction = next(c for c in program.contractions if c.name == fusion.contraction)
    written = [it for it in contraction.write.index if isinstance(it, str)]
    summed = [it for it, _ in contraction.domain if it not in written]
    reads = [{it for it in access.index if isinstance(it, str)} for access in contraction.reads]
    fits = (
        len(written) == 2
        and len(summed) == 1
        and all(len(r) == len(a.index) == 2 for r, a in zip(reads, contraction.reads, strict=True))
        and all(summed[0] in r for r in reads)
        and reads[0] | reads[1] == {*written, *summed}
    )
    if not fits:
        raise UnsupportedProgram(
            f"{contraction.name}: {contraction} is not a matrix product",
            where=program.name,
            why="a tensor-core instruction sums over one iterator that both operands share",
        )
    k = summed[0]
    n = _contiguous_output_iterator(program, fusion, written)
    m = written[0] if n == written[1] else written[1]
    tensors = program.tensors

    def operand(role: str, iterator: str) -> Operand:
        access: Access = next(a for a in contraction.reads if iterator in a.index)
        return Operand(
            tensors[access.name], role, access.index.index(iterator), access.index.index(k)
        )

    return Match(contraction, m, n, k, operand("m", m), operand("n", n))


def _contiguous_output_iterator(program: Program, fusion: Fusion, written: list[str]) -> str:
    first = program.outputs[0]
    store = next(s for s in program.pointwise if s.write.name == first.name)
    assert first.contiguous_axis is not None
    contiguous = store.write.index[first.contiguous_axis]
    along = fusion.iterators(store.name)
    return written[along.index(str(contiguous))] if contiguous in along else written[1]
