"""What results are compared with: a program's meaning, and how far from it they may be.

Sums of small integers are exact in every dtype involved, so that the comparison is equality
wherever the epilogue is exact on integers. Functions such as `exp` are compared within a bound, and
where an element moves farther if its operands or sums are off by what their arithmetic allows, with
all that lies between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polygen.chained import is_chain
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import BF16, F16, F32, F64, S32, TF32, DType
from polygen.frontend.evaluate import evaluate
from polygen.frontend.monoids import MONOIDS
from polygen.frontend.moved import Moved
from polygen.frontend.program import (
    Access,
    Constant,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
)
from polygen.machine import Finding
from polygen.poly.prologue import multiplied, prologues

Array = np.ndarray[Any, Any]

_PART = "nearest_tf32"  # of which f32 operands that are multiplied in parts are made
# Primitives that map small integers to values every dtype here holds exactly.
# fmt: off
_EXACT = frozenset(
    [
        "add", "sub", "mul", "neg", "abs", "minimum", "maximum", "where", "lt", "le", "gt", "ge",
        "eq", "ne", "logical_and", "logical_or", "logical_not", "cast", "square", "relu", "clip",
        _PART,
    ]
)
# fmt: on
_COMPUTED = ("add", "sub", "mul")  # of these with constants
_DIGITS = 12  # of constants that are short: times small integers f32 has them
_EXACT_FOLDS = ("sum", "max", "min", "argmax", "argmin")


# Of computed operands, in shares of themselves: f32 functions, and how tf32 rounds.
_F64_OFF, _F32_OFF, _TF32_OFF = 2.0**-48, 2.0**-18, 2.0**-10
_TERM_OFF = 2.0**-21  # of f32: two units in the last place, and what adding them up loses
_ORDERS, _TIMES = 6, 4  # of users' folds; what another order is off, in what the worst of these is
_CHANGED, _LEAST = 1 / 8, 1e-3  # of a rewritten program: more than rounding elsewhere is
_PRODUCTS = 2  # of a chain without layers and gates


def is_exact(program: Program) -> bool:
    """Whether the program maps small integers to exactly representable results."""
    folds = all(fold.function in _EXACT_FOLDS for fold in program.folds)
    exact = folds and all(map(_keeps_numbers, program.pointwise))
    return exact and not _lost_in_layers(program)


def _keeps_numbers(statement: Pointwise) -> bool:
    """Whether a statement maps numbers of few digits to such: constants that it computes with have
    few, too. Others are chosen, or compared with, whatever their digits are.
    """
    constants = (one.value for one in statement.args if isinstance(one, Constant))
    computed = statement.function in _COMPUTED and not all(map(_is_short, constants))
    return statement.function in _EXACT and not computed


def _is_short(number: float) -> bool:
    """Whether a number is none, or has few binary digits: 0.5, and not 0.1."""
    return not np.isfinite(number) or (np.frexp(number)[0] * 2.0**_DIGITS).is_integer()


def folds_off(program: Program) -> dict[str, float]:
    """How far terms of sums that are folds may be off, in shares of themselves, as `operands_off`:
    none that functions made which are exact.
    """
    if program.rest is not None:
        return {}
    sums = [one for one in program.folds if one.function == "sum"]
    inexact = (one for one in sums if not _exactly_made(program, one.reads))
    return {one.write.name: _F64_OFF if one.dtype == F64 else _TERM_OFF for one in inexact}


def operands_off(program: Program) -> dict[str, float]:
    """How far computed operands may be off, in shares of themselves, by the product's sum: none
    that are exact, or of 16 bits and not of a chain, so that the program says how they are rounded.

    What a sum is off by then goes with the magnitudes of its terms, which may cancel.
    """
    if is_exact(program) or program.rest is not None:
        return {}
    layers, found = _lost_in_layers(program), dict[str, float]()
    computed: dict[str, tuple[Statement, ...]] = dict(
        _made_of_sums(program) if is_chain(program) else prologues(program)
    )
    for value in () if is_chain(program) else program.first:  # with folds over their own rows
        computed[value] = tuple(needed(program.statements, [value]))
    off = {TF32: _TF32_OFF, F32: _F32_OFF, F64: _F64_OFF}
    if is_chain(program):  # rounded under another factor: before what is a row's own divides it
        off |= {kind: 2.0**-kind.mantissa for kind in (F16, BF16)}
    for value, own in computed.items():
        pointwise = [one for one in own if isinstance(one, Pointwise)]
        folded = any(isinstance(one, Fold) and one.function not in _EXACT for one in own)
        if not (folded or layers) and all(map(_keeps_numbers, pointwise)):
            continue
        in_parts = any(one.function == _PART for one in pointwise)
        share = off.get(F32 if in_parts else _multiplied(program, value), 0.0)
        for product in program.contractions:
            if share and value in {access.name for access in product.reads}:
                found[product.write.name] = max(share, found.get(product.write.name, 0.0))
    return found


def _moved(program: Program) -> list[Moved]:
    """Sums that are moved, each alone and all at once, up and down: operands of different products
    are off independently of each other. Elements that are folded are off so, too: those of either
    sign may all be larger, or all smaller.
    """
    off = operands_off(program) | folds_off(program)
    every = [{name: share} for name, share in off.items()]
    every += [dict(off)] if len(off) > 1 else []
    ways = (False, True) if program.folds else (False,)
    return [
        Moved({name: sign * one[name] for name in one}, outward)
        for outward in ways
        for one in every
        for sign in (1, -1)
    ]


def _made_of_sums(program: Program) -> dict[str, tuple[Pointwise, ...]]:
    """The statements on the way to operands that are made of products' sums, or such sums."""
    made = {one.write.name for one in program.statements}
    reads = {access.name for product in program.contractions for access in product.reads}
    found = {}
    for name in sorted(reads & made):
        behind = needed(program.statements, [name])
        found[name] = tuple(one for one in behind if isinstance(one, Pointwise))
    return found


