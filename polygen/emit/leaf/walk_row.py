"""Walks over the elements of a row, in the launch that follows: terms of folds, or what is stored.

What a walk needs of the kernel's values is computed again, from what the kernel has kept.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from polygen.emit.ctext import PointwiseWriter
from polygen.emit.doubles import rounding_of
from polygen.emit.folds import appended, short_beside_folds, stored
from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaf.finish_folds import arguments, computed, result_variable
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import c_type, real_of
from polygen.emit.names import c_name
from polygen.emit.row_places import address, coordinates
from polygen.frontend.closure import needed
from polygen.frontend.program import Access, Fold, Index, Pointwise, Tensor
from polygen.lower.folds import split_of
from polygen.lower.follow_work import Held, HoldRow, Walk, known
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.follow_program import (
    BESIDE,
    ELEMENT,
    ELEMENTS,
    WORD,
    element_of,
    held_from,
)
from polygen.poly.pointwise import Compute

_OWN, _AT = "fold_own", "fold_at"


@leaf("hold_row", "threads", HoldRow, (WORD,))
def _(plan: KernelPlan, one: Leaf, work: HoldRow) -> Text:
    words, declared = _Words(plan, Walk(work.rows, (), (), 0, work.wide)), []
    for kept in split_of(plan).kept:
        if kept.value in work.values:
            name, kind = register_of(kept.value), c_type(kept.tensor.dtype)
            declared.append(f"WordOf<{kind}, {work.wide}> {name}[{work.words}];")
            words.kept(kept.tensor, kept.index, f"{name}[{WORD}]")
    for number, access in enumerate(work.reads):
        tensor, name = plan.program.tensors[access.name], register_of(f"read{number}")
        declared.append(f"WordOf<{c_type(tensor.dtype)}, {work.wide}> {name}[{work.words}];")
        words.moved(tensor, access.index, f"{name}[{WORD}]", into=False)
    lines = [*_visit(plan, work), *words.around([], [])]
    what = ", ".join((*work.values, *(access.name for access in work.reads)))
    note = f"{one.statement}: {what} -> registers, a word of {work.wide} elements for each lane"
    return Text(block(*lines), note, tuple(declared), parameters=f"const int {WORD}")


def register_of(value: str) -> str:
    """What lanes hold of a value that is kept, by its name."""
    return f"fold_{value}_words"


def _visit(plan: KernelPlan, work: HoldRow) -> list[str]:
    """The first element of a visit, as a line of C."""
    first = held_from(work.warps, plan.device.warp_size * work.wide)
    return [f"const long long {ELEMENT} = {first};"]


@leaf("walk_row", "threads", Walk, (ELEMENT,), (WORD,))
def _(plan: KernelPlan, one: Leaf, work: Walk) -> Text:
    lines, _ = walk_lines(plan, work)
    what = f"terms of {', '.join(f.write.name for f in work.folds)}"
    if not work.folds:
        what = ", ".join(work.rows.outputs)
    if work.held is not None:
        note = f"{one.statement}: {what}, of the elements that lanes hold"
        body = block(*_visit(plan, work.held), *lines)
        return Text(body, note, parameters=f"const int {WORD}")
    each = "one element" if work.wide == 1 else f"{work.wide} elements"
    note = f"{one.statement}: {what}, {each} for each lane, from {ELEMENT}"
    return Text(block(*lines), note, parameters=f"const long long {ELEMENT}")


def walk_lines(plan: KernelPlan, work: Walk) -> tuple[list[str], list[str]]:
    """The elements of a warp, as lines of C; with the helpers that they call."""
    rows, folds, tensors = work.rows, work.folds, plan.program.tensors
    keeps = {one.value: one for one in split_of(plan).kept}
    names = {value: known(value) for value in work.known}
    wanted = [a.name for one in folds for a in one.reads] if folds else list(rows.outputs)
    pointwise = [one for one in rows.statements if isinstance(one, Pointwise)]
    statements = needed(pointwise, wanted, set(names))
    writes = [] if folds else _writes(statements, rows.outputs)
    outputs = {own: result_variable(own) for own, _ in writes}
    made = [tensor for tensor in plan.program.inputs if tensor.name in rows.outputs]
    fast = short_beside_folds(plan, statements, bool(folds), made)
    real = real_of(plan)
    writer = PointwiseWriter(names, outputs, fast=fast, prefix=f"w{work.number}_", real=real)
    words, reads = _Words(plan, work), dict[Access, str]()
    lines = [
        *coordinates(_AT, [(at, rows.axes[at]) for at in rows.inner]),
        *(f"{real} {name};" for name in outputs.values()),
    ]
    accesses = [access for one in statements for access in one.reads]
    accesses += [access for one in folds for access in one.reads]
    for access in accesses:
        if access.name in keeps and access.name not in writer.names:
            kept = keeps[access.name]
            stored_there = words.read(kept.tensor, kept.index, access.name)
            value = f"from_{epilogue_type(kept.tensor)}({stored_there})"
            lines.append(f"const {real} {access.name} = {value};")
            writer.names[access.name] = access.name
        elif access.name in tensors and access not in reads:
            tensor = tensors[access.name]
            reads[access] = f"read_{len(reads)}" if tensor.dims else c_name(tensor.name)
            if tensor.dims:
                stored_there = words.read(tensor, access.index, reads[access], constant=True)
                value = f"from_{epilogue_type(tensor)}({stored_there})"
                lines.append(f"const {real} {reads[access]} = {value};")
    written = {one.name: own for own, one in writes}
    for one in statements:
        made_of = computed(one, writer, reads)
        writer.statement(replace(made_of, result=written.get(one.name, made_of.result)))
    lines += writer.lines
    ends = []
    for fold in folds:
        # Terms have the same bits in each of the loops that make them.
        terms = [f"rounded({one})" for one in terms_of(fold, writer, reads)]
        held = Held(fold.write.name, fold.function)
        ends.append(appended(fold.function, held.names, terms))
    for own, one in writes:
        ends.append(words.write(tensors[one.write.name], one.write.index, outputs[own]))
    helpers = [*writer.helpers, *([rounding_of(real)] if folds else [])]
    helpers = helpers if work.wide == 1 else ["word_of", *helpers]
    return words.around(lines, ends), helpers


def _writes(
    statements: Sequence[Pointwise], outputs: Container[str]
) -> list[tuple[str, Pointwise]]:
    """The statements that write outputs, each under a name of its own: parts of one are several."""
    found: dict[str, Pointwise] = {}
    for one in statements:
        name = one.write.name
        if name in outputs:
            found[f"{name}_{len(found)}" if name in found else name] = one
    return list(found.items())


class _Words:
    """Which elements are a lane's, and how they come and go: one by one, or as words.

    Where a lane has several they are words of the arrays in which they lie beside each other, while
    all of them are in the row. Those of the last word are moved one by one, and so are elements of
    other arrays. Elements beyond the end are computed from the last one: what is read is there.
    """

    def __init__(self, plan: KernelPlan, work: Walk) -> None:
        self.plan, self.work = plan, work
        self.padded = {one.tensor.name for one in split_of(plan).kept}
        self.declared: list[str] = []
        # In front of elements and behind them: where all are in the row, and at its end.
        self.before: tuple[list[str], list[str]] = ([], [])
        self.behind: tuple[list[str], list[str]] = ([], [])

    def read(
        self, tensor: Tensor, index: Sequence[Index], name: str, constant: bool = False
    ) -> str:
        """An element as it is stored.

        Args:
            tensor: the array.
            index: of the element.
            name: of a variable for what a lane has.
            constant: whether nothing writes the array while the kernel runs.
        """
        place, held = address(tensor, index), self.work.held
        if held is not None and name in held.values:
            return f"{register_of(name)}[{WORD}].of[{BESIDE}]"
        if held is not None and Access(tensor.name, tuple(index)) in held.reads:
            number = held.reads.index(Access(tensor.name, tuple(index)))
            return f"{register_of(f'read{number}')}[{WORD}].of[{BESIDE}]"
        if not self.work.together(tensor, index):
            return f"__ldg({place})" if constant else f"*({place})"
        word = self._word(tensor, name)
        if tensor.name in self.padded:
            self.kept(tensor, index, word)
        else:
            self.moved(tensor, index, word, into=False)
        return f"{word}.of[{BESIDE}]"

    def kept(self, tensor: Tensor, index: Sequence[Index], word: str) -> None:
        """A word of a row that the kernel keeps, which is whole at its end, too."""
        there = self._at_once(tensor, index, word)
        at_end = [f"{word} = {{}};", *_if(f"{_OWN} < {ELEMENTS}", there)]
        for lines, own in zip(self.before, (_scope(there), at_end), strict=True):
            lines += own

    def write(self, tensor: Tensor, index: Sequence[Index], value: str) -> str:
        """Store a value: the statement that does it, or puts it in a word."""
        made = stored(tensor.dtype, value)
        if not self.work.together(tensor, index):
            return f"*({address(tensor, index)}) = {made};"
        word = self._word(tensor, value)
        self.moved(tensor, index, word, into=True)
        return f"{word}.of[{BESIDE}] = {made};"

    def around(self, lines: list[str], ends: list[str]) -> list[str]:
        """The lines of an element and what ends them, for all that a lane has."""
        if self.work.wide == 1:
            last = f"const long long {_AT} = min({_OWN}, {ELEMENTS} - 1);"
            return [self.own(), last, *lines, *_if(f"{_OWN} < {ELEMENTS}", ends)]
        here = f"const long long {_AT} = {_OWN} + {BESIDE};"
        last = f"const long long {_AT} = min({_OWN} + {BESIDE}, {ELEMENTS} - 1);"
        inside = _if(f"{_OWN} + {BESIDE} < {ELEMENTS}", ends)
        each: tuple[list[str], ...] = ([], [])
        if lines or ends:
            each = (self._each([here, *lines, *ends]), self._each([last, *lines, *inside]))
        whole, at_end = (
            [*before, *own, *behind]
            for before, own, behind in zip(self.before, each, self.behind, strict=True)
        )
        condition = f"{_OWN} + {self.work.wide} <= {ELEMENTS}"
        both = [*_if(condition, whole)[:-1], "} else {", *_deeper(at_end), "}"]
        return [self.own(), *self.declared, *both]

    def own(self) -> str:
        """Which element is a lane's first, of those that its warp visits."""
        return f"const long long {_OWN} = {element_of(self.work.wide, '').format(ELEMENT)};"

    def _word(self, tensor: Tensor, name: str) -> str:
        """A variable for what a lane has of an array, declared."""
        word = f"{name}_word"
        self.declared.append(f"WordOf<{c_type(tensor.dtype)}, {self.work.wide}> {word};")
        return word

    def moved(self, tensor: Tensor, index: Sequence[Index], word: str, *, into: bool) -> None:
        """A word from an array, or into it; one by one at the end of the row."""
        one, many = f"*({address(tensor, index)})", f"{word}.of[{BESIDE}]"
        each = [f"const long long {_AT} = min({_OWN} + {BESIDE}, {ELEMENTS} - 1);"]
        each += coordinates(_AT, [(at, self.work.rows.axes[at]) for at in self.work.rows.inner])
        if into:
            each += _if(f"{_OWN} + {BESIDE} < {ELEMENTS}", [f"{one} = {many};"])
        else:
            each.append(f"{many} = {one};")
        at_once = _scope(self._at_once(tensor, index, word, into=into))
        moving = self.behind if into else self.before
        for lines, own in zip(moving, (at_once, self._each(each)), strict=True):
            lines += own

    def _at_once(
        self, tensor: Tensor, index: Sequence[Index], word: str, *, into: bool = False
    ) -> list[str]:
        """All that a lane has of an array, at once."""
        kind = f"WordOf<{c_type(tensor.dtype)}, {self.work.wide}>"
        at_first = coordinates(_OWN, [(at, self.work.rows.axes[at]) for at in self.work.rows.inner])
        there = f"*reinterpret_cast<{'' if into else 'const '}{kind}*>({address(tensor, index)})"
        return [*at_first, f"{there} = {word};" if into else f"{word} = {there};"]

    def _each(self, lines: list[str]) -> list[str]:
        """Lines for each element that a lane has."""
        head = f"for (int {BESIDE} = 0; {BESIDE} < {self.work.wide}; ++{BESIDE}) {{"
        return ["#pragma unroll", head, *_deeper(lines), "}"]


def _if(condition: str, lines: list[str]) -> list[str]:
    return [f"if ({condition}) {{", *_deeper(lines), "}"]


def _scope(lines: list[str]) -> list[str]:
    """Lines whose variables are their own."""
    return ["{", *_deeper(lines), "}"]


def _deeper(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def terms_of(fold: Fold, writer: PointwiseWriter, reads: dict[Access, str]) -> list[str]:
    """What an element contributes to a fold."""
    given = Compute(fold.write.name, "", arguments(fold.args, writer, reads), fold.dtype)
    return [writer.operand(writer.names.get(a, a) if isinstance(a, str) else a) for a in given.args]
