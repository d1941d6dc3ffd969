"""Elements of the epilogue's arrays in C: conversions, reads of vectors and words, one result.

`compute` is the fused program on one element: the sum and the operands' elements in, the outputs'
elements out. At ragged edges, and for arrays that no word access can read, an element goes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.emit.ctext import pointwise
from polygen.emit.doubles import literal_of
from polygen.emit.element_types import name_of, type_records
from polygen.emit.folds import appended, combined, extent_text, short_beside_folds
from polygen.emit.functions import FAST_BITS
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import coordinate, element_of, if_stored, position, real_of
from polygen.emit.names import c_name
from polygen.frontend.closure import made_of
from polygen.frontend.dtypes import S32
from polygen.frontend.program import Access, Pointwise, Tensor
from polygen.lower.follow_work import Settle, Walk
from polygen.lower.make_rows import read_by
from polygen.lower.plan import KernelPlan, Leaf, MakePlan, MakeRowsPlan
from polygen.lower.result_work import Epilogue, FoldPart, Read, Write
from polygen.poly.elements import Compute, Element

_WORD_BYTES, _HALF_BYTES = 4, 2
_PAIR = 2  # adjacent results


def epilogue_type(tensor: Tensor) -> str:
    """The name under which the epilogue reads and writes a tensor's dtype."""
    return name_of(tensor.dtype)


def types(plan: KernelPlan, more: Sequence[Read | Write | Element] = ()) -> dict[str, Any]:
    """The element types of the epilogue's operands and outputs, of what else is read or stored
    so, and those that are rounded to.
    """
    last = [one.epilogue for one in plan.each]
    every = plan.epilogues
    tensors = [r.tensor for r in (*(r for e in every for r in e.reads), *more) if r.tensor.dims]
    tensors += [w.tensor for e in last for w in e.writes]
    casts = [s.dtype for s in plan.program.pointwise if s.function == "cast"]
    if plan.match.rest is not None:
        casts += [s.dtype for s in plan.match.rest.statements if s.function == "cast"]
    computed = (one.operand.computed for one in plan.copies if isinstance(one, MakePlan))
    before: list[Compute | Pointwise] = [s for c in computed if c is not None for s in c.statements]
    rows = [one for one in plan.copies if isinstance(one, MakeRowsPlan)]
    before += [s for one in rows for s in one.made.pointwise]
    named = (read_by(one.made, plan.program) for one in rows)
    reads = [plan.program.tensors[access.name] for each in named for access in each]
    tensors += [*(tensor for tensor in reads if tensor.dims), *(one.tensor for one in rows)]
    tensors += [plan.program.tensors[a.name] for a in _read_behind(plan)]
    casts += [s.dtype for s in before if s.function == "cast"]
    outputs = [tensor.dtype for tensor in plan.program.outputs]
    given = (t.dtype for t in tensors)
    return type_records(given, (*casts, *outputs), plan.device, real_of(plan))


def _read_behind(plan: KernelPlan) -> list[Access]:
    """What the launch that follows reads of arrays that the program has."""
    works = [leaf.work for group in plan.groups for leaf in group.leaves]
    found = [access for one in works if isinstance(one, Settle) for _, access in one.reads]
    statements = [s for one in works if isinstance(one, Walk) for s in one.rows.statements]
    found += [access for one in statements for access in one.reads]
    tensors = plan.program.tensors
    return [access for access in found if access.name in tensors and tensors[access.name].dims]


