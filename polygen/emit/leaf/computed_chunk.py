"""A chunk of a computed operand in C: what it reads into registers, and what it makes of them.

A chunk is 16 bytes of one stored row. `reads` fills words of registers, whole where all of the
chunk is inside of the operand and element by element where it is not: nothing outside of an array
is read. `makes` computes every element from the words, rounds it, and writes the chunk; elements
outside of the operand become zeros after the function, which may be anything there.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.emit.ctext import pointwise
from polygen.emit.element_types import byte_of_word, converted, of_word
from polygen.emit.functions import FAST_BITS
from polygen.emit.leaves import double_of_words, plus, real_type, row_at, scaled
from polygen.emit.names import c_name
from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Tensor
from polygen.hardware.conversion import Conversion, conversions, is_exact
from polygen.lower.accesses import ROWS_BEFORE
from polygen.lower.computed import Computed, Fetch
from polygen.lower.fragments import Make
from polygen.poly.elements import Along, Compute

_WORD_BYTES = 4
_HALVES = 2  # numbers of four bits in a byte
# Words of a chunk from its elements: word i from the floats that are computed.
PACKED = {
    "bf16": "pack_bf16(made[2 * i], made[2 * i + 1])",
    "f16": "pack_f16(made[2 * i], made[2 * i + 1])",
    "tf32": "__float_as_uint(made[i])",
    "f64": "(unsigned)(i % 2 ? __double2hiint(made[i / 2]) : __double2loint(made[i / 2]))",
    "f32": "__float_as_uint(made[i])",  # whose parts who loads fragments of it takes apart
}
# The copy engine rounds tf32 on its way; where no fragment load does, who computes it has to.
ROUND_TF32 = 'asm("cvt.rn.tf32.f32 %0, %1;" : "=r"({to}[i]) : "f"(made[i]));'


def stored_type(tensor: Tensor) -> str:
    """The name under which elements of an array are read.

    Raises:
        UnsupportedProgram: nothing reads its dtype.
    """
    return "f32" if tensor.dtype.name == "tf32" else tensor.dtype.name


def lines(of: Computed, words: str = "held") -> tuple[list[str], tuple[str, ...]]:
    """The statements on element `e` of a chunk, and the helper files they need.

    Args:
        of: the operand.
        words: pointer to the words that hold what was read.
    """
    names = {fetch.name: fetch.name for fetch in of.fetches}
    names |= {name: name for name, _ in of.coordinates}
    stored = {fetch.name: fetch.tensor.dtype.name for fetch in of.fetches}
    halves = {}
    for result, kind, fetch in of_bytes(of):
        word = f"({words})[{plus('e / 8', fetch.first)}]"
        halves[result] = (kind, f"from_{kind}({word}, e % 8)")
    return element_lines(of.statements, names, stored, halves, of.dtype)


def of_bytes(of: Computed) -> list[tuple[str, str, Fetch]]:
    """The values that are halves of a chunk's own bytes: each with its type, and the bytes."""
    found = ((one.result, _half(of, one)) for one in of.statements)
    return [(result, *half) for result, half in found if half is not None]


def element_lines(
    statements: tuple[Compute, ...],
    names: dict[str, str],
    stored: dict[str, str],
    halves: dict[str, tuple[str, str]],
    dtype: DType,
) -> tuple[list[str], tuple[str, ...]]:
    """The statements on element `e`, which becomes ``made[e]``, and the helper files they need.

    Args:
        statements: in order; the last rounds to `dtype`.
        names: value or read -> C expression of its element.
        stored: read -> the type that it is stored as.
        halves: value -> its type of four bits, and the C expression that takes it out of a byte.
        dtype: what is multiplied.
    """
    result, kept = statements[-1].result, []
    for statement in statements:
        source = statement.args[0]
        if statement.result in halves:
            stored[statement.result], names[statement.result] = halves[statement.result]
            continue
        kind = stored.get(source, "") if isinstance(source, str) else ""
        exact = bool(kind) and is_exact(kind, statement.dtype)
        if statement.function == "cast" and exact and statement.result != result:
            names[statement.result] = names[str(source)]  # rounding changes none of its numbers
        else:
            kept.append(statement)
    fast, real = dtype.bits <= FAST_BITS, real_type(dtype)
    return pointwise(tuple(kept), names, {result: "made[e]"}, fast, real=real)


