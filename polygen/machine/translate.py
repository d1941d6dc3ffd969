"""Basic blocks -> Python functions over NumPy vectors, once per block and variant.

A function ``block(M, R, L)`` takes the machine, the register storage and the lanes. It returns what
the block's terminator needs to know: the predicate of a branch, the operands of a barrier. The
variant for all threads uses whole register arrays; the other one gathers and scatters its lanes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from polygen.machine import (
    accumulators,
    arithmetic,
    asynchronous,
    atomics,
    barriers,
    bits,
    bulk,
    bulk_stores,
    cluster,
    compute,
    convert,
    exchange,
    grids,
    hopper,
    image_code,
    map_changes,
    map_code,
    mbarrier,
    memory,
    mma,
    move,
    order,
    registers,
    remote,
    rounding,
    select,
    small_parts,
    texture,
    transfer,
    unwritten,
    warp,
    wgmma,
    wmma,
)
from polygen.machine.blocks import Program
from polygen.machine.lanes import Lanes, full
from polygen.machine.module import Instruction
from polygen.machine.writer import HANDLERS, Writer

BlockFunction = Callable[..., Any]
FAMILIES = (
    compute,
    convert,
    hopper,
    image_code,
    map_code,
    move,
    select,
    small_parts,
    transfer,
    warp,
    wmma,
)  # importing them fills HANDLERS


def guarded(
    function: Callable[..., Any],
    machine: Any,
    lanes: Lanes,
    mask: Any,
    old: tuple[Any, ...],
    arrays: tuple[Any, ...],
    *constants: Any,
) -> tuple[Any, ...] | None:
    """Call a machine function for the lanes whose predicate holds; the others keep `old`."""
    mask = full(lanes, mask)
    if mask.all():
        result: tuple[Any, ...] | None = function(machine, lanes, *arrays, *constants)
        return result
    places = np.flatnonzero(mask)
    merged = tuple(None if value is None else full(lanes, value).copy() for value in old)
    if len(places):
        chosen = [value[places] if getattr(value, "ndim", 0) else value for value in arrays]
        some = function(machine, lanes.pick(places), *chosen, *constants)
        for wide, part in zip(merged, some or (), strict=False):
            if wide is not None:
                wide[places] = part
    return merged


_NOT_MODELLED = {
    **dict.fromkeys(("sured", "istypep"), "of textures and surfaces this is not modelled"),
    "tcgen05": "tensor memory is not modelled",
    "alloca": "the stack has no size that is known before",
    **dict.fromkeys(("stacksave", "stackrestore"), "the stack has no size that is known before"),
    **dict.fromkeys(
        ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset"),
        "video instructions are not modelled",
    ),
}


def _namespace() -> dict[str, object]:
    names: dict[str, object] = {"N": np, "where": np.where, "full": full, "guarded": guarded}
    for kind in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"):
        names[f"D_{kind}".replace("?", "b")] = np.dtype(kind)
        if kind != "?":
            names[kind] = np.dtype(kind).type
    numeric = (arithmetic, rounding, bits)
    for module in (*numeric, atomics, memory, mma, exchange, asynchronous, barriers):
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                names[name] = value
    names.update(
        mbarrier=mbarrier,
        bulk=bulk,
        bulk_stores=bulk_stores,
        map_changes=map_changes,
        wgmma=wgmma,
        wmma=wmma,
        registers=registers,
        texture=texture,
    )
    names.update(grids=grids, cluster=cluster)
    names.update(order=order, remote=remote, accumulators=accumulators, unwritten=unwritten)
    names.update(
        one=np.float32(1),
        WINDOW_SHARED=memory.WINDOW_SHARED,
        WINDOW_LOCAL=memory.WINDOW_LOCAL,
        WINDOW_PARAM=memory.WINDOW_PARAM,
    )
    return names


class Translation:
    """The translated blocks of one kernel; blocks are translated when they first run."""

    def __init__(self, program: Program, follow_loads: bool = False) -> None:
        """`follow_loads`: what they find in shared memory is, see `unwritten`."""
        self.program = program
        self.names = _namespace()
        self.watched = accumulators.watched(program.kernel)
        self.doubt = unwritten.doubtful(program, follow_loads)
        self.whole: dict[int, BlockFunction] = {}
        self.part: dict[int, BlockFunction] = {}

    @functools.cached_property
    def following(self) -> Translation:
        """The same kernel, with loads from shared memory followed."""
        return Translation(self.program, True)

    def block(self, number: int, everyone: bool) -> BlockFunction:
        """The function of a block, for all threads or for some."""
        cache = self.whole if everyone else self.part
        found = cache.get(number)
        if found is None:
            found = cache[number] = self._translate(number, not everyone)
        return found

    def _translate(self, number: int, partial: bool) -> BlockFunction:
        block = self.program.blocks[number]
        w = Writer(self.program, self.names, partial)
        result = "None"
        for position in range(block.begin, block.end):
            one = self.program.kernel.instructions[position]
            w.position = position
            if self.doubt.followed:
                unwritten.watch(w, one, self.doubt)
            if one is block.terminator:
                with _readable(w, one):
                    result = _terminator(w, one)
            else:
                if self.watched:
                    accumulators.watch(w, one, self.watched)
                _instruction(w, one)
        w.store_back()
        lines = ["def block(M, R, L):", "    ix, Y = L.index, M.symbols"]
        lines += [f"    {line}" for line in w.lines]
        lines.append(f"    return {result}")
        scope: dict[str, Any] = {}
        exec(compile("\n".join(lines), f"<block {number}>", "exec"), self.names, scope)
        return scope["block"]  # type: ignore[no-any-return]


def _guard(w: Writer, one: Instruction) -> str:
    name = w.read(one.predicate, "?")
    return w.fresh(f"~{name}") if one.negated else name


def _instruction(w: Writer, one: Instruction) -> None:
    handler = HANDLERS.get(one.parts[0])
    if handler is None:
        raise w.refuse(one, why=_NOT_MODELLED.get(one.parts[0], ""))
    with _readable(w, one):
        w.guard = _guard(w, one) if one.predicate else ""
        w.computes = _computes(one)
        handler(w, one)
    w.guard, w.computes = "", False


_ARITHMETIC = frozenset(
    ["add", "sub", "mul", "div", "neg", "abs", "min", "max", "rcp", "sqrt", "rsqrt", "ex2", "lg2",
     "sin", "cos", "tanh", "fma", "mad", "setp", "set", "testp", "cvt"]
)  # fmt: skip


def _computes(one: Instruction) -> bool:
    """Whether the bits of a float32 operand that is NaN make no difference to a result."""
    if one.parts[0] not in _ARITHMETIC:
        return False
    return one.parts[-1] == "f32" and not {"f64", "tf32", "xorsign"} & set(one.parts)


@contextlib.contextmanager
def _readable(w: Writer, one: Instruction) -> Iterator[None]:
    """Refuse an instruction whose operands are none, in one line."""
    try:
        yield
    except (ValueError, IndexError, KeyError) as error:
        raise w.refuse(one, why=f"its operands cannot be read: {error}") from error


def _terminator(w: Writer, one: Instruction) -> str:
    """The expression a block returns: its branch predicate, or its barrier's operands."""
    first = one.parts[0]
    if first in ("bra", "ret", "exit", "trap"):
        return _guard(w, one) if one.predicate else "None"
    if one.predicate:
        raise w.refuse(one, why="a predicated barrier is not modelled")
    if first in ("bar", "barrier"):
        return barriers.operands(w, one)
    if first == "mbarrier":
        return hopper.wait_operands(w, one)
    raise w.refuse(one)
