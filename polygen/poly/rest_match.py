"""The rest of a product's sums in the kernel's dims: what makes its left operand, and its right.

    t[m,e] = sum over k of x[m,k] * a[e,k]       along with the product, from the same tiles of x
    sum[m,n] += sum over e of t'[m,e] * b[n,e]   behind it, t' of t in registers

The right operand of the first is an operand of the main loop like others, but that a tile has all
of it along the product's own columns: e, which is its n. The rows of t are those of the sums.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import InvarianceError, UnsupportedProgram
from polygen.frontend.program import Program
from polygen.hardware.data_file import read
from polygen.hardware.device import common_facts
from polygen.hardware.matrix_layout import spans
from polygen.poly.fusion import fuse
from polygen.poly.match import REST_RIGHT, Match, RestMatch, match
from polygen.poly.operand import Operand
from polygen.poly.pointwise import Pointwork, pointwork
from polygen.poly.scop import scop

_FILE = "chains.toml"


def with_rest_of(matched: Match, program: Program) -> Match:
    """A match with the rest of its product's sums, where the program has one.

    Args:
        matched: the product.
        program: whose sums may have more terms.

    Raises:
        InvarianceError: dims are to have no part in the bits of sums.
        UnsupportedProgram: the rest is none that a kernel computes; with what would do.
    """
    if program.rest is None:
        return matched
    _require_plain(program)
    rest = program.rest
    middle, of_middle = _matched(rest.middle)
    last, _ = _matched(rest.last)
    (made,), (terms,) = middle.products, last.products
    columns = _columns(program, middle)
    rows, right = middle.operand(made.left), middle.operand(made.right)
    ours = matched.operand(matched.products[0].left)
    value, operand = last.operand(terms.left), last.operand(terms.right)
    written = of_middle.writes[0].index
    turned = tuple(one.renamed({"n": "k"}) for one in written)
    same = (
        (rows.tensor.name, rows.index) == (ours.tensor.name, ours.index)
        and (value.tensor.name, value.index) == (rest.middle.outputs[0].name, turned)
        and middle.batches == last.batches == matched.batches
        and (last.m, last.n, middle.m) == (matched.m, matched.n, matched.m)
        and middle.depths == matched.depths
        and not (matched.sums or middle.sums)
    )
    if not same:
        raise _refusal(
            program,
            f"{made.contraction}; {terms.contraction}: rows of both are not those of "
            f"{matched.contraction.write.name}",
            "a thread multiplies the rows whose sums it holds, of one array",
            "Write x @ w.T + (x @ a.T) @ b.T",
        )
    if any(one.tensor.dims for one in of_middle.reads) or of_middle.coordinates or of_middle.sizes:
        raise _refusal(
            program,
            f"{rest.middle.outputs[0].name} is made of more than {made.contraction.write.name} "
            "and numbers",
            "between the products threads compute on their own registers",
            "Multiply by the array before, and pass what comes of it",
        )
    arrays = program.tensors
    right = replace(right, tensor=arrays[right.tensor.name], whole=padded(right, columns))
    operand = replace(operand, tensor=arrays[operand.tensor.name])
    kinds = {one.tensor.dtype for one in (ours, matched.b, right, operand)}
    if len(kinds) > 1 or rest.middle.outputs[0].dtype not in kinds:
        raise _refusal(
            program,
            f"operands of types {', '.join(sorted(one.name for one in kinds))}",
            "all products that share sums are made by one instruction",
            "Pass operands of one type",
        )
    for one in (ours, right, operand):
        _require_boxes(program, one, rows=one is operand)
    found = RestMatch(
        made.contraction, matched.products[0].left, terms.contraction, operand, columns,
        right.whole, of_middle.reads, of_middle.statements,
    )  # fmt: skip
    return replace(matched, operands=(*matched.operands, (REST_RIGHT, right)), rest=found)


def padded(operand: Operand, columns: int) -> int:
    """Columns as tiles have them: whole spans of the narrowest swizzle, an instruction's depth."""
    step = spans()[-1] // operand.tensor.dtype.bytes
    return -(-columns // step) * step


def _matched(program: Program) -> tuple[Match, Pointwork]:
    fusion = fuse(program, scop(program))
    found = match(program, fusion)
    return found, pointwork(program, fusion, found)


def _refusal(program: Program, what: str, why: str, nearest: str) -> UnsupportedProgram:
    return UnsupportedProgram(what, where=program.name, why=why, nearest=nearest)


def _require_plain(program: Program) -> None:
    if program.invariant:
        raise InvarianceError(
            "sums that another product goes on with",
            where=f"{program.name}, invariant in {', '.join(program.invariant)}",
            why="in which order both products enter the sums is not proved for all sizes at once",
            nearest="Leave invariant out",
        )


def _columns(program: Program, middle: Match) -> int:
    """Columns of what makes the rest: a number that registers hold, in whole groups."""
    found, contraction = middle.n, middle.contraction
    most = int(read(_FILE)["rest"]["columns_most"])
    step = int(read(_FILE)["rest"]["columns_step"])
    if not isinstance(found, int):
        raise _refusal(
            program,
            f"{contraction.name}: {contraction} has {found} columns",
            f"all of them stay in registers, of every row, until {program.contractions[0].name} "
            "is summed",
            f'Give {found} as a number in the signature, as in "bf16[16,K]"',
        )
    if found > most:
        raise _refusal(
            program,
            f"{contraction.name}: {contraction} has {found} columns",
            f"they stay in registers beside the sums of {program.contractions[0].name}, at most "
            f"{most} of them",
            f"Use at most {most}, or make two functions: the second adds both products in the "
            "same kernel",
        )
    if found % step:
        raise _refusal(
            program,
            f"{contraction.name}: {contraction} has {found} columns",
            f"a thread holds them in groups of {step}, and multiplies whole ones",
            f"Pad it to {-(-found // step) * step} with zeros",
        )
    return found


def _require_boxes(program: Program, operand: Operand, *, rows: bool) -> None:
    """The copy engine moves an operand; with `rows` as it lies, else it may be copied first."""
    row = common_facts()["tensor_map_row_bytes"]
    if not operand.in_boxes or operand.computed is not None or (rows and operand.alignment < row):
        raise _refusal(
            program,
            f"{operand.tensor}: the copy engine cannot move it",
            f"operands of products that share sums come in boxes, of rows that start at multiples "
            f"of {row} bytes; these start at multiples of {operand.alignment}",
            "Pass an array with aligned rows, without steps backwards",
        )
