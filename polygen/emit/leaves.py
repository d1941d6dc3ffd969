"""What the texts of leaves have in common: types, sizes, places in shared memory, cursors."""

from __future__ import annotations

from collections.abc import Sequence

from polygen.emit.names import c_name, c_size
from polygen.frontend.dtypes import F64, DType
from polygen.frontend.program import Dim
from polygen.lower.accesses import ROWS_BEFORE, ROWS_OF_GROUP, Step
from polygen.lower.buffers import Buffer
from polygen.lower.computed import Rows
from polygen.lower.find_pages import PIECE
from polygen.lower.operands import walk
from polygen.lower.plan import Argument, KernelPlan
from polygen.lower.result_work import Read, Write
from polygen.lower.work import Boxes
from polygen.poly.digits import digits
from polygen.poly.match import Along

_C_TYPES = {
    "f16": "unsigned short",
    "bf16": "unsigned short",
    "f32": "float",
    "tf32": "float",
    "f64": "double",
}
# Registers of sums, and the letter under which instructions in CUDA take them.
_SUMS = {
    "f32": ("float", "f"),
    "f16": ("unsigned", "r"),
    "s32": ("int", "r"),
    "f64": ("double", "d"),
}
_C_BYTES = {
    "e4m3": "unsigned char",
    "e5m2": "unsigned char",
    "s8": "signed char",
    "u8": "unsigned char",
    "bool": "unsigned char",
    "s32": "int",
}


def c_type(dtype: DType) -> str:
    """The C type that stores an element."""
    return _C_TYPES.get(dtype.name) or _C_BYTES[dtype.name]


def sum_register(dtype: DType) -> tuple[str, str]:
    """The C type of a register of sums, and its letter among an instruction's operands."""
    return _SUMS[dtype.name]


def set_of(sets: int) -> str:
    """The index of the registers that the sums of k tile `k` take in turns; "" where there is one.

    Registers have no addresses: where the code has several iterations of a loop in one, the
    compiler sees which set each has, if it need not ask whether numbers are negative.
    """
    return f"[(unsigned)k % {sets}]" if sets > 1 else ""


def real_type(dtype: DType) -> str:
    """The C type of a number that is computed."""
    return "double" if dtype == F64 else "float"


def real_of(plan: KernelPlan) -> str:
    """The C type in which everything behind a kernel's sums is computed."""
    return real_type(plan.program.real)


def double_of_words(words: str, low: object, high: object) -> str:
    """A number of 64 bits, held as two words."""
    return f"__hiloint2double({words}[{high}], {words}[{low}])"


def pair_of_sums(
    dtype: DType, registers: str, each: tuple[object, object], packed: object
) -> tuple[str, str]:
    """Two adjacent sums as numbers; whole numbers of 32 bits as the floats that these bits are.

    Args:
        dtype: of the sums; two of f16 share a register.
        registers: what holds an instruction's sums.
        each: the places of both, where each has a register.
        packed: the place of their register, where they share one.
    """
    first, second = (f"{registers}[{place}]" for place in each)
    shared = f"{registers}[{packed}]"
    return {
        "f32": (first, second),
        "f64": (first, second),
        "s32": (f"__int_as_float({first})", f"__int_as_float({second})"),  # as they are
        "f16": (
            f"from_f16((unsigned short){shared})",
            f"from_f16((unsigned short)({shared} >> 16))",
        ),
    }[dtype.name]


def shared_number(address: str, real: str) -> str:
    """C text of a number of type `real` at an address in shared memory."""
    return f"read_{'double' if real == 'double' else 'sum'}({address})"


def write_number(address: str, value: str, real: str) -> str:
    """C text of a call that writes a number of type `real` to an address in shared memory."""
    if real == "double":
        return f"write_double({address}, {value})"
    return f"write_word({address}, __float_as_uint({value}))"