def _multiplied(program: Program, value: str) -> DType:
    """The type in which products take a value that is computed."""
    for one in program.pointwise:
        if one.write.name == value:
            return multiplied(program, one)
    readers = [one for one in program.contractions if value in (one.lhs.name, one.rhs.name)]
    return F32 if all(one.exact for one in readers) else TF32  # a product's sums


def _exactly_made(program: Program, reads: Iterable[Access]) -> bool:
    """Whether values are made by functions that keep numbers of few digits."""
    behind = needed(program.statements, [access.name for access in reads])
    return all(_keeps_numbers(one) for one in behind if isinstance(one, Pointwise))


def _lost_in_layers(program: Program) -> bool:
    """Whether products of small integers' products are multiplied as tf32, which may not hold them:
    what layers in a row make, and gates.
    """
    if len(program.contractions) <= _PRODUCTS or not is_chain(program):
        return False
    return any(_multiplied(program, value) == TF32 for value in _made_of_sums(program))


def changed(
    asked: Program, made: Program, arrays: Mapping[str, Any], sizes: dict[str, int]
) -> list[Finding]:
    """Where a rewritten program means another thing.

    It may add in another order and round an operand elsewhere, or not: that is little of all
    elements together. Indices, of which neighbours may be as large, are not compared.

    Args:
        asked: before it was rewritten.
        made: of it.
        arrays: NumPy arrays and numbers, by name.
        sizes: of the symbolic dims.
    """
    found = []
    both = (evaluate(one, arrays, sizes, round_outputs=False) for one in (asked, made))
    for tensor, wanted, given in zip(asked.outputs, *both, strict=True):
        a, b = wanted.astype(np.float64), given.astype(np.float64)
        numbers = np.isfinite(a) & np.isfinite(b)
        size = max(float(np.linalg.norm(a[numbers])), _LEAST)
        off = float(np.linalg.norm((a - b)[numbers])) / size
        if tensor.dtype != S32 and off > _CHANGED:
            sentence = f"{tensor.name} is rewritten to what is {off:.2g} of it off"
            found.append(Finding("wrong-value", sentence, tensor.name, int((a != b).sum())))
    return found


