"""What makes two programs one problem, two schedules one candidate, two generators one version."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polygen.frontend.pitches import row_length, row_step
from polygen.frontend.program import Access, Program, Statement, Tensor
from polygen.schedule.model import Launches, Schedule

_PROMISE = "invariant"  # begins a line of a program's text
_GENERATOR = ("isl.py", "frontend", "hardware", "poly", "lower", "emit")


def canonical(program: Program, sizes: Mapping[str, int]) -> str | None:
    """A program with its sizes, as text in which the names of operands and dims do not matter.

    Args:
        program: with the alignments that the sizes leave (`polygen.pipeline.with_sizes`).
        sizes: of the symbolic dims, and the pitches of arrays with gaps between their rows.

    Returns:
        The text; None if a dim has no size.
    """
    if any(name not in sizes for name in program.sizes):
        return None
    names = {t.name: f"in{at}" for at, t in enumerate(program.inputs)}
    names |= {t.name: f"out{at}" for at, t in enumerate(program.outputs)}

    def tensor(one: Tensor) -> str:
        dims = ",".join(str(sizes.get(d, d) if isinstance(d, str) else d) for d in one.dims)
        ragged = " ragged" if one.ragged else ""
        order = ",".join(map(str, one.order))
        gaps = ""
        if len(one.dims) > 1 and row_step(one, sizes) != row_length(one, sizes):
            gaps = f" pitch {row_step(one, sizes)}"
        text = f"{names[one.name]}: {one.dtype}[{dims}] order {order} @{one.alignment}"
        return f"{text}{ragged}{gaps}"

    def access(one: object) -> object:
        return replace(one, name=names.get(one.name, one.name)) if isinstance(one, Access) else one

    def statement(one: Statement) -> str:
        domain = ",".join(f"{it}<{sizes.get(str(extent), extent)}" for it, extent in one.domain)
        reads = one.args if hasattr(one, "args") else one.reads
        values = ", ".join(str(access(value)) for value in reads)
        what = getattr(one, "function", "sum")
        return f"{access(one.write)} = {what}({values}) {domain} {one.dtype}"

    lines = [tensor(one) for one in (*program.inputs, *program.outputs)]
    lines += [statement(one) for one in program.statements]
    return "\n".join([*lines, *_invariant(program, names)])


def _invariant(program: Program, names: Mapping[str, str]) -> list[str]:
    """The places of the dims that bits must not depend on; nothing where there are none."""
    places = [
        f"{names[tensor.name]}.{axis}"
        for tensor in program.inputs
        for axis, dim in enumerate(tensor.dims)
        if dim in program.invariant
    ]
    return [f"{_PROMISE} {' '.join(places)}"] if places else []


def invariant_of(text: str, dims: Sequence[Sequence[str | int]]) -> tuple[str, ...]:
    """The dims that bits must not depend on, of a program's canonical text.

    Args:
        text: of `canonical`.
        dims: of the inputs, in their order.
    """
    last = text.splitlines()[-1]
    if not last.startswith(f"{_PROMISE} "):
        return ()
    pairs = (place.removeprefix("in").split(".") for place in last.split()[1:])
    return tuple(dict.fromkeys(str(dims[int(at)][int(axis)]) for at, axis in pairs))


def candidate_key(schedule: Schedule) -> str:
    """What tells schedules apart: all decisions, but not the name.

    Usual launches, when they let others begin, clusters, rows along one axis, blocks for rows and
    sums are left out, so that records from before there were others keep their keys.
    """
    text = repr(replace(schedule, name="")).replace(f", launch={Launches()!r}", "")
    shared = "share='all', columns=0"
    begin = "trigger='start', ahead=False"
    for usual in ("pixels=()", "row_warps=8", "row_words=0", "joined=False", shared, begin):
        text = text.replace(f", {usual}", "")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def generator_digest() -> str:
    """A digest of the sources that turn a program and a schedule into a kernel."""
    package = Path(__file__).resolve().parent.parent
    found = hashlib.sha256()
    for part in _GENERATOR:
        root = package / part
        files = [root] if root.is_file() else sorted(root.rglob("*"))
        for file in files:
            if file.suffix in (".py", ".toml", ".j2"):
                found.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:32]
