"""Reading the data files of this package, and the formulas inside them."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polygen import plain
from polygen.errors import HardwareDataError, VerifyError
from polygen.hardware.formula import value

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
    """The value of an index formula for arrays of its variables (`polygen.hardware.formula`).

    Raises:
        HardwareDataError: it is no formula, or has other variables.
    """
    try:
        found = value(formula, variables)
    except VerifyError as reason:
        raise HardwareDataError(
            f"{formula!r} is not an index formula",
            where=where,
            why=reason.what,
            nearest=f"Allowed: {', '.join(variables)}, integers, + - * / % and parentheses",
        ) from None
    shape = np.broadcast_shapes(*(array.shape for array in variables.values()))
    return np.broadcast_to(np.asarray(found, np.int64), shape)