def _half(of: Computed, statement: Compute) -> tuple[str, Fetch] | None:
    """The type of four bits, and the bytes, where a statement takes a chunk's own bytes apart.

    A chunk begins at an even place, so that its element e is number e of the words that hold it.
    """
    if not statement.function.startswith("nibble_"):
        return None
    places = dict(of.coordinates)
    fetch = next((f for f in of.fetches if f.name == statement.args[0]), None)
    if fetch is None or fetch.kind != "run" or fetch.per[1] != _HALVES:
        return None
    along = places.get(str(statement.args[1])) == Along(of.dims[1])
    return (statement.function.removeprefix("nibble_"), fetch) if along else None


def reads(of: Computed, words: str, row: str, column: str, left: str = "") -> list[str]:
    """Lines that read what a chunk needs.

    Args:
        of: the operand.
        words: pointer to the words that hold it.
        row: of the operand, inside it.
        column: of its first element in the row.
        left: how many of its elements are inside; "": all, so that runs are read whole.
    """
    found = []
    for fetch in of.fetches:
        if fetch.kind == "scalar":
            continue
        to, size = plus(words, fetch.first), fetch.tensor.dtype.bytes
        at = address(fetch, row, column)
        if size > _WORD_BYTES and fetch.kind != "run":
            found += _wide(of, fetch, to, at, left)
        elif fetch.kind == "row" or (fetch.kind == "group" and not left):
            found.append(f"*({to}) = read_one<{size}>({at});")
        elif fetch.kind == "group":  # behind the end of a row there may be none
            found.append(f"*({to}) = {left} > 0 ? read_one<{size}>({at}) : 0;")
        elif fetch.kind == "run" and not left:
            run = of.elements // fetch.per[1] * size
            found.append(f"read_run<{run}, {fetch.width}>({to}, {at});")
        else:
            step, count = _spacing(of, fetch, left)
            read = "read_wide" if size > _WORD_BYTES else "read_spaced"
            found.append(f"{read}<{fetch.words}, {size}>({to}, {at}, {step}, {count});")
    return found


def _spacing(of: Computed, fetch: Fetch, left: str) -> tuple[str, str]:
    """Bytes from one element of a chunk to the next one, and how many there are."""
    size, count = fetch.tensor.dtype.bytes, left or str(of.elements)
    step = f"{size}" if fetch.column_step == "1" else f"{size}LL * {fetch.column_step}"
    if fetch.per[1] > 1:
        count = f"({count} + {fetch.per[1] - 1}) / {fetch.per[1]}"
    return step, count


def _wide(of: Computed, fetch: Fetch, to: str, at: str, left: str) -> list[str]:
    """Lines that read elements of two words: one for all of a chunk, or a step apart."""
    size = fetch.tensor.dtype.bytes
    if fetch.kind == "spaced":
        step, count = _spacing(of, fetch, left)
    else:  # behind the end of a row a group may have none
        step, count = "0", f"{left} > 0" if left and fetch.kind == "group" else "1"
    return [f"read_wide<{fetch.words}, {size}>({to}, {at}, {step}, {count});"]


def address(fetch: Fetch, row: str, column: str) -> str:
    """Where the element of an array is that goes with a place of the operand, as C."""
    names = (
        row if fetch.per[0] == 1 else f"({row} / {fetch.per[0]})",
        column if fetch.per[1] == 1 else f"({column} / {fetch.per[1]})",
    )
    if fetch.rows is not None:
        names = (row_at(fetch.rows, names[0]), names[1])
    steps = zip(names, (fetch.row_step, fetch.column_step), strict=True)
    parts = [scaled(variable, step) for variable, step in steps if step != "0"]
    return " + ".join([c_name(fetch.tensor.name), *fetch.base, *parts])


def packing(of: Computed, *, rounded: bool) -> str:
    """What makes word `i` of a chunk of its elements; as for `makes`."""
    if of.dtype.name == "tf32" and rounded:
        return ROUND_TF32.format(to="w")
    return f"w[i] = {PACKED[of.dtype.name]};"