# --- the fused statements ------------------------------------------------------------------------
def _values(e: Epilogue) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the sums and of what is read, and of what is written."""
    read = dict(e.sums) | {read.name: read.name for read in e.reads}
    read |= {name: name for name, _ in e.coordinates}
    read |= {fold.value: fold.value for fold in e.known}
    return read, {name: f"{name}_result" for name in outcomes(e)}


def outcomes(e: Epilogue) -> list[str]:
    """What the statements make of one element: results that are stored, terms that are folded, and
    what is held.
    """
    terms = (term for fold in e.folds for term in fold.terms if isinstance(term, str))
    held = [e.holds[0]] if e.holds else []
    return [*(write.name for write in e.writes), *terms, *held]


def does_nothing(e: Epilogue) -> bool:
    """Whether it is a pass of a section that folds nothing there, beside others that do."""
    return not (e.writes or e.folds or e.holds)


def folded(
    e: Epilogue,
    element: int,
    at: int,
    folds: Sequence[FoldPart] | None = None,
    *,
    real: str = "float",
) -> list[str]:
    """Terms of one element of instruction (m, n), combined into the registers of their parts.

    Args:
        e: the folds.
        element: of the instruction's that the lane has.
        at: which of the terms at hand are its.
        folds: of these; None: of all.
        real: the C type of terms.
    """
    folds = e.folds if folds is None else folds
    places = [
        f"[{fold.along or '0'}][{fold.slots[element]}][{fold.turns[element]}]" for fold in folds
    ]
    return combined_at(folds, places, at, real=real)


def combined_at(
    folds: Sequence[FoldPart],
    places: list[str],
    at: int | str,
    *,
    real: str = "float",
    behind: bool = True,
) -> list[str]:
    """Terms combined into registers, of each fold at a place of its own.

    Args:
        folds: which.
        places: their registers' indices.
        at: which of the terms at hand are theirs.
        real: the C type of terms.
        behind: whether terms of all elements come behind those before them, not of rows alone.
    """
    lines = []
    for fold, place in zip(folds, places, strict=True):
        into = [name + place for name in fold.names]
        values = [
            f"{term}_out[{at}]" if isinstance(term, str) else literal_of(term, real)
            for term in fold.terms
        ]
        how = appended if behind or fold.along else combined
        lines.append(how(fold.monoid, into, values))
    return lines


def statements(plan: KernelPlan, e: Epilogue) -> tuple[list[str], tuple[str, ...]]:
    """The statements as lines of C, and the helper files they need."""
    read, written = _values(e)
    whole = [name for name, _ in e.sums] if plan.atom.c.dtype == S32 else []
    alone = not (e.folds or e.known)
    wide = [w.name for w in e.writes if w.tensor.dtype.bits > FAST_BITS]
    fast = alone or (not wide and short_beside_folds(plan, e.statements, bool(e.folds)))
    held = [e.holds[0]] if wide and e.holds else []
    reads = ((s.result, [a for a in s.args if isinstance(a, str)]) for s in e.statements)
    exact = made_of(reads, [*wide, *held])
    real = real_of(plan)
    read |= {name: f"({real})({extent_text(dims)})" for name, dims in e.sizes}
    return pointwise(e.statements, read, written, fast, whole, real, exact=exact)


@leaf("compute", "threads", Epilogue)
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    read, written = _values(e)
    real = real_of(plan)
    parameters = [f"{real} {name}" for name in read.values()]
    parameters += [f"{real}& {name}" for name in written.values()]
    return Text(
        block(*statements(plan, e)[0]),
        "The fused pointwise statements, on one element.",
        parameters=", ".join(parameters),
    )


@leaf("edge", "threads", Epilogue)
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    real, results = real_of(plan), [f"{name}_out" for name in outcomes(e)]
    stored = results[: len(e.writes)]
    lines = []
    for read in e.reads:
        if read.kind != "scalar":
            value = element_of(read, epilogue_type(read.tensor), "row", "(column + e)")
            lines.append(f"const {real} {_alone(read)} = {value};")
    lines += [f"{real} {name};" for name in stored]
    totals = [total for _, total in e.sums]
    places = [coordinate(along, "row", "column + e", real=real) for _, along in e.coordinates]
    known = [fold.value for fold in e.known]
    given = ", ".join([*totals, *map(_alone, e.reads), *places, *known, *results])
    lines.append(f"compute{e.suffix}({given});")
    for write, name in zip(e.writes, stored, strict=True):
        place = position(write, "row", "(column + e)")
        once = "if (column + e == 0) " if write.kind == "row" else ""
        once += if_stored(write, "row", "(column + e)")
        lines.append(f"{once}*({place}) = to_{epilogue_type(write.tensor)}({name});")
    return Text(
        "" if does_nothing(e) else block(*lines),
        "Results at the edge of the arrays, one at a time: element e of a vector at (row, column).",
        parameters=", ".join(
            ["int row, int column, int e", *(f"{real} {t}" for t in (*totals, *known))]
            + [f"{real}& {term}" for term in results[len(e.writes) :]]
        ),
    )


def _alone(read: Read) -> str:
    return c_name(read.tensor.name) if read.kind == "scalar" else f"{read.name}_element"


# --- vectors -------------------------------------------------------------------------------------
def vector_record(e: Epilogue, real: str = "float", column: str = "column") -> dict[str, Any]:
    """What reads, computes and writes a vector of results; `column`: that words are read at."""
    accesses: list[Read | Write] = [*e.reads, *e.writes]
    return {
        "vector": e.vector,
        "by_words": all(access.width >= _WORD_BYTES for access in accesses if in_words(access, e)),
        "real": real,
        "declarations": _declarations(e, real),
        "fetches": [line for r in e.reads if not is_hoisted(e, r) for line in _fetch(r, e, column)],
        "arguments": arguments(e, real=real),
        "results": [f"{real} {name}_out[{e.vector}];" for name in outcomes(e)],
        "stores": [_store(w, e) for w in e.writes],
    }


def arguments(e: Epilogue, column: str = "column", step: str = "e", *, real: str = "float") -> str:
    """What `compute` is called with for element e of a vector, `step` columns after `column`."""
    return ", ".join(
        [*(f"{total}s[e]" for _, total in e.sums), *(_element(r, e) for r in e.reads)]
        + [coordinate(along, "row", column, step, real=real) for _, along in e.coordinates]
        + [fold.value for fold in e.known]
        + [f"{name}_out[e]" for name in outcomes(e)]
    )


def only_words(e: Epilogue) -> bool:
    """Whether all that is read along n, for two elements, is read in words."""
    vectors = [read for read in e.reads if read.kind in ("vector", "strided")]
    sizes = {read.tensor.dtype.bytes for read in vectors}
    if not vectors or e.vector != _PAIR or not sizes <= {_HALF_BYTES, _WORD_BYTES}:
        return False
    return all(in_words(read, e) and read.width >= _WORD_BYTES for read in vectors)


def inside(e: Epilogue, column: str, extent: str) -> list[str]:
    """Reads for two elements of which some may lie behind the last column, that is then read twice.

    Args:
        e: that reads in words alone.
        column: of the first.
        extent: how many columns there are.
    """
    lines = []
    for read in e.reads:
        if read.kind not in ("vector", "strided"):
            lines += _fetch(read, e, column)
            continue
        words, last = (
            f"{read.name}_words[i]",
            f"__ldg({position(read, 'safe_row', f'({extent} - 1)')})",
        )
        if read.tensor.dtype.bytes == _HALF_BYTES:
            otherwise = f"{words}[0] = 0x10001u * {last};"
        else:
            real = epilogue_type(read.tensor) == "f32"
            bits = f"__float_as_uint({last})" if real else f"(unsigned){last}"
            otherwise = f"{words}[0] = {words}[1] = {bits};"
        lines += [
            f"if ({column} + 1 < {extent}) {read_vector(read, words, e, column)}",
            f"else {otherwise}",
        ]
    return lines


def is_hoisted(e: Epilogue, read: Read) -> bool:
    """Whether a read is the same in every row: no m in it, and lanes keep their column."""
    same = e.fixed_column and not read.m and in_words(read, e)
    return same and read.width >= _WORD_BYTES


def in_words(access: Read | Write, e: Epilogue) -> bool:
    """Whether a vector of an array is adjacent elements that are a word or more."""
    return access.kind == "vector" and word_count(access, e) > 0


def read_vector(read: Read, words: str, e: Epilogue, column: str = "column") -> str:
    """Reads a vector in words."""
    place = position(read, "safe_row", column)
    return f"read_words<{word_count(read, e)}, {max(read.width, _WORD_BYTES)}>({words}, {place});"


def word_count(access: Read | Write, e: Epilogue) -> int:
    """Words of a vector."""
    return e.vector * access.tensor.dtype.bytes // _WORD_BYTES


def _declarations(e: Epilogue, real: str) -> list[str]:
    lines = []
    for read in e.reads:
        if in_words(read, e) and not is_hoisted(e, read):
            lines.append(f"unsigned {read.name}_words[{e.batch}][{word_count(read, e)}];")
        elif read.kind == "row":
            lines.append(f"{real} {read.name}_element[{e.batch}];")
        elif read.kind in ("strided", "vector") and not is_hoisted(e, read):
            lines.append(f"{real} {read.name}_elements[{e.batch}][{e.vector}];")
    return lines


def _fetch(read: Read, e: Epilogue, column: str) -> list[str]:
    name = read.name
    if read.kind == "scalar":
        return []
    if in_words(read, e):
        return [read_vector(read, f"{name}_words[i]", e, column)]
    kind = epilogue_type(read.tensor)
    if read.kind == "row":
        return [f"{name}_element[i] = {element_of(read, kind, 'safe_row', 'column')};"]
    value = element_of(read, kind, "safe_row", "(column + e)")
    return [
        "#pragma unroll",
        f"for (int e = 0; e < {e.vector}; ++e) {name}_elements[i][e] = {value};",
    ]


def _element(read: Read, e: Epilogue) -> str:
    name = read.name
    if read.kind == "scalar":
        return c_name(read.tensor.name)
    if read.kind == "row":
        return f"{name}_element[i]"
    if not in_words(read, e):
        return f"{name}_elements[i][e]"
    words = f"{name}_words" if is_hoisted(e, read) else f"{name}_words[i]"
    return f"element_{epilogue_type(read.tensor)}({words}, e)"


def _store(write: Write, e: Epilogue) -> str:
    name, out = epilogue_type(write.tensor), f"{write.name}_out"
    if in_words(write, e):
        place = position(write, "row", "column")
        store = f"write_{name}<{e.vector}, {max(write.width, _WORD_BYTES)}>({place}, {out});"
        return if_stored(write, "row", "column") + store
    if write.kind == "row":  # one element a row
        place, inside = position(write, "row", "0"), if_stored(write, "row", "0")
        return f"if (column == 0) {inside}*({place}) = to_{name}({out}[0]);"
    place, inside = position(write, "row", "(column + e)"), if_stored(write, "row", "(column + e)")
    return f"for (int e = 0; e < {e.vector}; ++e) {inside}*({place}) = to_{name}({out}[e]);"
