"""Reading the data files of this package, and the formulas inside them."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polygen import plain
from polygen.errors import HardwareDataError

DATA = Path(__file__).parent / "data"

Integers = npt.NDArray[np.int64]


@functools.cache
def read(name: str) -> dict[str, Any]:
    """The content of ``data/NAME``, parsed once per process.

    Raises:
        HardwareDataError: the file is missing or is not TOML.
    """
    try:
        return plain.loads((DATA / name).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise HardwareDataError(f"cannot be read: {error}", where=f"hardware/data/{name}") from None


def take(table: dict[str, Any], key: str, where: str) -> Any:
    """``table[key]``.

    Raises:
        HardwareDataError: the key is missing.
    """
    if key not in table:
        raise HardwareDataError(f"the entry {key!r} is missing", where=where)
    return table[key]


def evaluate(formula: str, variables: dict[str, Integers], where: str) -> Integers:
    """The value of an index formula for arrays of its variables.

    A formula holds variables, decimal integers, parentheses and ``+ - * / %`` with non-negative
    values (``/`` rounds down), so that the same text is valid C.

    Raises:
        HardwareDataError: the formula uses anything else.
    """

    def value(node: ast.expr) -> Integers:
        match node:
            case ast.Constant(value=int(number)):
                return np.asarray(number, np.int64)
            case ast.Name(id=name) if name in variables:
                return variables[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return np.asarray(value(left) + value(right))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return np.asarray(value(left) - value(right))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return np.asarray(value(left) * value(right))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return np.asarray(value(left) // value(right))
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return np.asarray(value(left) % value(right))
        raise HardwareDataError(
            f"{ast.unparse(node)!r} is not allowed in an index formula",
            where=where,
            nearest=f"Allowed: {', '.join(variables)}, integers, + - * / % and parentheses",
        )

    try:
        body = ast.parse(formula, mode="eval").body
    except SyntaxError:
        raise HardwareDataError(f"{formula!r} is not an index formula", where=where) from None
    shape = np.broadcast_shapes(*(array.shape for array in variables.values()))
    return np.broadcast_to(value(body), shape)