def meanings(
    program: Program, arrays: Mapping[str, Any], sizes: dict[str, int]
) -> list[tuple[Array, ...]]:
    """The outputs of a program; then the same in fewer digits, and with sums that are moved by what
    their terms may be off: what `compare` takes.

    Args:
        program: whose meaning that is.
        arrays: NumPy arrays and numbers, by name.
        sizes: of the symbolic dims.
    """
    found = [evaluate(program, arrays, sizes), evaluate(program, arrays, sizes, single=True)]
    for moved in _moved(program):
        found.append(evaluate(program, arrays, sizes, moved=moved))
    if any(MONOIDS[fold.function].in_order for fold in program.folds):
        orders = range(2, 2 + _ORDERS)
        others = [found[1], *(evaluate(program, arrays, sizes, single=n) for n in orders)]
        found += zip(*map(_in_other_orders, found[0], zip(*others, strict=True)), strict=True)
    return found


def _in_other_orders(wanted: Array, others: Sequence[Array]) -> tuple[Array, Array]:
    """Below and above a result, element by element, what may come of folds in an order of theirs.

    Args:
        wanted: the result.
        others: the same in fewer digits, in several orders.
    """
    w = wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.max([np.abs(one.astype(np.float64) - w) for one in others], axis=0)
    off = _TIMES * np.where(np.isfinite(apart), apart, 0.0)
    return w - off, w + off


def compare(
    tensor: Tensor, found: Array, expected: Array, exact: bool, *others: Array
) -> tuple[Finding | None, float]:
    """The first element that differs by more than allowed, and the largest relative error.

    Inexact functions may differ by two units in the last place of the output, or by 2^-18 of f32
    arithmetic, 2^-46 of f64 results; whole numbers besides by one, conditions not at all; and where
    `others`, which are `expected` in fewer digits and of operands that are off (`operands_off`),
    are farther off (the sine of a large product, a number rounded to a whole one, a sum of terms
    that cancel), from them or what lies between.
    """
    kind = tensor.dtype.kind
    a = (found.view(np.uint8) if kind == "bool" else found).astype(np.float64)
    b = expected.astype(np.float64)
    arithmetic = 2.0**-46 if tensor.dtype == F64 else 2.0**-18
    allowed = max(2.0**-tensor.dtype.mantissa, arithmetic) if kind == "float" else arithmetic
    allowed = 0.0 if exact or kind == "bool" else allowed
    scale = np.maximum(np.abs(b), 1.0)
    every = [b, *(() if exact else (other.astype(np.float64) for other in others))]
    worst = float(_apart(a, every[:2], kind, exact, scale).max(initial=0.0))
    error = _apart(a, every, kind, exact, scale)
    if float(error.max(initial=0.0)) <= allowed:
        return None, worst
    first = tuple(int(i) for i in np.argwhere(error > allowed)[0])
    place = ", ".join(map(str, first))
    sentence = f"{tensor.name}[{place}] is {a[first]}, NumPy says {b[first]}"
    return Finding("wrong-value", sentence, tensor.name, int((error > allowed).sum())), worst


def _apart(a: Array, every: list[Array], kind: str, exact: bool, scale: Array) -> Array:
    """How far elements are from what lies between some others, in shares of their size."""
    with np.errstate(invalid="ignore"):
        b, numbers = every[0], np.isfinite(a) & np.isfinite(every).all(axis=0)
        b = np.where(numbers, np.clip(a, np.fmin.reduce(every), np.fmax.reduce(every)), b)
        apart = np.abs(a - b)
        if kind == "int" and not exact:
            apart = np.maximum(apart - 1, 0)  # a value between two may be rounded to either
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart / scale)
    return np.where(np.isnan(error), np.inf, error)