def made_sums(plan: KernelPlan, sums: str) -> list[str]:
    """What keeps reads of sums behind the wait for them, where they are made in the background."""
    return [f"made({sums});"] if plan.atom.scope == "warpgroup" else []


def extent_names(plan: KernelPlan) -> dict[str, str]:
    """The sizes along m and n of the block's matrix, as C."""
    found = {role: size_name(extent) for role, extent in plan.extents}
    return found | {"m": ROWS_OF_GROUP} if plan.match.groups else found


def size_name(extent: Dim) -> str:
    """A size as C."""
    return c_size(extent)


def matrix_coordinates(batches: Sequence[tuple[str, Dim]], sides: Sequence[int] = ()) -> list[str]:
    """Where `matrix` lies along each batch dim, as assignments; the last dim counts fastest.

    Args:
        batches: the dims, and how many matrices there are along each.
        sides: indices of a dim that a tile has; (): one of each.
    """
    sizes, each = [size_name(extent) for _, extent in batches], sides or (1,) * len(batches)
    return [
        f"{name} = {at}" + (f" * {side}" if side > 1 else "")
        for (name, _), at, side in zip(batches, digits("matrix", sizes), each, strict=True)
    ]


def walk_lines(plan: KernelPlan) -> list[str]:
    """Where k tile `k` lies in sums over several axes, as declarations; none of sums over one."""
    return [f"const int {name} = {at};" for name, at in walk(plan.match, plan.tiles, size_name)]


def slot_address(buffer: Buffer, slot: str, agent: str = "") -> str:
    """The address of a slot; `agent`: whose, if every agent has its own."""
    own = f"{agent} * {buffer.owner_bytes} + " if agent else ""
    return f"shared + {buffer.offset} + {own}{slot} * {buffer.slot_bytes}"


def indexed_address(buffer: Buffer, slot: str, agent: str = "") -> str:
    """The same, with slots counted through all agents."""
    if agent:
        slot = f"({agent} * {buffer.slots} + {slot})"
    return f"shared + {buffer.offset} + {slot} * {buffer.slot_bytes}"


def areas(scratch: Buffer, count: int) -> list[str]:
    """The function that places elements of the sums of each product in a warp's scratch area."""
    starts = (f"{number * scratch.slot_bytes} + " if number else "" for number in range(count))
    return [f"area + {start}place_{scratch.name}" for start in starts]


def position(access: Read | Write, row: str, column: str) -> str:
    """C text of an element's address; of rows that are stored by index behind `stored_row`."""
    given = zip(access.rows, (row, column), strict=True)
    if isinstance(access, Read):
        row, column = (at if rows is None else row_at(rows, at) for rows, at in given)
    else:
        row, column = (at if rows is None else f"{access.name}_stored" for rows, at in given)
    parts = [
        scaled(step.of(variable), step.stride)
        for variable, steps in ((row, access.m), (column, access.n))
        for step in steps
    ]
    return " + ".join([c_name(access.tensor.name), *access.base, *parts])


def element_of(access: Read, kind: str, row: str, column: str) -> str:
    """C text of an element that goes with (row, column), as a float.

    Args:
        access: to the array, or to results in shared memory.
        kind: under which name the array's elements are read.
        row: of the array.
        column: of the array.
    """
    if not access.shared:
        return f"from_{kind}(__ldg({position(access, row, column)}))"
    place = row if access.kind == "row" else column
    own = f"max({place} - ({access.first}), 0)"  # of tiles behind the end the last is read
    real = access.tensor.dtype
    return shared_number(
        f"{access.shared}_at + ({access.start} + {own}) * {real.bytes}", real_type(real)
    )


def row_at(rows: Rows, row: str) -> str:
    """Which row of an array goes with a row: the one that a vector names."""
    row = f"({ROWS_BEFORE} + {row})" if rows.grouped else row
    row = row if rows.per == 1 else f"({row} / {rows.per})"
    place = plus(row if rows.scale == 1 else f"{row} * {rows.scale}", rows.offset)
    return f"row_at({c_name(rows.vector)}, {place}, {size_name(rows.extent)})"