def makes(
    of: Computed,
    words: str,
    row: str,
    column: str,
    to: str,
    left: str,
    *,
    rounded: bool,
    write: str = "write_computed",
) -> list[str]:
    """Lines that compute a chunk and write it.

    Args:
        of: the operand.
        words: pointer to the words that hold what was read.
        row: of the operand.
        column: of the chunk's first element in the row.
        to: address in shared memory, or wherever `write` takes it.
        left: how many elements of the chunk are inside the operand.
        rounded: whether tf32 is rounded here.
        write: the function that writes it.
    """
    size = of.dtype.bytes
    end = f"{write}({to}, w, min(max({left}, 0), {of.elements}) * {size});"
    if of.moved is not None:
        word = f"({words})[{plus('i', of.moved.first)}]"
        return [
            "unsigned w[4];",
            "#pragma unroll",
            f"for (int i = 0; i < 4; ++i) w[i] = {word};",
            end,
        ]
    (text, _), pack = lines(of, words), packing(of, rounded=rounded)
    real = real_type(of.dtype)
    elements = [f"const {real} {f.name} = {_element(f, words)};" for f in of.fetches]
    places = [
        f"const {real} {name} = {_coordinate(of, place, row, column)};"
        for name, place in of.coordinates
    ]
    return [
        f"{real} made[{of.elements}];",
        "#pragma unroll",
        f"for (int e = 0; e < {of.elements}; ++e) {{",
        *(f"  {line}" for line in (*elements, *places, *text)),
        "}",
        "unsigned w[4];",
        "#pragma unroll",
        f"for (int i = 0; i < 4; ++i) {pack}",
        end,
    ]


def _element(fetch: Fetch, words: str) -> str:
    """Element e of the chunk, as a float."""
    if fetch.kind == "scalar":
        return c_name(fetch.tensor.name)
    kind, size = stored_type(fetch.tensor), fetch.tensor.dtype.bytes
    if size > _WORD_BYTES:
        first = "0"
        if fetch.kind not in ("row", "group"):
            first = "2 * e" if fetch.per[1] == 1 else f"2 * (e / {fetch.per[1]})"
        return double_of_words(
            f"({words})", *(plus(f"{first}", fetch.first + at) for at in range(2))
        )
    if fetch.kind in ("row", "group"):
        word, inside = f"({words})[{fetch.first}]", "0"
    else:
        per_word, element = _WORD_BYTES // size, "e"
        if fetch.per[1] > 1:
            element = f"(e / {fetch.per[1]})"
        at = element if per_word == 1 else f"{element} / {per_word}"
        word, inside = f"({words})[{plus(at, fetch.first)}]", f"{element} % {per_word}"
    if size == _WORD_BYTES:
        return of_word(fetch.tensor.dtype, word)
    if size == 2:
        shift = "" if inside == "0" else f" >> {inside} * 16"
        return f"from_{kind}((unsigned short)({word}{shift}))"
    return f"from_{kind}({word}, {inside})"


def _coordinate(of: Computed, place: Along, row: str, column: str) -> str:
    """A coordinate of element e as a float."""
    variable = {of.dims[0]: row, of.dims[1]: f"({column} + e)"}.get(place.dim, place.dim)
    variable = f"({ROWS_BEFORE} + {variable})" if place.group else variable
    variable = variable if place.per == 1 else f"({variable} / {place.per})"
    text = variable if place.scale == 1 else f"{variable} * {place.scale}"
    return f"({real_type(of.dtype)})({plus(text, place.offset)})"


def conversion_records(computed: list[Computed], made: Sequence[Make]) -> list[dict[str, object]]:
    """The conversions that operands need, for the template.

    Args:
        computed: by who copies them.
        made: by consumers.

    Raises:
        UnsupportedProgram: there is none for a type.
    """
    known = conversions()
    found: dict[str, dict[str, object]] = {}
    tensors = [fetch.tensor for one in computed for fetch in one.fetches]
    tensors += [tensor for one in made for tensor in (one.tensor, *(b.tensor for b in one.beside))]
    for tensor in tensors:
        kind = stored_type(tensor)
        if tensor.dtype.bytes > 1:
            continue
        if kind not in known:
            raise UnsupportedProgram(
                f"nothing converts {tensor.dtype}",
                where=tensor.name,
                nearest=f"Use {', '.join(known)}",
            )
        found[kind] = _conversion(known[kind])
    halves = [h[0] for one in computed for h in (_half(one, s) for s in one.statements) if h]
    halves += [kind for one in made for kind in one.halves.values()]
    for kind in halves:
        found[kind] = _conversion(known[kind])
    return [found[kind] for kind in sorted(found)]


def _conversion(one: Conversion) -> dict[str, object]:
    """A conversion, for the template."""
    return {
        "name": one.name,
        "count": 1 << one.bits,
        "bits": one.bits,
        "mask": (1 << one.bits) - 1,
        "nan": one.nan,
        "value": converted(one),
        "byte": byte_of_word(one) if one.above is not None else "",
    }
