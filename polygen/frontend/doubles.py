"""Programs in double precision: sums of f64, and everything behind them computed in it.

Numbers of 64 bits are products' operands, and what these are computed of, and what their results
meet; nothing else computes in them. What a double would lose, or no kernel does with it yet, is
refused by name.
"""

from __future__ import annotations

from polygen.errors import DTypeError, UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import BOOL, F32, F64, S32
from polygen.frontend.program import Contraction, Program

_READ = (F64, F32, S32)  # what a double is read from
_STORED = (*_READ, BOOL)  # and stored as: indices and truth values as well


def check_doubles(program: Program) -> None:
    """Refuse what kernels with numbers of 64 bits do not do; nothing where there are none.

    Raises:
        DTypeError: f64 where sums are of another type, or beside types that no double meets.
        UnsupportedProgram: products of products, groups or rows by index of f64.
    """
    tensors = (*program.inputs, *program.outputs)
    wide = any(tensor.dtype == F64 for tensor in tensors)
    if not wide and not any(one.dtype == F64 for one in program.statements):
        return
    for product in program.contractions:
        if product.dtype != F64:
            raise DTypeError(
                f"f64 beside {product.name}, whose sums are {product.dtype}",
                where=program.name,
                why="results are computed in the type of the sums, which has fewer digits",
                nearest=f"Use {F32}, or operands of f64",
            )
        for access in product.reads:
            behind = needed(program.statements, [access.name])
            if any(isinstance(one, Contraction) for one in behind):
                what = f"the operand {access.name}, in which a product is"
                apart = "Return that product from one function, and multiply it in a second"
                _refuse(program, product, what, "operands are computed of arguments", apart)
    if program.ends or program.gathered:
        why = "rows are neither counted in groups nor named by others"
        first = program.contractions[0]
        _refuse(program, first, "rows in groups or by index", why, "Use tf32, or take rows outside")
    for legal, some in ((_READ, program.inputs), (_STORED, program.outputs)):
        for tensor in some:
            if tensor.dtype not in legal:
                raise DTypeError(
                    f"{tensor} beside products of f64",
                    where=program.name,
                    nearest=f"Use {' or '.join(map(str, legal))}",
                )
    for one in program.pointwise:
        if one.function == "cast" and one.dtype not in _STORED:
            raise DTypeError(
                f"{one.write.name} is rounded to {one.dtype} beside products of f64",
                where=program.name,
                nearest=f"Use {' or '.join(map(str, _READ))}",
            )


def _refuse(program: Program, product: Contraction, what: str, why: str, nearest: str) -> None:
    raise UnsupportedProgram(
        f"products of f64 with {what}",
        where=f"{program.name}, {product.name}",
        why=f"where sums are of f64, {why}",
        nearest=nearest,
    )
