"""Elements of the epilogue's arrays in C: conversions, reads of vectors and words, one result.

`compute` is the fused program on one element: the sum and the operands' elements in, the outputs'
elements out. At ragged edges, and for arrays that no word access can read, an element goes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.emit.ctext import pointwise
from polygen.emit.folds import combined
from polygen.emit.functions import FAST_BITS, literal
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import coordinate, position
from polygen.emit.names import c_name
from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Tensor
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.result_work import Epilogue, Read, Write

_C_TYPES = {"f16": "unsigned short", "bf16": "unsigned short", "f32": "float"}
# Element e of the words of a vector, and the words of a vector v.
_EXTRACT = {2: "(unsigned short)(words[e / 2] >> e % 2 * 16)", 4: "__uint_as_float(words[e])"}
_PACK = {
    2: "to_{0}(v[2 * i]) | (unsigned)to_{0}(v[2 * i + 1]) << 16",
    4: "__float_as_uint(v[i])",
}
_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
_WORD_BYTES = 4


def epilogue_type(tensor: Tensor) -> str:
    """The name under which the epilogue reads and writes a tensor's dtype.

    Raises:
        UnsupportedProgram: the epilogue has no conversion for it.
    """
    name = "f32" if tensor.dtype.name == "tf32" else tensor.dtype.name
    if name not in _C_TYPES:
        raise UnsupportedProgram(
            f"the epilogue cannot read or write {tensor.dtype}",
            where=tensor.name,
            nearest="Use f16, bf16 or f32, in the signature or as out_dtype",
        )
    return name


def types(e: Epilogue, more: Sequence[Read] = ()) -> list[dict[str, Any]]:
    """The element types of the epilogue's operands and outputs, and of what else is read so."""
    tensors = [r.tensor for r in (*e.reads, *more) if r.tensor.dims]
    tensors += [w.tensor for w in e.writes]
    return [
        {
            "name": name,
            "c": _C_TYPES[name],
            "bytes": _BYTES[name],
            "extract": _EXTRACT[_BYTES[name]],
            "pack": _PACK[_BYTES[name]].format(name),
        }
        for name in sorted(set(map(epilogue_type, tensors)))
    ]


