"""`Program` -> `Cut`s: along which dims ranks may share it, and where they have to add up.

1. Axes of arrays and iterators of statements that are one another's index are one *dim* of the
   program. A rank gets a range of it, and the arrays without it whole.
2. Statement by statement, a value is *whole* on every rank, *split* along one axis, or a *part* of
   a sum: that of a contraction or fold over the dim.
3. A statement that is linear in parts gives a part: parts times what is whole, sums of parts,
   casts. Any other one, such as a bias or an activation, reads the sum: it *waits* for it. The
   program then is two, up to the sums and behind them, with the sum over ranks in between.
4. What only adds to a sum need not wait for it: one rank may add it to its part. It counts once.
5. A dim has no cut where what is computed depends on where in it an element is: coordinates,
   slices, extents, rows by index along it, folds over it that are no sums; and where parts would
   have to be added up twice.

Rounding is no obstacle: parts are rounded to the type in which they are added up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polygen.frontend.closure import needed
from polygen.frontend.forms import Form
from polygen.frontend.program import (
    Access,
    Affine,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Extent,
    Fold,
    Gathered,
    Pointwise,
    Program,
    Statement,
    Tensor,
)

WHOLE, PART = "whole", "part"
State = int | str  # an axis, WHOLE or PART
_Node = tuple[str, str | int]  # a value and its axis, or a statement and its iterator


@dataclass(frozen=True, slots=True)
class Cut:
    """How ranks share a program along one dim.

    Attributes:
        dim: its extent, a symbolic size.
        inputs: per input the axis that is split, or "whole".
        outputs: per output the axis that is split, "whole" or "part": of a sum over ranks.
        head: what ranks compute before they add up; the program itself where nothing waits.
        tail: what they compute of the sums, whole; None where nothing waits.
        waits: the statement that makes a sum be waited for, in words; "" where nothing waits.
        once: whether what waits only adds to one sum, so that the sum over ranks of their parts is
            the result if one of them, whichever, computes the program where the others compute
            its head.
    """

    dim: str
    inputs: tuple[State, ...]
    outputs: tuple[State, ...]
    head: Program
    tail: Program | None = None
    waits: str = ""
    once: bool = False


def cuts(program: Program) -> tuple[Cut, ...]:
    """The ways in which ranks may share a program, in the order of its inputs' dims."""
    dims = _Dims(program)
    found = (_Cutter(program, dims, root).cut() for root in dims.roots())
    return tuple(cut for cut in found if cut is not None)


