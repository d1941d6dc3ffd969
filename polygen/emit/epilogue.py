"""The epilogue as template records: the pointwise statements, and the vectors around them.

1. `compute` is the fused program on one element: the sum and the operands' elements in, the
   outputs' elements out.
2. Where a whole vector lies inside the arrays, operands are read in words, a batch of rows at a
   time; at ragged edges, and for arrays that no word access can read, element by element.
3. Operands that do not depend on the row are read once, before the sums are staged.
"""

from __future__ import annotations

from typing import Any

from polygen.emit.ctext import pointwise
from polygen.emit.leaves import extent_names
from polygen.emit.names import c_name
from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Tensor
from polygen.lower.plan import Epilogue, KernelPlan, Read, Write

_C_TYPES = {"f16": "unsigned short", "bf16": "unsigned short", "f32": "float"}
# Element e of the words of a vector, and the words of a vector v.
_EXTRACT = {2: "(unsigned short)(words[e / 2] >> e % 2 * 16)", 4: "__uint_as_float(words[e])"}
_PACK = {
    2: "to_{0}(v[2 * i]) | (unsigned)to_{0}(v[2 * i + 1]) << 16",
    4: "__float_as_uint(v[i])",
}
_BYTES = {"f16": 2, "bf16": 2, "f32": 4}


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


def types(plan: KernelPlan) -> list[dict[str, Any]]:
    """The element types of the epilogue's operands and outputs."""
    tensors = [r.tensor for r in plan.epilogue.reads if r.tensor.dims]
    tensors += [w.tensor for w in plan.epilogue.writes]
    names = sorted(set(map(epilogue_type, tensors)))
    return [
        {
            "name": name,
            "c": _C_TYPES[name],
            "bytes": _BYTES[name],
            "extract": _EXTRACT[_BYTES[name]],
            "pack": _PACK[_BYTES[name]].format(name),
        }
        for name in names
    ]


