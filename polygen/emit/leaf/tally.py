"""Folds of operands: a ring's elements -> terms -> registers -> results of rows in shared memory.

Nothing branches between the loads and the registers: terms behind the end of k are replaced by what
adds nothing, and threads without a row of their own fold the last one, and do not write it. Around
all of it may stand one condition on the block's tile, the same for all threads, which leaves the
products of warpgroups as far ahead as they are without it.
"""

from __future__ import annotations

import re

from polygen.emit.ctext import PointwiseWriter, definition, pointwise
from polygen.emit.doubles import literal_of
from polygen.emit.element_types import name_of, of_word
from polygen.emit.folds import combined, exchanged, extent_text, identities, stored
from polygen.emit.functions import is_costly
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import (
    c_type,
    double_of_words,
    plus,
    real_of,
    real_type,
    scaled,
    shared_number,
    size_name,
    slot_address,
    write_number,
)
from polygen.emit.names import c_name
from polygen.frontend.dtypes import S32, DType
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.program import Tensor
from polygen.lower.fragments import Beside
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.tally import Leave, Stored, Tally
from polygen.poly.elements import Along, Element
from polygen.poly.ring_folds import RingFold

_WORD_BYTES = 4
_SEVERAL = 8  # accesses of several rows on their way to a thread: their sums are few
_FEW = 2  # accesses whose terms are long: more take registers from the sums
_SHORT = 4  # statements that make short terms, of all folds


@leaf("begin", "threads", Tally)
def _(plan: KernelPlan, one: Leaf, work: Tally) -> Text:
    count, declared, cleared = work.own * work.ways, [], []
    real = real_of(plan)
    for fold in work.folds:
        names = work.names(fold)
        declared.append(f"{real} {', '.join(f'{n}[{work.own}][{work.ways}]' for n in names)};")
        cleared += [
            f"(&{name}[0][0])[fold_i] = {value};"
            for name, value in zip(names, identities(fold.monoid, real), strict=True)
        ]
    lines = [
        "#pragma unroll",
        f"for (int fold_i = 0; fold_i < {count}; ++fold_i) {{ {' '.join(cleared)} }}",
    ]
    return Text(block(*lines), f"{one.statement}: nothing is folded yet", tuple(declared))


