"""The correction of what was summed under an older reference of a row, as C."""

from __future__ import annotations

from typing import Any

from polygen.emit.ctext import definition
from polygen.lower.scan_work import Scan
from polygen.rewrite.separation import STATE, Expression, Factor


def correction_lines(scan: Scan) -> tuple[list[str], str, list[str]]:
    """c(before, after): lines of C, its value, and helper files."""
    if not scan.factors:
        return [], "1.0f", []

    def ratio(before: Any, after: Any) -> tuple[Any, ...]:
        found = None
        for factor in scan.factors:
            one = _ratio(factor, before, after)
            found = one if found is None else found.apply("mul", found, one)
        return (found,)

    lines, (value,), helpers = definition(ratio, ["before", "after"], "c_", fast=scan.fast)
    return lines, value, list(helpers)


def _ratio(factor: Factor, before: Any, after: Any) -> Any:
    old, new = _value(factor.of, before), _value(factor.of, after)
    if factor.kind in ("times", "over"):
        return before.apply("div", *((new, old) if factor.kind == "times" else (old, new)))
    return before.apply(factor.kind, before.apply("sub", new, old))


def _value(expression: Expression, state: Any) -> Any:
    if isinstance(expression, tuple):
        name, *operands = expression
        return state.apply(str(name), *(_value(one, state) for one in operands))  # type: ignore[arg-type]
    return state if expression == STATE else expression