def stored_row(write: Write, row: str, column: str) -> str:
    """C text of the row of the array that goes with a row, or column, that is inside; below 0: it
    is none. What is stored there is at `position` if this is declared as ``{name}_stored``.
    """
    own, along = (write.rows[0], row) if write.rows[0] else (write.rows[1], column)
    assert own is not None
    return row_at(own, along).replace("row_at(", "stored_row(", 1)


def if_stored(write: Write, row: str, column: str) -> str:
    """What stands before a store: nothing, or where rows are stored by index its condition."""
    if write.by_index is None:
        return ""
    named = f"{write.name}_stored"
    return f"if (const int {named} = {stored_row(write, row, column)}; {named} >= 0) "


def coordinate(along: Along, row: str, column: str, step: str = "", *, real: str = "float") -> str:
    """C text of a coordinate as a number of type `real`, `step` columns after `column`.

    The step is added in floats, which is exact below 2^24, so that one conversion serves a vector.
    """
    if along.of_digits:
        return _coordinate_of_digits(along, row, f"({plus_text(column, step)})", real)
    at = {"m": row, "n": column}.get(along.dim, along.dim)
    at = f"({ROWS_BEFORE} + {at})" if along.group else at
    text = at if along.scale == 1 else f"({at}) * {along.scale}"
    text = f"({real})({plus(text, along.offset)})"
    if along.dim != "n" or not step:
        return text
    return f"{text} + " + (step if along.scale == 1 else f"{along.scale} * {step}")


def _coordinate_of_digits(along: Along, row: str, column: str, real: str) -> str:
    """C text of a sum of digits as a number."""
    terms = []
    for one in along.terms:
        at = {"m": f"({row})", "n": column}.get(one.dim, one.dim)
        digit = Step("", one.per, one.modulo).of(at)
        terms.append(digit if one.scale == 1 else f"{digit} * {one.scale}")
    return f"({real})({plus(' + '.join(terms), along.offset)})"


def plus_text(text: str, more: str) -> str:
    """A sum of which the second term may be missing."""
    return f"{text} + {more}" if more else text


def scaled(variable: str, stride: str) -> str:
    """Elements up to an index."""
    return variable if stride == "1" else f"(long long){variable} * {stride}"


def coordinates(of: Boxes, number: int, piece: int = 0) -> list[str]:
    """The position of one of the boxes, or of a piece of it, in the tensor map, innermost first."""
    tap = piece if of.by_rows else number
    corner = (of.corner, *of.others)[tap if of.others else 0]
    inner, *others = reversed([text.replace(f"[{PIECE}]", f"[{piece}]") for text in corner])
    if piece and not of.pages and not (of.others and of.by_rows):
        at = next(n for n, axis in enumerate(reversed(of.axes[:-1])) if axis.box > 1)
        every = of.axes[-2 - at].every
        others[at] = f"{others[at]} + {piece * of.box[0] * every}"
    aside = of.others and not of.by_rows
    return [inner if aside else f"{inner} + {number * of.box[1]}", *others]


def plus(text: str, offset: int) -> str:
    """A sum without a term of 0."""
    return f"{text} + {offset}" if offset else text


def parameter(plan: KernelPlan, argument: Argument) -> str:
    """The declaration of a parameter, of the kernel or of the launcher."""
    name = c_name(argument.name)
    if argument.kind in ("size", "stride"):
        return f"int {name}"
    if argument.kind == "scalar":
        return f"float {name}"
    if argument.kind == "workspace":
        # What two launches share is no constant of the second, which may begin before it is there.
        return f"{real_of(plan)}* {name}"
    if argument.kind == "map":
        return f"const __grid_constant__ TensorMap {name}"
    tensor = plan.program.tensors[argument.tensor]
    constant = "" if tensor in plan.program.outputs else "const "
    return f"{constant}{c_type(tensor.dtype)}* __restrict__ {name}"