@leaf("tally", "threads", Tally, ("k",), needs=("shared_words", "words"))
def _(plan: KernelPlan, one: Leaf, work: Tally) -> Text:
    slot = f"{work.counter}.slot" if work.counter else f"(k % {plan.buffer(work.buffer).slots})"
    size, each = work.element.dtype.bytes, work.threads // work.lanes
    row, byte = ("own_row", f"first_k * {size}") if work.k_inner else ("own_k", f"own_row * {size}")
    together = work.access * work.across
    words = -(-together * size // _WORD_BYTES)
    real = real_of(plan)
    own_k = "first_k + e" if work.across == 1 else "first_k"
    inner = [
        f"const {real} element = {_number(work, size)};",
        f"const int own_k = {work.k_tile} * {work.depth} + {own_k};",
    ]
    by_row = [_row(work)] if any(map(_by_row, work.folds)) else []
    if work.across > 1:
        inner, by_row = [*inner, *by_row], []
    for fold, beside in zip(work.folds, work.beside, strict=True):
        inner += ["{", *(f"  {line}" for line in _term(work, fold, beside, real)), "}"]
    lines = [
        f"const unsigned tile = {slot_address(plan.buffer(work.buffer), slot)};",
        "#pragma unroll",
        f"for (int turn_of_row = 0; turn_of_row < {work.turns}; ++turn_of_row) {{",
        f"  const int own_row = min({_own_row(work, each)}, {work.rows - work.across}){work.part};",
        *(f"  {line}" for line in by_row),
        f"#pragma unroll {_together(plan, work)}".rstrip(),
        f"  for (int access = 0; access < {work.accesses}; ++access) {{",
        f"    const int first_k = ({_lane(work)} + access * {work.lanes}) * {work.access};",
        f"    unsigned held[{words}];",
        "    {",
        f"      const int row = {row.replace('own_k', 'first_k')}, byte = {byte};",
        f"      load_shared<{together * size}>(held, tile + {work.place});",
        "    }",
        "#pragma unroll",
        f"    for (int e = 0; e < {together}; ++e) {{",
        *(f"      {line}" for line in inner),
        "    }",
        "  }",
        "}",
    ]
    if work.only:
        lines = [
            f"if ({' && '.join(f'{dim} == 0' for dim in work.only)}) {{",
            *(f"  {t}" for t in lines),
            "}",
        ]
    values = ", ".join(fold.value for fold in work.folds)
    note = f"{one.statement}[k]: elements of {work.buffer} into {values}, {work.order}"
    return Text(_with_margin(lines), note)


def _together(plan: KernelPlan, work: Tally) -> str:
    """Of how many accesses terms are in one piece of code; "": of all, without a branch between.

    A branch beside products that are on their way keeps those behind it waiting.
    """
    if work.across > 1:
        return str(_SEVERAL)
    computed = [one for fold in work.folds for one in fold.statements]
    short = (
        len(computed) <= _SHORT
        and not any(is_costly(one.function, one.args) for one in computed)
        and all(len(fold.terms) == 1 for fold in work.folds)
        and not any(work.beside)
    )
    return "" if short and plan.atom.scope == "warpgroup" else str(_FEW)


@leaf("share", "threads", Tally, needs=("words",))
def _(plan: KernelPlan, one: Leaf, work: Tally) -> Text:
    each, buffer, real = work.threads // work.lanes, plan.buffer(work.norms), real_of(plan)
    agent = plan.place(one.place).agent
    lines = [
        "#pragma unroll",
        f"for (int turn_of_row = 0; turn_of_row < {work.own}; ++turn_of_row) {{",
        f"  const int own_row = {_shared_row(work, each)};",
    ]
    for fold in work.folds:
        names = [f"fold_{at}" for at in range(len(fold.terms))]
        registers = [f"{name}[turn_of_row]" for name in work.names(fold)]
        begin = ", ".join(f"{n} = {r}[0]" for n, r in zip(names, registers, strict=True))
        body, (value,), _ = definition(
            lambda *v, finish=MONOIDS[fold.monoid].finish: (finish(*v),), names, "fold_", real=real
        )
        inside = [
            f"{real} {begin};",
            *(
                combined(fold.monoid, names, [f"{r}[{way}]" for r in registers])
                for way in range(1, work.ways)
            ),
            *exchanged(fold.monoid, names, work.masks),
            *body,
            f"{fold.value}_row = {value};",
        ]
        lines += [f"  {real} {fold.value}_row;", "  {", *(f"    {line}" for line in inside), "  }"]
    made, known, _ = of_rows(work, real)
    own = f"own_row < {work.rows}"
    if work.lanes > 1:
        own += f" && {_lane(work)} == 0"
    lines += [f"  {line}" for line in made]
    lines.append(f"  if ({own}) {{")
    size = plan.program.real.bytes
    for number, (_, value) in enumerate(work.of.results):
        place = f"{work.norms}_at + ({number * work.rows} + own_row) * {size}"
        lines.append(f"    {write_number(place, known[value], real)};")
    lines += ["  }", "}"]
    declared = (
        f"const unsigned {work.norms}_at = shared + {buffer.offset} + "
        f"{agent} * {buffer.owner_bytes};",
    )
    note = f"{one.statement}: lanes with terms of one row meet, and one writes its result"
    return Text(block(*lines).replace("  #pragma", "#pragma"), note, declared)


@leaf("leave", "threads", Leave, needs=("words",))
def _(plan: KernelPlan, one: Leaf, work: Leave) -> Text:
    lines = []
    for first in dict.fromkeys(each.first for each in work.outputs):
        lines.append(f"if ({' && '.join(f'{dim} == 0' for dim in first)}) {{")
        own = [each for each in work.outputs if each.first == first]
        lines += [*(f"  {line}" for line in _stores(work, own, plan.program.real)), "}"]
    names = ", ".join(each.tensor.name for each in work.outputs)
    note = f"{one.statement}: {names}, by the first of the tiles that have these rows"
    return Text(_with_margin(lines), note)


def _stores(work: Leave, outputs: list[Stored], real: DType) -> list[str]:
    """What stores results of an agent's rows, as many threads at a time as it has."""
    of = work.work
    lines = [
        "#pragma unroll",
        f"for (int turn_of_row = 0; turn_of_row < {work.turns}; ++turn_of_row) {{",
        f"  const int own_row = {of.thread} + turn_of_row * {of.threads};",
        f"  const int row_of_all = {of.tile}{of.part} + own_row;",
        f"  if (own_row < {of.rows} && row_of_all < {size_name(of.extents[0])}) {{",
    ]
    for each in outputs:
        place = f"{of.norms}_at + ({each.number * of.rows} + own_row) * {real.bytes}"
        held = shared_number(place, real_type(real))
        held = f"round_s32({held})" if each.tensor.dtype == S32 else held
        terms = [c_name(each.tensor.name), *each.base]
        if each.step != "0":
            terms.append(scaled("row_of_all", each.step))
        lines.append(f"    *({' + '.join(terms)}) = {stored(each.tensor.dtype, held)};")
    return [*lines, "  }", "}"]


def _with_margin(lines: list[str]) -> str:
    """Lines with directives at the margin."""
    return re.sub("^ +#pragma", "#pragma", block(*lines), flags=re.MULTILINE)


def of_rows(work: Tally, real: str) -> tuple[list[str], dict[str, str], list[str]]:
    """What is computed of a row's results: lines, expressions by value, and helpers."""
    names = {fold.value: f"{fold.value}_row" for fold in work.folds}
    names |= {name: f"({real})({extent_text(dims)})" for name, dims in work.of.sizes}
    names |= {name: c_name(name) for name in work.of.scalars}
    writer = PointwiseWriter(names, {}, fast=False, prefix="row_", real=real)
    for statement in work.of.statements:
        writer.statement(statement)
    return writer.lines, writer.names, writer.helpers


def tally_helpers(plan: KernelPlan) -> tuple[str, ...]:
    """The files of functions that terms call, and what is computed of results."""
    found, real = list[str](), real_of(plan)
    for work in dict.fromkeys(plan.of(Tally)):
        for fold in work.folds:
            found += statements(fold, real)[1]
            left = [f"a{at}" for at in range(len(fold.terms))]
            finish = MONOIDS[fold.monoid].finish
            found += definition(lambda *v, finish=finish: (finish(*v),), left, real=real)[2]
        found += of_rows(work, real)[2]
    return tuple(found)


def tally_monoids(plan: KernelPlan) -> tuple[str, ...]:
    """By which terms are combined."""
    return tuple(fold.monoid for work in plan.of(Tally) for fold in work.folds)


def tally_tensors(plan: KernelPlan) -> tuple[Tensor, ...]:
    """What terms are computed from."""
    found = []
    for work in dict.fromkeys(plan.of(Tally)):
        found += [work.element, *(b.tensor for beside in work.beside for b in beside)]
    return tuple(tensor for tensor in found if tensor.dims)


def _own_row(work: Tally, each: int, turn: str = "turn_of_row") -> str:
    """The first of a thread's rows, of a turn."""
    row = work.thread if work.lanes == 1 else f"{work.thread} / {work.lanes}"
    if work.across > 1:
        row, each = f"{row} * {work.across}", each * work.across
    return f"{row} + {turn} * {each}"


def _shared_row(work: Tally, each: int) -> str:
    """The row that a register has terms of."""
    if work.across == 1:
        return _own_row(work, each)
    first = _own_row(work, each, f"turn_of_row / {work.across}")
    return f"{first} + turn_of_row % {work.across}"


def _lane(work: Tally) -> str:
    return "0" if work.lanes == 1 else f"{work.thread} % {work.lanes}"


def _row(work: Tally) -> str:
    """The row of the array, the last one behind it."""
    row = "own_row" if work.across == 1 else "own_row + e"
    return f"const int row_of_all = min({work.tile} + {row}, {size_name(work.extents[0])} - 1);"


def _by_row(fold: RingFold) -> bool:
    """Whether terms depend on more of their row than the ring has."""
    along = [at.dim for read in fold.reads for at in read.index]
    return any(dim in ("m", "n") for dim in (*along, *(at.dim for _, at in fold.coordinates)))


def _number(work: Tally, size: int) -> str:
    """Element `e` of an access, as a number."""
    if size > _WORD_BYTES:
        return double_of_words("held", "2 * e", "2 * e + 1")
    return _float(work.element, *_word(work, size))


def _word(work: Tally, size: int) -> tuple[str, str]:
    """The word that has element `e` of an access, and which of the word's it is."""
    together = work.access * work.across
    if size >= _WORD_BYTES or together == 1:
        return ("held[e]" if together > 1 else "held[0]"), "0"
    per = _WORD_BYTES // size
    return f"held[e / {per}]", f"e % {per}"


def _float(tensor: Tensor, word: str, place: str) -> str:
    size = tensor.dtype.bytes
    if size == _WORD_BYTES:
        return of_word(tensor.dtype, word)
    shift = "" if place == "0" else f" >> {place} * {8 * size}"
    return f"from_{name_of(tensor.dtype)}(({c_type(tensor.dtype)})({word}{shift}))"


def statements(fold: RingFold, real: str) -> tuple[list[str], tuple[str, ...]]:
    """What makes the terms of `element`, and the helper files it needs."""
    names = {fold.element: "element"} | {one.name: f"{one.name}_term" for one in fold.reads}
    names |= {name: f"{name}_term" for name, _ in fold.coordinates}
    written = {t: f"{t}_term" for t in fold.terms if isinstance(t, str)}
    return pointwise(fold.statements, names, written, False, real=real)


def _term(work: Tally, fold: RingFold, beside: tuple[Beside, ...], real: str) -> list[str]:
    """The term of one element, combined into its row's registers."""
    k_extent = size_name(work.extents[1])
    lines = [f"const int column = min(own_k, {k_extent} - 1);"] if beside else []
    lines += [f"const {real} {one.name}_term = {_of_memory(one)};" for one in beside]
    places = ((name, _coordinate(work, at, real)) for name, at in fold.coordinates)
    lines += [f"const {real} {name}_term = {text};" for name, text in places]
    terms = [t for t in fold.terms if isinstance(t, str)]
    lines += [f"{real} {t}_term;" for t in terms]
    lines += statements(fold, real)[0]
    values = [f"{t}_term" if isinstance(t, str) else literal_of(t, real) for t in fold.terms]
    if not work.whole(fold):
        nothing = identities(fold.monoid, real)
        values = [
            f"own_k < {k_extent} ? {value} : {none}"
            for value, none in zip(values, nothing, strict=True)
        ]
    way = f"e % {work.ways}" if work.ways > 1 else "0"
    row = "turn_of_row" if work.across == 1 else f"turn_of_row * {work.across} + e"
    into = [f"{name}[{row}][{way}]" for name in work.names(fold)]
    return [*lines, combined(fold.monoid, into, values)]


def _of_memory(one: Beside) -> str:
    """What goes with the element in an array that is read beside the ring."""
    if not one.tensor.dims:
        return c_name(one.tensor.name)
    places = (("row_of_all", one.row_step, one.per[0]), ("column", one.k_step, one.per[1]))
    steps = [
        scaled(name if per == 1 else f"({name} / {per})", step)
        for name, step, per in places
        if step != "0"
    ]
    address = " + ".join([c_name(one.tensor.name), *one.base, *steps])
    return f"from_{name_of(one.tensor.dtype)}(__ldg({address}))"


def _coordinate(work: Tally, at: Along, real: str) -> str:
    variable = {"k": "own_k", work.role: "row_of_all"}.get(at.dim, at.dim)
    variable = variable if at.per == 1 else f"({variable} / {at.per})"
    text = variable if at.scale == 1 else f"{variable} * {at.scale}"
    return f"({real})({plus(text, at.offset)})"


def elements(tensors: tuple[Tensor, ...]) -> tuple[Element, ...]:
    """Tensors as what reads have."""
    return tuple(Element(tensor.name, tensor, ()) for tensor in tensors)