def epilogue(plan: KernelPlan) -> dict[str, Any]:
    """The prepare, compute, stage and store leaves."""
    e, tiles = plan.epilogue, plan.tiles
    element = {e.accumulator: "sum"} | {read.name: read.name for read in e.reads}
    results = {w.tensor.name: f"{w.tensor.name}_result" for w in e.writes}
    fast = all(w.tensor.dtype.bits <= 16 for w in e.writes)
    statements, helpers = pointwise(e.statements, element, results, fast)
    extents = extent_names(plan)
    per_row = max(1, tiles.warp[1] // e.vector)
    items, lanes = tiles.warp[0] * per_row, plan.device.warp_size
    parameters = [f"float {name}" for name in element.values()]
    parameters += [f"float& {name}" for name in results.values()]
    hoisted = [read for read in e.reads if is_hoisted(e, read)]
    by_words = all(r.width >= 4 for r in e.reads if r.kind == "vector") and all(
        w.width >= 4 for w in e.writes if w.kind == "vector"
    )
    record: dict[str, Any] = {
        "vector": e.vector,
        "batch": e.batch,
        "by_words": by_words,
        "parameters": ", ".join(parameters),
        "statements": statements,
        "helpers": helpers,
        "m_extent": extents["m"],
        "n_extent": extents["n"],
        "row_base": f"b_m * {tiles.cta[0]} + w_m * {tiles.warp[0]}"
        + (" + quarter" if plan.roles else ""),  # a warpgroup's warps hold 16 rows each
        "store_parameters": "int, int m" if plan.roles else "int m",
        "column_base": f"b_n * {tiles.cta[1]} + w_n * {tiles.warp[1]}",
        "per_row": per_row,
        "items": items,
        "lanes": lanes,
        "guard": items % (lanes * e.batch) != 0,
        "atoms_n": tiles.atoms[1],
        "pairs": _pairs(plan),
        "parts": list(range(0, e.vector, 4)),
        "hoisted": [_read_vector(read, read.name + "_words", e) for read in hoisted],
        "hoisted_declarations": [
            f"unsigned {read.name}_words[{_words(read, e)}];" for read in hoisted
        ],
        "declarations": _declarations(e),
        "fetches": [line for r in e.reads if not is_hoisted(e, r) for line in _fetch(r, e)],
        "arguments": ", ".join(["sums[e]", *(_element(r, e) for r in e.reads), *_results(e)]),
        "results": [f"float {w.tensor.name}_out[{e.vector}];" for w in e.writes],
        "stores": [_store(w, e) for w in e.writes],
        "edge_reads": [_edge_read(r) for r in e.reads if r.kind != "scalar"],
        "edge_arguments": ", ".join(
            ["sum", *(_edge_name(r) for r in e.reads), *(f"{w.tensor.name}_out" for w in e.writes)]
        ),
        "edge_results": [f"float {w.tensor.name}_out;" for w in e.writes],
        "edge_stores": [_edge_store(w) for w in e.writes],
    }
    if e.staged:
        scratch = plan.buffer("scratch")
        record |= {"offset": scratch.offset, "slot_bytes": scratch.slot_bytes}
    return record


def is_hoisted(e: Epilogue, read: Read) -> bool:
    """Whether a read is the same in every row: no m in it, and lanes keep their column."""
    return e.fixed_column and read.m_stride == "0" and read.kind == "vector"


def _words(read: Read | Write, e: Epilogue) -> int:
    return e.vector * read.tensor.dtype.bytes // 4


def position(read: Read | Write, row: str, column: str) -> str:
    """C text of an element's address."""
    parts = []
    for variable, stride in ((row, read.m_stride), (column, read.n_stride)):
        if stride == "1":
            parts.append(variable)
        elif stride != "0":
            parts.append(f"(long long){variable} * {stride}")
    return " + ".join([c_name(read.tensor.name), *parts])


def _read_vector(read: Read, words: str, e: Epilogue) -> str:
    place = position(read, "safe_row", "column")
    return f"read_words<{_words(read, e)}, {max(read.width, 4)}>({words}, {place});"


def _declarations(e: Epilogue) -> list[str]:
    lines = []
    for read in e.reads:
        if read.kind == "vector" and not is_hoisted(e, read):
            lines.append(f"unsigned {read.name}_words[{e.batch}][{_words(read, e)}];")
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
        return [_read_vector(read, f"{name}_words[i]", e)]
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


def _results(e: Epilogue) -> list[str]:
    return [f"{w.tensor.name}_out[e]" for w in e.writes]


def _store(write: Write, e: Epilogue) -> str:
    name, out = epilogue_type(write.tensor), f"{write.tensor.name}_out"
    place = position(write, "row", "column")
    if write.kind == "vector":
        return f"write_{name}<{e.vector}, {max(write.width, 4)}>({place}, {out});"
    place = position(write, "row", "(column + e)")
    return f"for (int e = 0; e < {e.vector}; ++e) *({place}) = to_{name}({out}[e]);"


def _edge_name(read: Read) -> str:
    return c_name(read.tensor.name) if read.kind == "scalar" else f"{read.name}_element"


def _edge_read(read: Read) -> str:
    from_ = f"from_{epilogue_type(read.tensor)}"
    place = position(read, "row", "(column + e)")
    return f"const float {read.name}_element = {from_}(__ldg({place}));"


def _edge_store(write: Write) -> str:
    name = epilogue_type(write.tensor)
    place = position(write, "row", "(column + e)")
    return f"*({place}) = to_{name}({write.tensor.name}_out);"


def _pairs(plan: KernelPlan) -> list[dict[str, str]]:
    """Accumulator elements two by two: neighbours in a row, by every instruction's fragment map."""
    e, kind = plan.epilogue, plan.atom.c.dtype.name
    found = []
    for first in range(0, len(e.element_offsets), 2):
        (row, column), (row_next, column_next) = e.element_offsets[first : first + 2]
        assert (row_next, column_next) == (row, column + 1)
        register = f"sum[m][n][{first // 2 if kind == 'f16' else first}]"
        other = f"sum[m][n][{first + 1}]"
        values = {
            "f32": (register, other),
            "s32": (f"(float){register}", f"(float){other}"),
            "f16": (
                f"from_f16((unsigned short){register})",
                f"from_f16((unsigned short)({register} >> 16))",
            ),
        }[kind]
        found.append(
            {
                "row": f"m * {plan.atom.m} + {_plus(e.row_of_lane, row)}",
                "column": f"n * {plan.atom.n} + {_plus(e.column_of_lane, column)}",
                "first": values[0],
                "second": values[1],
            }
        )
    return found


def _plus(text: str, offset: int) -> str:
    return f"{text} + {offset}" if offset else text
