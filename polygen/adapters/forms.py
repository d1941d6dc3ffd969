"""Arrays' extents -> the most general `Program` of some array code.

1. Every extent but 1 starts as a dim with a name of its own; 1 is a number, because it stretches.
2. The function is traced. Where it needs two dims to be one, and their extents are the same, they
   become one, and it is traced again.
3. The results of one kernel have one domain, and so have its products: their dims become one where
   the extents allow it.

4. A size that has to be a number, as that of an axis of which a slice is taken, becomes one, and no
   other does (`polygen.frontend.build`).

So a batch that happens to be as long as a sum leads to the kernel that every other batch has. An
extent may be a number or whatever stands for one in a library that traces; only `same` looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polygen.errors import PolygenError, ShapeError, UnsupportedProgram
from polygen.frontend.build import numbers_for
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Dim, Program, Tensor
from polygen.rewrite.chain import products_in_chain

Tracing = Callable[[Sequence[Tensor]], Program]
Same = Callable[[Any, Any, bool], bool]


@dataclass(frozen=True, slots=True)
class Form:
    """What a program depends on of one array; a run-time scalar has no extents."""

    name: str
    dtype: DType
    extents: tuple[Any, ...] = ()
    order: tuple[int, ...] = ()


def alike(first: Any, second: Any, needed: bool) -> bool:
    """Whether two extents are the same; the way of those that are numbers."""
    return bool(first == second)


def most_general(
    trace: Tracing, forms: Sequence[Form], same: Same = alike
) -> tuple[Program, dict[str, Any]]:
    """The program for arrays of these forms, and the extents of its dims by name.

    Args:
        trace: the program for given tensors.
        forms: of the arguments, in call order.
        same: whether two extents are the same; the third argument says that the program needs them
            to be, so that a library that traces may make it a condition of what it traces.

    Raises:
        PolygenError: what `trace` refuses.
    """
    dims = _Dims(forms)
    while True:
        try:
            program = trace(dims.tensors(forms))
        except PolygenError as error:
            differing = error.differing if isinstance(error, ShapeError) else None
            if differing and dims.join(*differing, same, needed=True):
                continue
            try:
                dims.fix(numbers_for(error, trace, dims.tensors(forms), dims.extents))
            except PolygenError:
                return trace(_constant(forms)), {}  # or its error, which says the sizes
            continue
        if program.in_place:
            raise UnsupportedProgram(
                f"{program.in_place[0][0]} is stored into",
                where=program.name,
                why="the library takes a function's arguments to stay as they are",
                nearest="Call what pg.fuse gives on its arrays",
            )
        joined = [dims.join(a, b, same, needed=False) for a, b in _side_by_side(program)]
        if not any(joined):
            return program, {name: dims.extents[name] for name in program.sizes}


def _constant(forms: Sequence[Form]) -> list[Tensor]:
    """The arguments with numbers for dims."""
    return [Tensor(f.name, f.dtype, tuple(map(int, f.extents)), f.order) for f in forms]


def _side_by_side(program: Program) -> Iterator[tuple[Dim, Dim]]:
    """Dims that are different, at one place of what is computed side by side.

    What one product computes and another reads is not: keys are no columns, however many.
    """
    if products_in_chain(program) is not None:
        return
    domains = [tensor.dims for tensor in program.outputs]
    for product in program.contractions:
        sizes = dict(product.domain)
        domains.append(tuple(sizes[iterator] for iterator in product.write.iterators))
    for dims in domains[1:]:
        if len(dims) == len(domains[0]):
            yield from ((a, b) for a, b in zip(domains[0], dims, strict=True) if a != b)


@dataclass(slots=True)
class _Dims:
    """The dims of all axes, and which of them have become one."""

    forms: Sequence[Form]
    names: dict[tuple[int, int], Dim] = field(default_factory=dict)  # by argument and axis
    extents: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        letter = "D"
        while any(form.name.startswith(letter) for form in self.forms):
            letter += "_"
        for position, form in enumerate(self.forms):
            for axis, extent in enumerate(form.extents):
                if not (isinstance(extent, int) and extent == 1):
                    name = f"{letter}{len(self.names)}"
                    self.names[position, axis], self.extents[name] = name, extent

    def tensors(self, forms: Sequence[Form]) -> list[Tensor]:
        """The arguments as a trace takes them."""
        return [
            Tensor(
                form.name,
                form.dtype,
                tuple(self.names.get((position, axis), 1) for axis in range(len(form.extents))),
                form.order,
            )
            for position, form in enumerate(forms)
        ]

    def fix(self, numbers: Mapping[str, int]) -> None:
        """Put numbers in the place of dims."""
        self.names = {axis: numbers.get(str(name), name) for axis, name in self.names.items()}
        for name in numbers:
            del self.extents[name]

    def join(self, first: Dim, second: Dim, same: Same, *, needed: bool) -> bool:
        """Make two dims one, the earlier; false if they are the same already, or cannot be."""
        kept, gone = sorted((str(first), str(second)), key=lambda name: (len(name), name))
        known = kept in self.extents and gone in self.extents and kept != gone
        if not known or not same(self.extents[kept], self.extents[gone], needed):
            return False
        self.names = {axis: kept if name == gone else name for axis, name in self.names.items()}
        del self.extents[gone]
        return True
