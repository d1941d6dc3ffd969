"""Random programs whose operands are computed: exact on integer data, whatever the storage.

As in `random_programs`, a seed decides everything. Either operand or both are functions of a matrix
and of what else is drawn: vectors along each axis, other matrices (the other way round too),
scalars, coordinates, casts from narrow types; where K is a number also scales by group and packed
numbers of four bits. Values stay whole numbers of at most 256, which all operand types hold
exactly, so that sums are exact and outputs equal bit for bit. Functions of zero are rarely zero:
what lies outside of an operand must be.
"""

from __future__ import annotations

import random
from dataclasses import replace

from random_programs import PRIMES, ROUND, Random

from polygen import fuse
from polygen.errors import ScheduleError, SpillError, UnsupportedProgram
from polygen.frontend.parse import parse_expression
from polygen.kernel import Kernel
from polygen.schedule.model import (
    CtaTile,
    Epilogue,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

_UNARY = (
    "relu({})", "-({})", "abs({})", "minimum({}, 1)", "maximum({}, -1)", "clip({}, -3, 2)",
    "({}) * 2", "({}) - 1", "exp(minimum({}, 0) * 0)", "where(({}) > 0, {}, 1)",
)  # fmt: skip
_BINARY = (
    "({}) + {}",
    "({}) - {}",
    "maximum({}, {})",
    "({}) * sign({})",
    "where(({}) > {}, 1, -2)",
)
_MOST_STEPS = 4
_GROUP = 16  # elements that the largest group has, and that a K which is a number is a multiple of


def prologue_program(seed: int, largest: int = 140, *, odd: bool = False) -> Random:
    """The program of a seed.

    Args:
        seed: decides all.
        largest: size of a dim.
        odd: rows have any pitch and arrays any address; else rows start at multiples of 16 bytes.
    """
    rng = random.Random(f"prologue {seed} {odd}")
    making = _Making(rng)

    def size() -> int:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice([p for p in PRIMES if p <= largest])
        if kind < 0.7:
            return rng.choice([p for p in ROUND if p <= largest])
        return rng.randint(1, largest)

    sizes = {"M": size(), "N": size(), "K": size()}
    # Of two computed operands neither says that f32 is multiplied as tf32.
    depth = "K"
    if rng.random() < 0.4:
        depth = str(_GROUP * rng.randint(1, largest // _GROUP))
        del sizes["K"]
    which = rng.choice(["x", "w"] if making.kind == "tf32" else ["x", "w", "xw"])
    left = making.operand("x", ("M", depth), "x" in which)
    right = making.operand("w", ("N", depth), "w" in which)
    text = f"{left} @ ({right}).T"
    if rng.random() < 0.3:
        text = f"(({right}) @ ({left}).T).T"
    if rng.random() < 0.5:
        making.signature["b"] = f"{making.kind}[N]"
        text = f"relu({text} + b)"
    names = tuple(making.signature)
    pitches = {n: rng.choice([0, 1, 3, 8]) if odd else 0 for n in names}
    offsets = {n: rng.choice([0, 0, 1, 2]) if odd else 0 for n in names}
    return Random(
        seed, text, tuple(making.signature.values()), names, sizes, ("f32",), pitches, offsets,
        roomy=False, with_roles=odd,
    )  # fmt: skip


# One consumer or two, tiles of one instruction or two along rows, one k tile in flight or none.
FRAGMENTS = tuple(
    Schedule(
        name=f"made_{m}x{k}_{in_flight}_{fragments}",
        device="sm_90a",
        tile=Tile(CtaTile(m, 16, k), WarpTile(warp, 16)),
        pipeline=Pipeline(stages=3, in_flight=in_flight, fragments=fragments),
        roles=Roles("cooperative", 40, 168, "consumer"),
        epilogue=Epilogue(through="registers"),
    )
    for m, warp, k, in_flight, fragments in (
        (64, 64, 64, 1, 2), (128, 64, 128, 1, 2), (128, 128, 64, 0, 4), (64, 64, 128, 1, 1),
    )
)  # fmt: skip


# Without roles: operands that a launch before the kernel makes.
MADE_FIRST = tuple(
    Schedule(
        name=f"first_{cta[0]}x{cta[1]}x{cta[2]}_{through}",
        tile=Tile(CtaTile(*cta), WarpTile(*warp)),
        pipeline=Pipeline(stages=3, distance=2),
        roles=Roles(computes="before"),
        epilogue=Epilogue(through=through),
    )
    for cta, warp, through in (
        ((32, 32, 32), (16, 16), "registers"), ((64, 32, 64), (32, 16), "smem"),
        ((16, 64, 64), (16, 16), "registers"),
    )
)  # fmt: skip


def compile_made_first(case: Random, arch: str) -> Kernel:
    """The kernel without roles behind a launch that makes what is computed."""
    fused = fuse(parse_expression(case.expression, case.names), name=f"random_{case.seed}")
    schedule = MADE_FIRST[case.seed % len(MADE_FIRST)]
    return fused.compile(*case.signature, arch=arch, schedule=schedule, out_dtype=case.out_dtype)


def fragment_program(seed: int, largest: int = 140) -> Random:
    """The program of a seed, whose rows start at multiples of 16 bytes."""
    return replace(prologue_program(seed, largest), roomy=True)


def compile_fragments(case: Random, arch: str) -> Kernel | None:
    """The kernel whose consumers compute the left operand, or exchanged; None where they cannot."""
    fused = fuse(parse_expression(case.expression, case.names), name=f"random_{case.seed}")
    schedule = FRAGMENTS[case.seed % len(FRAGMENTS)]
    for exchange in (False, True):
        try:
            made = fused.compile(
                *case.signature, arch=arch, schedule=replace(schedule, exchange=exchange),
                out_dtype=case.out_dtype,
            )  # fmt: skip
            made.artifact  # noqa: B018  (may spill)
        except (ScheduleError, UnsupportedProgram, SpillError):
            continue
        return made
    return None


class _Making:
    """One program under construction."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kind = rng.choice(["bf16", "bf16", "f16", "tf32"])
        self.signature: dict[str, str] = {}

    def operand(self, side: str, axes: tuple[str, str], computed: bool) -> str:
        """A matrix with these axes; of a computed one, an expression."""
        value, own = self.array(side, axes, computed)
        if not computed:
            return value
        if own != self.kind or self.rng.random() < 0.3:
            value = f'{value}.astype("{self.stored}")'
        for _ in range(self.rng.randint(1, _MOST_STEPS)):
            value = self.step(value, side, axes)
        return f'({value}).astype("{self.kind}")' if self.kind != "tf32" else f"({value})"

    @property
    def stored(self) -> str:
        return "f32" if self.kind == "tf32" else self.kind

    def array(self, name: str, axes: tuple[str, str], computed: bool) -> tuple[str, str]:
        """An array read with these axes, stored either way, of any type where it is computed."""
        rng = self.rng
        if computed and axes[1] != "K" and rng.random() < 0.3:
            self.signature[name] = f"u8[{axes[0]},{int(axes[1]) // 2}]"
            return f'unpack({name}, "{rng.choice(["i4", "u4"])}")', "u8"
        kinds = [self.kind, "s8", "e4m3", "e5m2", "f32"] if computed else [self.kind]
        kind, turned = rng.choice(kinds), rng.random() < 0.4
        dims = tuple(reversed(axes)) if turned else axes
        column = ":col" if rng.random() < 0.2 else ""
        self.signature[name] = f"{kind}[{','.join(dims)}]{column}"
        return (f"{name}.T" if turned else name), kind

    def step(self, value: str, side: str, axes: tuple[str, str]) -> str:
        rng = self.rng
        if rng.random() < 0.45:
            return rng.choice(_UNARY).replace("{}", value)
        forms = ["row", "column", "matrix", "scalar", "place", *["group"] * (axes[1] != "K")]
        form, name = rng.choice(forms), ""
        if form != "place":
            name = "acdefgh"[sum(n not in "xwb" for n in self.signature) % 7]
            name = name if name not in self.signature else f"{name}{len(self.signature)}"
        kind = rng.choice(["f32", self.kind, "s8"])
        if form == "row":
            self.signature[name] = f"{kind}[{axes[0]}]"
            name = f"{name}[:, None]"
        elif form == "group":
            count = rng.choice([2, 4, 8, _GROUP])
            self.signature[name] = f"{kind}[{axes[0]},{int(axes[1]) // count}]"
            name = f"repeat({name}, {count}, axis=1)"
        elif form == "column":
            self.signature[name] = f"{kind}[{axes[1]}]"
        elif form == "matrix":
            name, _ = self.array(name, axes, True)
        elif form == "scalar":
            self.signature[name] = "f32"
        else:
            name = f"minimum(indices({value})[{rng.randint(0, 1)}], 2)"
        binary = rng.choice(_BINARY)
        return binary.format(value, name)
