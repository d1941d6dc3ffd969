"""Plans with one value changed, found by going through all fields of what is emitted.

A record that stands at several places of a plan, as the epilogue that several leaves finish, is
changed at all of them at once: a plan that contradicts itself is refused too easily. New values are
of the field's type: numbers nearby, other names and records that stand in the same field, elements
left out, twice, in another order.

Not changed are loops, whose mistakes are those of `tests/tile_mutants.py`, and what a plan is
compared with: the program, its match and its pointwise work, the tile program and the trees.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any

from polygen.frontend.program import Tensor
from polygen.lower.plan import KernelPlan

# What a plan says of what is emitted and launched.
EMITTED = (
    "buffers", "leaves", "places", "syncs", "arguments", "launch", "following", "key_tiles",
    "key_bounds", "groups", "copies",
)  # fmt: skip
_RECORDS = ("polygen.lower", "polygen.poly.tile_program", "polygen.poly.key_tiles")
# Loops are compared call by call with the proved tree; what is made is what the program says.
_ONCE = frozenset({"loops", "tree", "operand_made"})


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        record: the type of the record that is changed.
        field: of it.
        old: its value.
        new: another one.
        where: the first place of the record in the plan.
        of: the record.
    """

    record: str
    field: str
    old: Any
    new: Any
    where: str
    of: Any

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.where}.{self.field}: {_short(self.old)} -> {_short(self.new)}"


def mutants(plan: KernelPlan) -> Iterator[Mutant]:
    """All mutants of a plan, in the order of its records."""
    records: dict[Any, str] = {}
    for name in EMITTED:
        _collect(getattr(plan, name), name, records)
    values: dict[tuple[type, str], list[Any]] = {}
    for record in records:
        for field in dataclasses.fields(record):
            known = values.setdefault((type(record), field.name), [])
            value = getattr(record, field.name)
            if value not in known:
                known.append(value)
    tensors = tuple(plan.program.tensors.values())
    for record, where in records.items():
        for field in dataclasses.fields(record):
            if field.name in _ONCE:
                continue
            old = getattr(record, field.name)
            known = values[type(record), field.name]
            seen: list[Any] = [old]
            for new in _others(old, known, tensors, str(field.type)):
                if new not in seen:
                    seen.append(new)
                    yield Mutant(type(record).__name__, field.name, old, new, where, record)


def mutated(plan: KernelPlan, mutant: Mutant) -> KernelPlan:
    """The plan with the change at all places of the record."""
    changed = dataclasses.replace(mutant.of, **{mutant.field: mutant.new})
    made = {name: _replaced(getattr(plan, name), mutant.of, changed) for name in EMITTED}
    return dataclasses.replace(plan, **made)


def _collect(value: Any, where: str, records: dict[Any, str]) -> None:
    """Every record inside a value, with its first place."""
    if isinstance(value, tuple):
        for number, one in enumerate(value):
            name = getattr(one, "statement", None) or getattr(one, "name", None) or number
            _collect(one, f"{where}[{name}]", records)
    elif _is_record(value) and value not in records:
        records[value] = where
        for field in dataclasses.fields(value):
            if field.name not in _ONCE:
                _collect(getattr(value, field.name), f"{where}.{field.name}", records)


def _is_record(value: Any) -> bool:
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and not isinstance(value, enum.Enum)
        and type(value).__module__.startswith(_RECORDS)
    )


def _replaced(value: Any, old: Any, new: Any) -> Any:
    """A value with a record inside it, wherever it is, as another one."""
    if type(value) is type(old) and value == old:
        return new
    if isinstance(value, tuple):
        made = tuple(_replaced(one, old, new) for one in value)
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    if not _is_record(value):
        return value
    changes = {}
    for field in dataclasses.fields(value):
        if field.name not in _ONCE:
            one = getattr(value, field.name)
            found = _replaced(one, old, new)
            if found is not one:
                changes[field.name] = found
    return dataclasses.replace(value, **changes) if changes else value


def _others(old: Any, known: list[Any], tensors: tuple[Tensor, ...], kind: str) -> Iterator[Any]:
    """Values of the field's type that it might have instead."""
    if isinstance(old, bool):
        yield not old
    elif isinstance(old, int):
        yield from (old + 1, 2 * old, old // 2)
    elif isinstance(old, float):
        yield from (old + 1.0, -old)
    elif isinstance(old, str):
        yield from (one for one in known if isinstance(one, str))
        yield ""
        if old:
            yield f"({old}) + 1"
    elif isinstance(old, Tensor):
        yield from (one for one in tensors if one.dims == old.dims or len(tensors) < 8)
    elif isinstance(old, tuple):
        if "..." in kind:
            yield from (old[:-1], old[1:], old[::-1])
            if old:
                yield (*old, old[-1])
        for number, one in enumerate(old):
            if isinstance(one, tuple | int | str | float | Tensor) and not _is_record(one):
                for new in _others(one, [], tensors, ""):
                    yield (*old[:number], new, *old[number + 1 :])
    elif old is None or _is_record(old):
        if "None" in kind:
            yield None
        yield from (one for one in known if one is not None and type(one) is type(old))
    else:
        yield from known


def _short(value: Any) -> str:
    text = value.name if isinstance(value, Tensor) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