# --- the fused statements ------------------------------------------------------------------------
def _values(e: Epilogue) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the sums and of what is read, and of what is written."""
    read = dict(e.sums) | {read.name: read.name for read in e.reads}
    read |= {name: name for name, _ in e.coordinates}
    return read, {name: f"{name}_result" for name in outcomes(e)}


def outcomes(e: Epilogue) -> list[str]:
    """What the statements make of one element: results that are stored, terms that are folded."""
    terms = (term for fold in e.folds for term in fold.terms if isinstance(term, str))
    return [*(write.tensor.name for write in e.writes), *terms]


def folded(e: Epilogue, element: int, at: int) -> list[str]:
    """Terms of one element of instruction (m, n), combined into the registers of their parts.

    Args:
        e: the folds.
        element: of the instruction's that the lane has.
        at: which of the terms at hand are its.
    """
    places = [
        f"[{fold.along or '0'}][{fold.slots[element]}][{fold.turns[element]}]" for fold in e.folds
    ]
    return combined_at(e, places, at)


def combined_at(e: Epilogue, places: list[str], at: int) -> list[str]:
    """Terms combined into registers, of each fold at a place of its own."""
    lines = []
    for fold, place in zip(e.folds, places, strict=True):
        into = [name + place for name in fold.names]
        values = [
            f"{term}_out[{at}]" if isinstance(term, str) else literal(term) for term in fold.terms
        ]
        lines.append(combined(fold.monoid, into, values))
    return lines


def statements(e: Epilogue) -> tuple[list[str], tuple[str, ...]]:
    """The statements as lines of C, and the helper files they need."""
    read, written = _values(e)
    fast = not e.folds and all(w.tensor.dtype.bits <= FAST_BITS for w in e.writes)
    return pointwise(e.statements, read, written, fast)


@leaf("compute", "threads", Epilogue)
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    read, written = _values(e)
    parameters = [f"float {name}" for name in read.values()]
    parameters += [f"float& {name}" for name in written.values()]
    return Text(
        block(*statements(e)[0]),
        "The fused pointwise statements, on one element.",
        parameters=", ".join(parameters),
    )


@leaf("edge", "threads", Epilogue)
def _(plan: KernelPlan, one: Leaf, e: Epilogue) -> Text:
    results = [f"{name}_out" for name in outcomes(e)]
    stored = results[: len(e.writes)]
    lines = []
    for read in e.reads:
        if read.kind != "scalar":
            from_ = f"from_{epilogue_type(read.tensor)}"
            place = position(read, "row", "(column + e)")
            lines.append(f"const float {_alone(read)} = {from_}(__ldg({place}));")
    lines += [f"float {name};" for name in stored]
    totals = [total for _, total in e.sums]
    places = [coordinate(along, "row", "column + e") for _, along in e.coordinates]
    lines.append(f"compute({', '.join([*totals, *map(_alone, e.reads), *places, *results])});")
    for write, name in zip(e.writes, stored, strict=True):
        place = position(write, "row", "(column + e)")
        once = "if (column + e == 0) " if write.kind == "row" else ""
        lines.append(f"{once}*({place}) = to_{epilogue_type(write.tensor)}({name});")
    return Text(
        block(*lines),
        "Results at the edge of the arrays, one at a time: element e of a vector at (row, column).",
        parameters=", ".join(
            ["int row, int column, int e", *(f"float {t}" for t in totals)]
            + [f"float& {term}" for term in results[len(e.writes) :]]
        ),
    )


def _alone(read: Read) -> str:
    return c_name(read.tensor.name) if read.kind == "scalar" else f"{read.name}_element"


# --- vectors -------------------------------------------------------------------------------------
def vector_record(e: Epilogue) -> dict[str, Any]:
    """What reads, computes and writes a vector of results."""
    accesses: list[Read | Write] = [*e.reads, *e.writes]
    return {
        "vector": e.vector,
        "by_words": all(
            access.width >= _WORD_BYTES for access in accesses if access.kind == "vector"
        ),
        "declarations": _declarations(e),
        "fetches": [line for r in e.reads if not is_hoisted(e, r) for line in _fetch(r, e)],
        "arguments": ", ".join(
            [*(f"{total}s[e]" for _, total in e.sums), *(_element(r, e) for r in e.reads)]
            + [coordinate(along, "row", "column", "e") for _, along in e.coordinates]
            + [f"{name}_out[e]" for name in outcomes(e)]
        ),
        "results": [f"float {name}_out[{e.vector}];" for name in outcomes(e)],
        "stores": [_store(w, e) for w in e.writes],
    }


def is_hoisted(e: Epilogue, read: Read) -> bool:
    """Whether a read is the same in every row: no m in it, and lanes keep their column."""
    same = e.fixed_column and read.m_stride == "0" and read.kind == "vector"
    return same and read.width >= _WORD_BYTES


def read_vector(read: Read, words: str, e: Epilogue) -> str:
    """Reads a vector in words."""
    place = position(read, "safe_row", "column")
    return f"read_words<{word_count(read, e)}, {max(read.width, _WORD_BYTES)}>({words}, {place});"


def word_count(access: Read | Write, e: Epilogue) -> int:
    """Words of a vector."""
    return e.vector * access.tensor.dtype.bytes // _WORD_BYTES


def _declarations(e: Epilogue) -> list[str]:
    lines = []
    for read in e.reads:
        if read.kind == "vector" and not is_hoisted(e, read):
            lines.append(f"unsigned {read.name}_words[{e.batch}][{word_count(read, e)}];")
        elif read.kind == "strided":
            lines.append(f"float {read.name}_elements[{e.batch}][{e.vector}];")
        elif read.kind == "row":
            lines.append(f"float {read.name}_element[{e.batch}];")
    return lines


def _fetch(read: Read, e: Epilogue) -> list[str]:
    name = read.name
    if read.kind == "scalar":
        return []
    if read.kind == "vector":
        return [read_vector(read, f"{name}_words[i]", e)]
    from_ = f"from_{epilogue_type(read.tensor)}"
    if read.kind == "row":
        return [f"{name}_element[i] = {from_}(__ldg({position(read, 'safe_row', 'column')}));"]
    place = position(read, "safe_row", "(column + e)")
    return [
        "#pragma unroll",
        f"for (int e = 0; e < {e.vector}; ++e) {name}_elements[i][e] = {from_}(__ldg({place}));",
    ]


def _element(read: Read, e: Epilogue) -> str:
    name = read.name
    if read.kind == "scalar":
        return c_name(read.tensor.name)
    if read.kind == "row":
        return f"{name}_element[i]"
    if read.kind == "strided":
        return f"{name}_elements[i][e]"
    words = f"{name}_words" if is_hoisted(e, read) else f"{name}_words[i]"
    return f"element_{epilogue_type(read.tensor)}({words}, e)"


def _store(write: Write, e: Epilogue) -> str:
    name, out = epilogue_type(write.tensor), f"{write.tensor.name}_out"
    if write.kind == "vector":
        place = position(write, "row", "column")
        return f"write_{name}<{e.vector}, {max(write.width, _WORD_BYTES)}>({place}, {out});"
    if write.kind == "row":  # one element a row
        return f"if (column == 0) *({position(write, 'row', '0')}) = to_{name}({out}[0]);"
    place = position(write, "row", "(column + e)")
    return f"for (int e = 0; e < {e.vector}; ++e) *({place}) = to_{name}({out}[e]);"