class _Dims:
    """Axes and iterators that are one dim, by union and find."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parent: dict[_Node, _Node] = {}
        self.extents: dict[_Node, set[Dim]] = {}
        self.refused: set[_Node] = set()
        for tensor in (*program.inputs, *program.outputs):
            for axis, extent in enumerate(tensor.dims):
                self.extents.setdefault((tensor.name, axis), set()).add(extent)
        for statement in program.statements:
            for iterator, extent in statement.domain:
                self.extents.setdefault((statement.name, iterator), set()).add(extent)
            for access in (statement.write, *statement.reads):
                self._access(statement, access)
            if not isinstance(statement, Contraction):
                self._places(statement)

    def _access(self, statement: Statement, access: Access) -> None:
        for axis, index in enumerate(access.index):
            node = (access.name, axis)
            if isinstance(index, str):
                self._join(node, (statement.name, index))
                continue
            self.refused.add(node)
            if isinstance(index, Affine):
                self.refused.add((statement.name, index.iterator))
            elif isinstance(index, Gathered):
                digits = Access("", tuple(p for p in index.places if not isinstance(p, str | int)))
                self.refused |= {(statement.name, iterator) for iterator in digits.iterators}
            elif isinstance(index, Form):
                self.refused |= {(statement.name, iterator) for iterator in index.iterators}
            elif not isinstance(index, int):  # rows of a group
                self.refused |= {(statement.name, i) for i in (index.iterator, index.group)}
        for vector in access.indexed_by:
            self._access(statement, vector)

    def _places(self, statement: Pointwise | Fold) -> None:
        """What depends on coordinates or extents."""
        for arg in statement.args:
            if isinstance(arg, Coordinate):
                self.refused |= {(statement.name, iterator) for iterator in arg.iterators}
            elif isinstance(arg, Extent):
                self.refused |= {n for n, known in self.extents.items() if known & set(arg.dims)}

    def _join(self, one: _Node, other: _Node) -> None:
        self.parent[self.find(one)] = self.find(other)

    def find(self, node: _Node) -> _Node:
        """What stands for the dim of a node."""
        while (above := self.parent.get(node, node)) != node:
            node = above
        return node

    def roots(self) -> list[_Node]:
        """The dims of inputs that may be shared, of symbolic extent."""
        refused = {self.find(node) for node in self.refused}
        extents: dict[_Node, set[Dim]] = {}
        for node, known in self.extents.items():
            extents.setdefault(self.find(node), set()).update(known)
        found = dict.fromkeys(
            self.find((tensor.name, axis))
            for tensor in self.program.inputs
            for axis in range(len(tensor.dims))
        )
        shared = [extent for known in extents.values() for extent in known]
        return [
            root for root in found
            if root not in refused
            # A name that two dims have in common stands for one size: neither may change alone.
            and all(isinstance(e, str) and shared.count(e) == 1 for e in extents[root])
        ]  # fmt: skip

    def extent(self, root: _Node) -> str:
        """The extent of a dim."""
        known = (e for node, es in self.extents.items() if self.find(node) == root for e in es)
        return str(min(map(str, known)))


class _Stuck(Exception):
    """The dim has no cut."""


class _Cutter:
    """The states of all values, for one dim."""

    def __init__(self, program: Program, dims: _Dims, root: _Node) -> None:
        self.program, self.dims, self.root = program, dims, root
        self.states: dict[str, State] = {}
        self.waiting: list[Statement] = []
        self.sums: dict[str, None] = {}  # parts that are added up, in order
        self.reason = ""

    def cut(self) -> Cut | None:
        """The cut along the dim, if there is one."""
        try:
            return self._cut()
        except _Stuck:
            return None

    def _cut(self) -> Cut:
        program = self.program
        for tensor in program.inputs:
            self.states[tensor.name] = self._input(tensor)
        for statement in program.statements:
            self.states[statement.write.name] = self._state(statement)
        inputs = tuple(self.states[tensor.name] for tensor in program.inputs)
        outputs = tuple(self.states[tensor.name] for tensor in program.outputs)
        dim = self.dims.extent(self.root)
        if not self.waiting:
            return Cut(dim, inputs, outputs, program)
        head, tail = self._halves()
        return Cut(dim, inputs, outputs, head, tail, self.reason, _only_adds(tail, list(self.sums)))

    def _input(self, tensor: Tensor) -> State:
        axes = [a for a in range(len(tensor.dims)) if self._is((tensor.name, a))]
        if len(axes) > 1:
            raise _Stuck
        return axes[0] if axes else WHOLE

    def _is(self, node: _Node) -> bool:
        return self.dims.find(node) == self.root

    def _split(self, statement: Statement) -> str | None:
        """The iterator of a statement along the dim."""
        found = [it for it, _ in statement.domain if self._is((statement.name, it))]
        if len(found) > 1:
            raise _Stuck
        return found[0] if found else None

    def _state(self, statement: Statement) -> State:
        iterator = self._split(statement)
        parts = [a.name for a in statement.reads if self.states[a.name] == PART]
        late = {s.write.name for s in self.waiting}
        behind = [a.name for a in statement.reads if a.name in late]
        if isinstance(statement, Pointwise):
            linear = iterator is None and _linear(statement, set(parts))
        else:
            linear = iterator is None and _linear_sum(statement, parts)
        if behind or (parts and not linear):
            return self._later(statement, parts, iterator)
        if parts:
            return PART
        if iterator is None:
            return WHOLE
        if iterator in statement.write.iterators:
            return statement.write.index.index(iterator)
        if isinstance(statement, Contraction) or (
            isinstance(statement, Fold) and statement.function == "sum"
        ):
            return PART
        raise _Stuck

    def _later(self, statement: Statement, parts: list[str], iterator: str | None) -> State:
        """A statement that reads sums; it is computed behind them."""
        if iterator is not None:  # values that are split would have to be brought together
            raise _Stuck
        self.waiting.append(statement)
        self.sums |= dict.fromkeys(parts)
        if parts and not self.reason:
            self.reason = f"{statement} reads the sum {parts[0]}"
        return WHOLE

    def _halves(self) -> tuple[Program, Program]:
        """The program up to the sums, and behind them."""
        program, late = self.program, {s.name for s in self.waiting}
        written = {s.write.name: s for s in program.statements}
        names = {tensor.name for tensor in program.outputs}
        if names & {n for n, state in self.states.items() if state == PART}:
            raise _Stuck  # of several results one is a part, another one waits
        tail_inputs = {a.name for s in self.waiting for a in s.reads} - {
            s.write.name for s in self.waiting
        }
        carried = [n for n in tail_inputs - {t.name for t in program.inputs}
                   if self.states[n] != PART]  # fmt: skip
        if carried or any(isinstance(self.states[t.name], int) for t in program.outputs):
            raise _Stuck
        early = needed([s for s in program.statements if s.name not in late], self.sums)
        head_reads = {a.name for s in early for a in s.reads}
        sums, rounded = [], []
        dtype = program.outputs[0].dtype  # parts are as wide as results, as those of libraries are
        for number, name in enumerate(self.sums):
            source, part = written[name], f"part{number}"
            extents = dict(source.domain)
            over = source.write.iterators
            dims = tuple(extents[i] for i in over)
            sums.append(Tensor(name, dtype, dims, tuple(range(len(dims)))))
            domain = tuple((i, extents[i]) for i in over)
            write, read = Access(part, over), Access(name, over)
            rounded.append(Pointwise(f"R{number}", domain, write, "cast", (read,), dtype))
        head = replace(
            program,
            name=f"{program.name}_parts",
            inputs=tuple(t for t in program.inputs if t.name in head_reads),
            outputs=tuple(replace(t, name=f"part{n}") for n, t in enumerate(sums)),
            statements=(*early, *rounded),
            invariant=(),
        )
        kept = tuple(t for t in program.inputs if t.name in tail_inputs)
        tail = replace(
            program,
            name=f"{program.name}_rest",
            inputs=(*sums, *kept),
            statements=tuple(self.waiting),
            invariant=(),
        )
        return head, tail


def _only_adds(tail: Program, sums: list[str]) -> bool:
    """Whether every statement adds something to the only sum, element by element."""
    late = set(sums)
    for statement in tail.statements:
        if not isinstance(statement, Pointwise):
            return False
        behind = [isinstance(arg, Access) and arg.name in late for arg in statement.args]
        name = statement.function
        adds = name == "add" or (name == "sub" and behind[0])
        if not adds and not (name == "cast" and statement.dtype.kind == "float"):
            return False
        places = [access.index for access in statement.reads if access.name in late]
        if places != [statement.write.index]:  # once, and where it is written
            return False
        if not all(isinstance(index, str) for index in statement.write.index):
            return False
        late.add(statement.write.name)
    return len(sums) == 1 and len(tail.outputs) == 1


def _linear_sum(statement: Contraction | Fold, parts: list[str]) -> bool:
    if isinstance(statement, Fold):
        return statement.function == "sum"
    return len(parts) == 1


_OF_ALL = ("add", "sub", "where")  # linear in all of their arguments together


def _linear(statement: Pointwise, parts: set[str]) -> bool:
    """Whether the sum over ranks of a statement is the statement of the sums."""
    are = [isinstance(arg, Access) and arg.name in parts for arg in statement.args]
    name = statement.function
    if name in ("neg", "cast"):
        return name == "neg" or statement.dtype.kind == "float"
    if name == "mul":
        return are.count(True) == 1
    if name == "div":
        return are == [True, False]
    if name in _OF_ALL:
        first = 1 if name == "where" else 0
        zeros = [isinstance(a, Constant) and a.value == 0 for a in statement.args]
        pairs = list(zip(are, zeros, strict=True))
        return not any(are[:first]) and all(part or zero for part, zero in pairs[first:])
    return False
